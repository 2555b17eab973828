"""ATen graph -> buffers: the entry point `lower`, and which operators it knows. Importing registers every lowering."""

from . import convolution, creation, indexing, joining, library, normalization, pointwise, pooling, reductions, views
from .graph import lower
from .printer import print_lowered
from .registry import can_lower, lowerings
from .verifier import verify_lowered

__all__ = [
    "can_lower",
    "convolution",
    "creation",
    "indexing",
    "joining",
    "library",
    "lower",
    "lowerings",
    "normalization",
    "pointwise",
    "pooling",
    "print_lowered",
    "reductions",
    "verify_lowered",
    "views",
]
