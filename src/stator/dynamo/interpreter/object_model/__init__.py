"""Python's data model for values: attributes, classes, identity, iteration, text."""
