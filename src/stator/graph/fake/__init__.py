"""Fake tensors, which have metadata but no data, and the mode in which operators run on them."""
