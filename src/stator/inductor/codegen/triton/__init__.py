"""Prints groups of loop nodes as Triton kernels: printer.py (kernel), products.py (matrix products), blocks.py and
tiles.py (plans), tuning.py (plans by timing), expressions.py (values), modules.py (what stands around a kernel)."""

from .printer import print_kernel
from .tiled.attention_tiles import choose_attention, launch_computes_gradients, library_is_quicker
from .tiled.tiles import choose_tile
from .tuning import BlockTuner, Tuner
