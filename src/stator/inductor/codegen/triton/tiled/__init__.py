"""Kernels whose programs compute tiles of matrix products and of attention, and what decides on the tiles."""
