"""Runs in a process of its own, without the interpreter: the kernels that models with symbolic sizes make, through the
Triton printer and the compiler of Triton down to machine code. Arguments: the mode, then models. Prints one line per
failure, then "done"."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from benchmarks.dynamic.program import programs
from gpu_compiler import failures

import stator
from stator import pipeline
from stator.inductor import devices
from stator.inductor.program.steps import KernelSource
from stator.runtime import cuda

# 32-bit and 64-bit indices, each for one of the compute capabilities, and aligned and other tensors
VARIANTS = ((80, "int32", True), (90, "int64", False))


class NoGpu(Exception):
    """Raised by the first kernel of a program."""


def kernels(names: Sequence[str], mode: str) -> list[KernelSource]:
    found: dict[str, KernelSource] = {}

    class NoKernel:
        def bind(self, count: int, sizes: tuple[int, ...] = ()) -> Callable[..., None]:
            return no_gpu

    def no_gpu(*arguments: Any) -> None:
        raise NoGpu

    def collect(sources: Sequence[KernelSource], device: torch.device) -> dict[str, NoKernel]:
        found.update({source.symbol: source for source in sources})
        return {source.symbol: NoKernel() for source in sources}

    pipeline.LANGUAGES["cpu"] = "triton"
    devices.TRAITS["cpu"] = devices.GPU
    cuda.load_kernels = collect
    for name in names:
        program = programs()[name]
        before = len(found)
        step = program.step(mode, program.model(mode), lambda model: stator.compile(model, dynamic=True))
        try:
            with torch.set_grad_enabled(mode == "training"):
                step(program.arguments(program.few[0]))
        except NoGpu:
            pass
        if len(found) - before < 5 or not any(source.sizes for source in found.values()):
            print(f"FAILED {name}: {len(found) - before} kernels")
        stator.reset()
    return list(found.values())


def main() -> None:
    warnings.simplefilter("ignore")  # stator says that graphs raised NoGpu
    for failure in failures(kernels(sys.argv[2:], sys.argv[1]), VARIANTS):
        print(f"FAILED {failure}")
    print("done")


if __name__ == "__main__":
    main()
