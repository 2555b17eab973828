"""The running process: its state, its names, and the frame hook. Nothing here knows captures."""
