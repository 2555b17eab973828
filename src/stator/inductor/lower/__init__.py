"""ATen graph -> buffers: the entry point `lower`, and which operators it knows. Importing registers every lowering."""

from .builder import LoweringBuilder
from .graph import lower
from .operators import (
    activation_backward,
    concat,
    convolution,
    convolution_backward,
    creation,
    division,
    indexing,
    library,
    normalization,
    normalization_backward,
    pointwise,
    pooling,
    pooling_backward,
    random,
    reductions,
    special,
    subgraphs,
    views,
)
from .operators.pointwise import cast, elementwise
from .operators.reductions import reduce
from .printer import print_lowered
from .registry import can_lower, lowerings
from .tensor import Tensor
from .verifier import verify_lowered

__all__ = [
    "LoweringBuilder",
    "Tensor",
    "activation_backward",
    "can_lower",
    "cast",
    "concat",
    "convolution",
    "convolution_backward",
    "creation",
    "division",
    "elementwise",
    "indexing",
    "library",
    "lower",
    "lowerings",
    "normalization",
    "normalization_backward",
    "pointwise",
    "pooling",
    "pooling_backward",
    "print_lowered",
    "random",
    "reduce",
    "reductions",
    "special",
    "subgraphs",
    "verify_lowered",
    "views",
]
