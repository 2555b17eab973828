"""Runs in a process of its own, in Triton's interpreter: depthwise convolutions as loops, and their gradients, compared
with eager, also at other sizes than the first. Argument: "all" kinds or "few". Prints failures, then "done"."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interpreter  # noqa: F401 - before anything loads Triton
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "lower"))

from depthwise_cases import depthwise

import stator
from stator.base import counters

CHOSEN = (
    "3 x 3",
    "4 x 3 by 3 and 2",
    "5 x 5 by 2, without a bias",
    "dilated",
    "4 along one axis",
    "31 along one axis",
    "three axes",
)
FEW = ("4 x 3 by 3 and 2", "31 along one axis")


def step(call: Callable[..., Any], model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result behind an activation, and the gradients."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    result = call(x)
    result.square().sum().backward()
    return [result.detach(), x.grad, *(one.grad for one in model.parameters())]


def check(name: str, last: bool) -> None:
    torch.manual_seed(0)
    model, shape = depthwise(name)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(model(x))

    stator.reset()
    compiled = stator.compile(forward, fullgraph=True, dynamic=True)
    for more in (0, 3):
        x = torch.randn(shape[0] + more, shape[1], *(size + more for size in shape[2:]))
        if last:
            x = x.movedim(1, -1).contiguous().movedim(-1, 1)
        torch.testing.assert_close(step(compiled, model, x), step(forward, model, x), rtol=1e-4, atol=1e-4)


def main() -> None:
    for at, name in enumerate(CHOSEN if sys.argv[1] == "all" else FEW):
        before = counters.counts["dynamo.compiled_frames"]
        try:
            check(name, last=at % 2 == 0)
        except Exception as error:
            print(f"FAILED {name}: {type(error).__name__}: {error}")
        if counters.counts["dynamo.compiled_frames"] - before != 1:
            print(f"FAILED {name}: not one compilation")
    print("done")


if __name__ == "__main__":
    main()
