"""Handlers of calls into torch."""
