"""Operators that tracing treats in a way of their own. Importing a module registers its handlers."""
