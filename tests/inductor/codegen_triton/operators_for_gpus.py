"""Runs in a process of its own, without the interpreter: OpInfo's samples, traced as if their tensors were on a GPU,
give Triton kernels that the frontend of Triton's compiler accepts. Needs no GPU. Arguments: names of operators, or none
for all. Prints failures, then "done"."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_compiler import check_frontend

sys.path.insert(0, str(Path(__file__).parents[2] / "opinfo"))

import test_inductor_all_sizes
from samples import samples

from stator.graph.fake.fake_mode import FakeMode
from stator.graph.tracing.tracer import trace
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes, with_expressions
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import Group
from stator.prims.record import TensorMeta

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
GPU = torch.device("cuda", 0)


def kernels(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[KernelSource]:
    mode = FakeMode()
    fakes = [mode.make(TensorMeta(tuple(one.shape), one.stride(), one.dtype, GPU, 0)) for one in tensors]
    try:
        with torch.no_grad():  # autograd refuses tensors of devices that are not here
            traced = trace(call, fakes, keep=can_lower)
    except Exception:  # eager refuses the sample, the program asks for a real GPU, or tracing refuses: judged elsewhere
        return []
    graph, sizes = with_expressions(traced.graph)
    lowered = lower(run_passes(graph, False), False, sizes)
    groups = [step for step in schedule(lowered).steps if isinstance(step, Group)]
    return [print_kernel(group, lowered.buffers, knowledge=lowered.sizes) for group in groups]


def main() -> None:
    warnings.simplefilter("ignore")  # of deprecated operators and beta features
    seen: set[str] = set()
    for dtype in DTYPES:
        test_inductor_all_sizes.samples = lambda op, count, _, dtype=dtype: samples(op, count, (dtype,))
        for name, operator in test_inductor_all_sizes.NAMED:
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            for call, tensors in test_inductor_all_sizes.calls(operator, 1):
                try:
                    for source in kernels(call, tensors):
                        if source.symbol not in seen:
                            seen.add(source.symbol)
                            check_frontend(source)
                except Exception as error:
                    print(f"FAILED {name} of {dtype}: {type(error).__name__}: {error}")
    if not seen:
        print("FAILED: no kernels")
    print("done")


if __name__ == "__main__":
    main()
