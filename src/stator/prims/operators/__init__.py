"""The operators of stator itself: their schemas and eager kernels."""
