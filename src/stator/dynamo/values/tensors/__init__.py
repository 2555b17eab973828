"""Values of tensors, arrays, and numbers that are not constants."""
