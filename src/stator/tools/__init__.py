"""Tools for users."""
