"""Prints groups of loop nodes as C++ kernels: kernel.py (values), vectorize.py, phases.py (plan), emit.py (text)."""

from .kernel_source import print_kernel
