"""Repeated sequences, tensors of known value as indices, `index` between bounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

COUNT = 2


def _times_a_global(x: torch.Tensor) -> torch.Tensor:
    return sum([x, x + 1] * COUNT)  # type: ignore[return-value]


def _times_a_default(x: torch.Tensor, count: int = 3) -> torch.Tensor:
    return sum(count * (x, x + 1))  # type: ignore[return-value]


def _product(x: torch.Tensor) -> torch.Tensor:
    return sum(one * number for one, number in itertools.product([x, x + 1], [1, 2]))  # type: ignore[return-value]


def _tensor_as_index(x: torch.Tensor) -> torch.Tensor:
    return [x, x + 1, x + 2][torch.tensor(2)] + (x, x * 3)[torch.as_tensor(-1)]


def _index_between(x: torch.Tensor) -> torch.Tensor:
    numbers = [1, 2, 3, 1, 2, 3]
    return x + numbers.index(3) + numbers.index(1, 1) + numbers.index(2, -3, 5) * 10 + (1, 2, 1).index(1, 1, 99)


def _index_not_between(x: torch.Tensor) -> torch.Tensor:
    try:
        return x + [1, 2, 3].index(3, 0, 2)
    except ValueError as error:
        return x + len(str(error))


@pytest.mark.parametrize(
    "function",
    [_times_a_global, _times_a_default, _product, _tensor_as_index, _index_between, _index_not_between],
)
def test_one_graph(function: Callable[..., Any]) -> None:
    x = torch.randn(3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(stator.compile(function, backend="eager", fullgraph=True)(x), function(x))


def test_a_number_that_changes() -> None:
    def f(x: torch.Tensor, count: int) -> torch.Tensor:
        return torch.stack([x] * count)

    compiled, x = stator.compile(f, backend="eager"), torch.ones(3)
    for count in (1, 3, 2, 5, 1):
        assert torch.equal(compiled(x, count), f(x, count))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_operators_that_give_nothing_need_no_shapes(backend: str) -> None:
    """An operator registered for the CPU alone, that only writes to its arguments, some of which may be missing."""
    x = torch.randn(3, generator=torch.Generator().manual_seed(0))

    def f(x: torch.Tensor) -> torch.Tensor:
        made = x.clone()
        torch.ops.stator_test_sequence.shift(made, x, 2)
        torch.ops.stator_test_sequence.shift(None, x, 2)
        return made * 2

    with torch.library._scoped_library("stator_test_sequence", "FRAGMENT") as library:
        library.define("shift(Tensor(a!)? target, Tensor by, int scale) -> ()")
        library.impl("shift", lambda target, by, scale: None if target is None else _shift(target, by, scale), "CPU")
        assert torch.allclose(stator.compile(f, backend=backend)(x), (x + x * 2) * 2)


def _shift(target: torch.Tensor, by: torch.Tensor, scale: int) -> None:
    target.add_(by, alpha=scale)
