"""ATen graph -> buffers: the entry point `lower`, and which operators it knows. Importing registers every lowering."""

from . import (
    activation_backward,
    convolution,
    convolution_backward,
    creation,
    division,
    indexing,
    joining,
    library,
    normalization,
    normalization_backward,
    parts,
    pointwise,
    pooling,
    pooling_backward,
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
    "activation_backward",
    "can_lower",
    "cast",
    "convolution",
    "convolution_backward",
    "creation",
    "division",
    "elementwise",
    "indexing",
    "joining",
    "library",
    "lower",
    "lowerings",
    "normalization",
    "normalization_backward",
    "parts",
    "pointwise",
    "pooling",
    "pooling_backward",
    "print_lowered",
    "random",
    "reduce",
    "reductions",
    "special",
    "verify_lowered",
    "views",
]
