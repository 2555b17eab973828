"""Lowerings of layers of neural networks: pooling, normalisation, gradients of activations."""

from . import activation_backward, normalization, normalization_backward, pooling, pooling_backward
