"""Lowerings, one module for each family of operators. Importing the package registers all lowerings."""

from . import (
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
    views,
)
