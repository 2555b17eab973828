"""Groups of loop nodes to C++ kernels; see kernel.py (what), vectorize.py and phases.py (how), emit.py (text)."""

from .kernel_source import print_kernel

__all__ = ["print_kernel"]
