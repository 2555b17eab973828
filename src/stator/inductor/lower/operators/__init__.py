"""Lowerings, one module for each family of operators. Importing the package registers all lowerings."""

from . import (
    concat,
    convolution,
    convolution_backward,
    creation,
    division,
    indexing,
    library,
    neural_networks,
    pointwise,
    random,
    reductions,
    scans,
    special,
    views,
)
