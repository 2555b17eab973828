"""Functions written in C, rewritten as plain Python so that they can be traced. Importing this package registers them.

Every function here means exactly what the one it replaces means; tests compare the two.
"""

from . import (
    bisect_module,
    functools_module,
    heapq_module,
    inference_blocks,
    iteration,
    itertools_module,
    operator_module,
    optimizer_groups,
    text_functions,
    torch_optim,
    transformer_encoder,
)

__all__ = [
    "bisect_module",
    "functools_module",
    "heapq_module",
    "inference_blocks",
    "iteration",
    "itertools_module",
    "operator_module",
    "optimizer_groups",
    "text_functions",
    "torch_optim",
    "transformer_encoder",
]
