"""Runs in a process of its own, in Triton's interpreter: kernels with other blocks than the rule's, compared with
eager. Prints failures, then "done"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import interpreter  # noqa: F401 - before anything loads Triton
import torch
import torch.nn.functional as F

import stator
from stator.inductor.codegen.kernel import Kernel
from stator.inductor.codegen.triton import printer
from stator.inductor.codegen.triton.blocks import VARIATIONS, Blocks, Variation, varied

HALF = torch.bfloat16
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "an odd number of elements": (lambda x: F.gelu(x) * 2, lambda: [torch.randn(5003).to(HALF)]),
    "rows with a value of their own": (lambda x, y: x * y, lambda: [torch.randn(6, 1024), torch.randn(6, 1)]),
    "a tile": (lambda x: (x.t() + 1).contiguous(), lambda: [torch.randn(67, 131)]),
    "short rows": (lambda x: torch.softmax(x, -1), lambda: [torch.randn(33, 77)]),
    "rows in a loop": (lambda x: torch.var_mean(x, -1), lambda: [torch.randn(2, 9001) + 3]),
    "long odd rows": (lambda x: torch.log_softmax(x, -1), lambda: [torch.randn(2, 16386)]),
    "sums of columns": (lambda x: (x * x).sum(0), lambda: [torch.randn(700, 40)]),
    "norm of columns": (lambda x: (x - x.mean(0)) * x.var(0).rsqrt(), lambda: [torch.randn(300, 70)]),
    "one sum": (lambda x: x.sum(), lambda: [torch.rand(20000)]),
}


def main() -> None:
    rule, current = printer.choose_blocks, Variation()

    def choose(kernel: Kernel) -> Blocks:
        return varied(kernel, rule(kernel), current)

    printer.choose_blocks = choose
    for current in VARIATIONS:
        for name, (function, make) in PROGRAMS.items():
            torch.manual_seed(0)
            given = make()
            stator.reset()
            try:
                torch.testing.assert_close(stator.compile(function, fullgraph=True)(*given), function(*given))
            except Exception as error:
                print(f"FAILED {name}, {current}: {type(error).__name__}: {error}")
    print("done")


if __name__ == "__main__":
    main()
