"""The recording mode, which turns mutation and aliasing into functional graphs."""
