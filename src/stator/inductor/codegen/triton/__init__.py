"""Prints groups of loop nodes as Triton kernels: printer.py (kernel), blocks.py (plan), expressions.py (values)."""

from .printer import print_kernel
