"""Running programs on tensors without data whose sizes are symbols."""
