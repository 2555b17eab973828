"""Runs in a process of its own, in Triton's interpreter: models compiled with symbolic sizes, compared with eager at
several. Arguments: the mode, then models. Prints failures, then "done"."""

from __future__ import annotations

import sys

import interpreter  # noqa: F401 - before anything loads Triton
import torch
from benchmarks.dynamic.measure import copied, difference
from benchmarks.dynamic.program import programs

import stator
from stator.base import counters

TOLERANCE = 1e-4  # of the largest magnitude in each output


def main() -> None:
    mode = sys.argv[1]
    for name in sys.argv[2:]:
        program = programs()[name]
        with torch.set_grad_enabled(mode == "training"):
            eager = program.step(mode, program.model(mode), lambda model: model)
            step = program.step(mode, program.model(mode), lambda model: stator.compile(model, dynamic=True))
            before = counters.counts["dynamo.compiled_frames"]
            for size in program.few[:3]:
                expected = copied(eager(program.arguments(size)))
                found = difference(copied(step(program.arguments(size))), expected, mode)
                if not found < TOLERANCE:
                    print(f"FAILED {name} at {size}: {found}")
            if counters.counts["dynamo.compiled_frames"] - before != 1:
                print(f"FAILED {name}: not one compilation")
    print("done")


if __name__ == "__main__":
    main()
