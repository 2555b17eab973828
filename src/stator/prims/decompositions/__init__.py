"""Importing this package registers every decomposition. One module per family of operators."""
