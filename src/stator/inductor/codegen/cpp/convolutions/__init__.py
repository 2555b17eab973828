"""Prints convolutions and products in tiles: direct.py tap by tap, patches.py by patches of 2 x 2 results,
following_loops.py what follows in a tile, kernel.py all of it with its sizes."""

from .kernel import print_convolution

__all__ = ["print_convolution"]
