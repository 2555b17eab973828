"""Decompositions of layers, activations, losses and their gradients."""
