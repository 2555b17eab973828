"""Lowerings, one module for each family of operators. Importing a module registers them."""
