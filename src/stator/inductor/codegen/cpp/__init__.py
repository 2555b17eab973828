"""Prints groups of loop nodes as C++ kernels: kernel.py (values), vectorize.py, phases.py (plan), emit.py (text)."""

from .compiled_convolutions import compiled_convolutions
from .kernel_source import print_kernel

__all__ = ["compiled_convolutions", "print_kernel"]
