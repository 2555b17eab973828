"""Importing this package registers every shape rule. One module per family of operators."""

from . import (
    attention,
    convolution,
    creation,
    elementwise,
    embeddings,
    matmul,
    normalisation,
    reductions,
    views,
)

__all__ = [
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "embeddings",
    "matmul",
    "normalisation",
    "reductions",
    "views",
]
