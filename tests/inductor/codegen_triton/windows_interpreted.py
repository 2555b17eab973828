"""Runs in a process of its own, in Triton's interpreter: random convolutions with what follows them, as one kernel,
compared with eager in float64. Arguments: the first seed and the last. Prints failures, then "done"."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from typing import Any

import interpreter  # noqa: F401 - before anything loads Triton
import torch
import torch.nn.functional as F
from products_interpreted import TOLERANCES, flat, launches, with_random_tiles

import stator
from stator.inductor.lower.operators import convolution

convolution.may_choose_for_gpu = lambda x, out: x.rank == 4  # CPU tensors stand for a GPU's


class Case:
    """A convolution, its tensors, and what follows it."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        torch.manual_seed(seed)
        with_random_tiles(chance)
        self.dtype = chance.choice((torch.float16, torch.bfloat16))
        self.groups = chance.choice((1, 1, 2, 3))
        self.channels, self.out = chance.choice((3, 8, 24, 40)), chance.choice((2, 8, 20, 40))
        kernel = [chance.choice((1, 2, 3, 5)) for _ in range(2)]
        self.rest = {
            "stride": [chance.choice((1, 1, 2, 3)) for _ in range(2)],
            "padding": [chance.choice((0, 0, 1, 2)) for _ in range(2)],
            "dilation": [chance.choice((1, 1, 2)) for _ in range(2)],
        }
        gaps = self.rest["dilation"]
        sides = [chance.choice((2, 5, 8)) + (size - 1) * gap for size, gap in zip(kernel, gaps, strict=True)]
        batch = chance.choice((1, 2, 3))
        shapes = ((batch, self.groups * self.channels, *sides), (self.groups * self.out, self.channels, *kernel))
        self.x, self.weight = [(torch.randn(shape) * 0.5).to(self.dtype) for shape in shapes]
        self.format = chance.choice((torch.channels_last, torch.contiguous_format))
        self.x = self.x.contiguous(memory_format=self.format)
        result = F.conv2d(self.x.float(), self.weight.float(), None, groups=self.groups, **self.rest)
        self.bias, self.scale = [torch.randn(result.shape[1], 1, 1).to(self.dtype) for _ in range(2)]
        self.other = torch.randn(result.shape).to(self.dtype).contiguous(memory_format=self.format)
        self.follower = chance.choice(list(FOLLOWERS))

    def function(self, x: Any, weight: Any, *given: Any) -> Any:
        y = F.conv2d(x, weight, None, groups=self.groups, **self.rest)
        return FOLLOWERS[self.follower](y, *given)


FOLLOWERS: dict[str, Callable[..., Any]] = {
    "nothing": lambda y, bias, scale, other: y,
    "norm": lambda y, bias, scale, other: torch.relu(y * scale + bias),
    "residual": lambda y, bias, scale, other: F.silu(y + bias) + other,
    "means": lambda y, bias, scale, other: (torch.relu(y * scale), torch.relu(y * scale).float().mean((2, 3))),
    "float": lambda y, bias, scale, other: y.float() * 2 - other,
    "rows": lambda y, bias, scale, other: (y + bias).flatten(2).transpose(1, 2).contiguous(),
    "another": lambda y, bias, scale, other: F.conv2d(
        torch.relu(y), bias.expand(-1, y.shape[1], 1).unsqueeze(-1) * 0.1
    ),
    "pool": lambda y, bias, scale, other: F.max_pool2d(y + bias, 2, 1, 1),
}


def check(seed: int) -> None:
    case = Case(seed)
    name = f"seed {seed}: {case.dtype} {list(case.x.shape)} {case.groups} groups, {list(case.weight.shape)} {case.rest}"
    name += f", {case.follower}, {case.format}"
    launches.clear()
    stator.reset()
    given = (case.x, case.weight, case.bias, case.scale, case.other)
    try:
        with torch.no_grad():
            found = flat(stator.compile(case.function, options={"verify": True}, fullgraph=True)(*given))
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc(limit=-6)}")
        return
    exact = flat(case.function(*[tensor.double() for tensor in given]))
    for expected, result in zip(exact, found, strict=True):
        error = float((result.double() - expected).norm() / expected.norm().clamp(min=1e-3))
        if not error < 2 * TOLERANCES[case.dtype] or result.shape != expected.shape:
            print(f"FAILED {name}: {error}")
    counted["launches"] += any(group.products.windows is not None for group in launches)


counted = {"launches": 0}


def main() -> None:
    first, last = map(int, sys.argv[1:])
    for seed in range(first, last):
        check(seed)
    if counted["launches"] < (last - first) // 2:
        print(f"FAILED: only {counted['launches']} launches")
    print("done")


if __name__ == "__main__":
    main()
