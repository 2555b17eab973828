"""ATen graph -> buffers: the entry point `lower`, and which operators it knows. Importing registers every lowering."""

from . import creation, indexing, library, normalization, pointwise, pooling, reductions, views
from .graph import lower
from .registry import can_lower, lowerings

__all__ = [
    "can_lower",
    "creation",
    "indexing",
    "library",
    "lower",
    "lowerings",
    "normalization",
    "pointwise",
    "pooling",
    "reductions",
    "views",
]
