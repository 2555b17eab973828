"""Handlers of calls into NumPy."""
