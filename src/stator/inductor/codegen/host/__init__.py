"""Prints programs as Python source, and loads that source as a callable."""

from .load import build_cpu_kernels, compile_text, execute, load, load_dumped
from .printer import print_host
