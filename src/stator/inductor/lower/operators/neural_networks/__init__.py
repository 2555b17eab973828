"""Lowerings of layers of neural networks: pooling, normalisation, gradients of activations."""

from . import activations, normalization, normalization_backward, pooling, pooling_backward
