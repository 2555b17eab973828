"""Importing this package registers every decomposition. One module per family of operators."""

from . import (
    activations,
    arithmetic,
    attention,
    copied_views,
    creation,
    foreach,
    losses,
    matmul,
    normalisation,
    reductions,
    resampling,
    shaping,
    special,
    strided_scatter,
)

__all__ = [
    "activations",
    "arithmetic",
    "attention",
    "copied_views",
    "creation",
    "foreach",
    "losses",
    "matmul",
    "normalisation",
    "reductions",
    "resampling",
    "shaping",
    "special",
    "strided_scatter",
]
