"""Runs in a process of its own, in Triton's interpreter: whole graphs with symbolic sizes, compiled once with Triton
kernels and compared with eager at many sizes. Prints failures, then "done"."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import interpreter  # noqa: F401 - before anything loads Triton
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from all_sizes import check_at_sizes, compiled_once
from test_symbolic_sizes import PROGRAMS

from stator.inductor.codegen.triton import printer

# below a block's size, around it, and rows of several blocks
SIZES = [(6, 4), (2, 2), (3, 17), (7, 33), (64, 16), (3, 300)]
# kernels of these programs are right at sizes of 1, too, for which callers compile versions of their own
ALSO_ONE = ("pointwise", "sum of rows", "mean of columns", "mean of all", "softmax", "layer norm", "padded", "largest")
# the graphs here are lowered for CPUs: for GPUs its scatter, whose last store counts, is a library call
CALLED = ("distances of pairs",)
ONES = [(1, 17), (3, 1), (1, 1)]


def arguments(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, columns), torch.randn(columns)


def check_at_ones(name: str) -> None:
    compiled, _ = compiled_once(PROGRAMS[name], arguments(*SIZES[0]), [("rows", "columns"), ("columns",)])
    for sizes in ONES:
        tensors = arguments(*sizes)
        expected = PROGRAMS[name](*tensors)
        expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        torch.testing.assert_close(list(compiled(*tensors)), expected, rtol=1e-4, atol=1e-4)


def main() -> None:
    wide, sizes = sys.argv[1] == "wide", SIZES if sys.argv[2] == "all" else SIZES[:3]
    if wide:  # no number fits in 32 bits
        printer._INDEX_LIMIT = 1
    for name in [name for name in PROGRAMS if name not in CALLED]:
        program = PROGRAMS[name]
        torch.manual_seed(0)
        try:
            names = [("rows", "columns"), ("columns",)]
            check_at_sizes(program, arguments, names, sizes, rtol=1e-4, atol=1e-4)
            if name in ALSO_ONE:
                check_at_ones(name)
        except Exception:
            print(f"FAILED {name}:\n{traceback.format_exc(limit=-4)}")
    print("done")


if __name__ == "__main__":
    main()
