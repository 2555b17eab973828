"""An input that a compiled program has written to is at the version at which it is in eager: each write counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import stator

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "one": lambda x: x.add_(1),
    "three": lambda x: x.add_(1).mul_(2).sub_(1),
    "items": lambda x: [x.__setitem__(0, 1.0), x.__setitem__(1, x[0])],
    "views": lambda x: [row.add_(1) for row in x.unbind()],
    "of nothing": lambda x: x[:0].add_(1),
    "taken back": lambda x: x.add_(1).sub_(1),
    "out": lambda x: torch.add(torch.mul(x, 2, out=x), 1, out=x),
    "detached": lambda x: x.detach().mul_(2).add_(1),
    "data": lambda x: x.data.add_(1),
    "data and itself": lambda x: [x.data.add_(1), x.mul_(2), x.mul_(3)],
    "foreach": lambda x: torch._foreach_add_([x, x], 1.0),
    "statistics": lambda x: functional.batch_norm(torch.ones(2, 3), x[0], x[1], training=True),
}


REFUSED = ("views", "out", "statistics")  # by eager, of inputs that require grad


def _same_version_as_in_eager(name: str, weight: torch.Tensor, make: Callable[[], torch.Tensor]) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        WRITES[name](x)
        return y * w

    found = []
    for run in (program, stator.compile(program)):
        x = make()
        run(x, weight)
        found.append(x._version)
    assert found[1] == found[0]


@pytest.mark.parametrize("name", WRITES)
def test_versions_of_inputs(name: str) -> None:
    _same_version_as_in_eager(name, torch.ones(3, 3), lambda: torch.rand(3, 3))


@pytest.mark.parametrize("name", WRITES)
def test_versions_of_inputs_in_training(name: str) -> None:
    _same_version_as_in_eager(name, torch.ones(3, 3, requires_grad=True), lambda: torch.rand(3, 3))


@pytest.mark.parametrize("name", [name for name in WRITES if name not in REFUSED])
def test_versions_of_inputs_that_require_grad(name: str) -> None:
    _same_version_as_in_eager(name, torch.ones(3, 3), lambda: torch.rand(3, 3, requires_grad=True) * 1)


def test_versions_read_by_the_program() -> None:
    def program(x: torch.Tensor) -> tuple[int, int]:
        before = x._version
        x.add_(1)
        x.mul_(2)
        return before, x._version

    assert stator.compile(program)(torch.ones(3)) == program(torch.ones(3))


def test_statistics_may_change_between_forward_and_backward() -> None:
    norm = torch.nn.BatchNorm1d(3)
    x = torch.ones(2, 3, requires_grad=True)
    y = norm.eval()(x)  # saves the running statistics
    stator.compile(norm.train())(torch.rand(4, 3))
    y.sum().backward()
    assert x.grad is not None
