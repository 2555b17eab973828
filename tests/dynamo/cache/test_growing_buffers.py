"""Buffers whose sizes change from call to call: one program for all sizes from the second one on."""

from __future__ import annotations

import pytest
import torch
from tests.differential import Counts

import stator


class Appending(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buf", torch.zeros(1, 4))
        self.scale = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.buf = torch.cat([self.buf, x])
        return (self.buf * self.scale).cumsum(0)


class Reading(Appending):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.buf * self.scale).sum(0) + x


def step(module: torch.nn.Module, run, x: torch.Tensor) -> torch.Tensor:
    if type(module) is Reading:
        module.buf = torch.cat([module.buf, x])
    found = run(x)
    found.sum().backward()
    return found


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", [Appending, Reading])
def test_a_buffer_that_grows_is_compiled_twice(kind: type[Appending], dynamic: bool | None) -> None:
    first, second = kind(), kind()
    second.load_state_dict(first.state_dict())
    compiled = stator.compile(first, backend="aot_eager", dynamic=dynamic)
    counts = Counts()
    for _ in range(6):
        x = torch.randn(2, 4)
        torch.testing.assert_close(step(first, compiled, x), step(second, second, x))
        torch.testing.assert_close(first.buf, second.buf)
    torch.testing.assert_close(first.scale.grad, second.scale.grad)
    assert counts.compilations == 2


def test_sizes_of_other_modules_buffers_are_constants() -> None:
    compiled = stator.compile(Reading.forward, backend="aot_eager")
    counts, x = Counts(), torch.randn(5, 4)
    for rows in (2, 3, 4, 5):
        module = Reading()
        module.buf = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(module, x), module(x))
    assert counts.compilations == 4
