"""Fake tensors: metadata without data, and the mode in which operators work on them."""
