"""stator's own operators: their schemas and eager kernels."""
