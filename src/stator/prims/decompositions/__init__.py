"""Decompositions, one module per family of operators. Importing this package registers all of them."""

from . import (
    arithmetic,
    collectives,
    creation,
    foreach,
    linear_algebra,
    quantiles,
    quantization,
    reductions,
    searching,
    shaping,
    special,
)
from .neural_networks import (
    activations,
    attention,
    gathering_gradients,
    grid_sampling,
    losses,
    normalisation,
    resampling,
    windows,
)
