"""Runs in a process of its own, without the interpreter: the kernels that models with symbolic sizes make, through the
Triton printer and the compiler of Triton down to machine code. Arguments: the mode, then models. Prints one line per
failure, then "done"."""

from __future__ import annotations

import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.dynamic.program import programs
from gpu_compiler import check_compiles
from triton import language as tl

import stator
from stator import pipeline
from stator.inductor.program.steps import KernelSource
from stator.runtime import triton_kernels

# 32-bit and 64-bit indices, each for one of the compute capabilities
VARIANTS = ((80, tl.int32), (90, tl.int64))


class NoGpu(Exception):
    """Raised by the first kernel of a program."""


def kernels(names: Sequence[str], mode: str) -> list[KernelSource]:
    found: dict[str, KernelSource] = {}

    def no_gpu(*arguments: Any) -> None:
        raise NoGpu

    def collect(sources: Sequence[KernelSource]) -> dict[str, Callable[..., None]]:
        found.update({source.symbol: source for source in sources})
        return {source.symbol: no_gpu for source in sources}

    pipeline.LANGUAGES["cpu"] = "triton"
    triton_kernels.load_kernels = collect
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
    with tempfile.TemporaryDirectory() as folder:
        for source in kernels(sys.argv[2:], sys.argv[1]):
            for capability, index in VARIANTS:
                try:
                    check_compiles(source, Path(folder), capability, index)
                except Exception:
                    print(f"FAILED {source.name}:\n{traceback.format_exc(limit=-4)}\n{source.source}")
    print("done")


if __name__ == "__main__":
    main()
