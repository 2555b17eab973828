"""Lists that a module or a global holds, as arguments of torch functions and of Python's operators: no break."""

from __future__ import annotations

import pytest
import torch

import stator

SIZES = [2, 3]


class Holder(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.sizes = function, [2, 2, 4]

    def forward(self, x: torch.Tensor):
        return self.function(self, x)


def pooled(module, x):
    return torch.nn.functional.max_pool2d(x, module.sizes[:2], padding=[1, 1])


def split(module, x):
    return torch.split(x, module.sizes, 1)


def indexed(module, x):
    return x[:, module.sizes], x.permute([0, 2, 1, 3]).reshape(SIZES[0], -1)


def given_a_global(module, x):
    return x.sum(SIZES), torch.zeros(SIZES)


def combined(module, x):
    joined = SIZES + module.sizes
    return x.sum() + len(joined), joined * 2, [*SIZES] == SIZES, module.sizes == SIZES, SIZES < [9]


@pytest.mark.parametrize("function", [pooled, split, indexed, given_a_global, combined])
def test_no_break(function) -> None:
    x = torch.randn(2, 8, 4, 4)
    module = Holder(function)
    compiled = stator.compile(module, backend="eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), module(x), rtol=0, atol=0)
        module.sizes.reverse()
