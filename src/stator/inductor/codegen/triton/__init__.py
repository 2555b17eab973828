"""Groups of loop nodes to Triton kernels; see printer.py (what), blocks.py (how), expressions.py (text)."""

from .printer import print_kernel

__all__ = ["print_kernel"]
