"""What Python's data model says of values: attributes, classes, identity, iteration, text."""
