"""Runs in a process of its own: kernels of large graphs through the compiler of Triton. Their machine code must access
memory 16 bytes at a time, and keep values in registers. Prints failures, then "done"."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_compiler import ptx_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from all_sizes import symbolic_fakes

from stator.graph.tracing.tracer import trace
from stator.inductor import devices
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes, with_expressions
from stator.inductor.schedule import schedule
from stator.shapes.environment import Environment

HALF = torch.bfloat16
# Memory is never touched: only sizes matter
GRAPHS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "transposed": (lambda x: (x.t() + 1).contiguous(), [torch.empty(2048, 1024)]),
    "softmax": (lambda x: torch.softmax(x, -1), [torch.empty(4096, 8192, dtype=HALF)]),
    "sum of columns": (lambda x: x.sum(0), [torch.empty(65536, 1024, dtype=HALF)]),
    "odd length": (lambda x: F.gelu(x), [torch.empty(1048573)]),
    "softmax of columns": (lambda x: torch.softmax(x, 0), [torch.empty(4096, 16384)]),
    "variance of columns": (lambda x: torch.var_mean(x, 0), [torch.empty(131072, 1024)]),
    "odd rows": (lambda x: torch.softmax(x, -1), [torch.empty(4096, 50257, dtype=HALF)]),
}


def main() -> None:
    devices.TRAITS["cpu"] = devices.GPU
    for name, (function, tensors) in GRAPHS.items():
        fakes = symbolic_fakes(tensors, [(None,) * tensor.dim() for tensor in tensors], Environment())
        graph, sizes = with_expressions(trace(function, fakes, keep=can_lower).graph)
        lowered = lower(run_passes(graph, False), False, sizes)
        source = print_kernel(schedule(lowered).steps[0], lowered.buffers, knowledge=sizes)  # type: ignore[arg-type]
        ptx = ptx_of(source, 90)
        loads, stores = (re.search(rf"{kind}\.global[\w.:]*\.v4\.b32", ptx) for kind in ("ld", "st"))
        wide = loads and (name in ("sum of columns", "variance of columns") or stores)
        if not wide or ".local" in ptx:
            print(f"FAILED {name}:\n{source.source}")
    print("done")


if __name__ == "__main__":
    main()
