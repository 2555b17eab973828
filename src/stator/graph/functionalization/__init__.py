"""The recording mode that turns mutation and aliasing into functional graphs."""
