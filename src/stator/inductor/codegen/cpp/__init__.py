"""Prints groups of loop nodes as C++ kernels: kernel.py (values), vectorize.py, phases.py (plan), emit.py (text)."""

from .compiled_kernels import compiled_convolution, compiled_sums
from .kernel_source import print_kernel

__all__ = ["compiled_convolution", "compiled_sums", "print_kernel"]
