"""Operators with special handling while tracing. Importing a module registers its handlers."""
