"""Importing this package registers every decomposition. One module per family of operators."""

from . import (
    activations,
    arithmetic,
    attention,
    copied_views,
    creation,
    losses,
    matmul,
    normalisation,
    reductions,
    resampling,
    shaping,
)

__all__ = [
    "activations",
    "arithmetic",
    "attention",
    "copied_views",
    "creation",
    "losses",
    "matmul",
    "normalisation",
    "reductions",
    "resampling",
    "shaping",
]
