"""ATen graph -> buffers: the entry point `lower`, and which operators it knows. Importing registers every lowering."""

from . import (
    convolution,
    convolution_backward,
    creation,
    indexing,
    joining,
    library,
    normalization,
    pointwise,
    pooling,
    random,
    reductions,
    special,
    views,
)
from .builder import Builder
from .graph import lower
from .pointwise import cast, elementwise
from .printer import print_lowered
from .reductions import reduce
from .registry import can_lower, lowerings
from .tensor import Tensor
from .verifier import verify_lowered

__all__ = [
    "Builder",
    "Tensor",
    "can_lower",
    "cast",
    "convolution",
    "convolution_backward",
    "creation",
    "elementwise",
    "indexing",
    "joining",
    "library",
    "lower",
    "lowerings",
    "normalization",
    "pointwise",
    "pooling",
    "print_lowered",
    "random",
    "reduce",
    "reductions",
    "special",
    "verify_lowered",
    "views",
]
