"""Kernels on NVIDIA GPUs: the service that compiles them, their machine code on disk, the driver, launches."""

from .kernels import TritonKernel, load_kernels, start_kernel
from .machine_code import COMPILER_OPTIONS, prepare
