"""Handlers of built-in functions and of the standard library."""
