"""The autograd function around a compiled step."""
