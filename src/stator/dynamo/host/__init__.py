"""What the running process is asked and told: its state, its names, its hooks. Nothing here knows a capture."""
