"""Classes that are called to make tensors (`torch.FloatTensor(…)`) in captured code: of numbers, and of sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.arange(6.0).reshape(2, 3) - 2

OF_NUMBERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "default type": lambda x: torch.Tensor([1, 2.5, -0.0]) * x,
    "nested": lambda x: torch.LongTensor([[1, 2, 3], (3, 4, 5)]) + x,
    "half of what half cannot hold": lambda x: torch.HalfTensor([0.1, 1e9, float("nan")]),
    "whole numbers of parts": lambda x: torch.IntTensor([1.7, -1.7]),
    "truths": lambda x: torch.BoolTensor([True, False, True]) & (x > 0),
    "an index": lambda x: x[:, : torch.IntTensor([2])[0]],
    "none at all": lambda x: (torch.FloatTensor(), torch.LongTensor([]), torch.FloatTensor([[], []]), x + 1),
    "numbers of the call": lambda x: torch.LongTensor([x.shape[0], x.shape[1]]) + 1,
}
OF_SIZES: dict[str, Callable[[torch.Tensor], Any]] = {
    "sizes": lambda x: torch.ByteTensor(2, 3).fill_(1) + x,
    "a size": lambda x: torch.DoubleTensor(x.size()).zero_() + x,
}


@pytest.mark.parametrize("name", [*OF_NUMBERS, *OF_SIZES])
def test_tensors_are_those_of_eager(name: str) -> None:
    function = (OF_NUMBERS | OF_SIZES)[name]
    expected, actual = function(X), stator.compile(function, backend="eager", fullgraph=True)(X)
    for e, a in zip(*((r if isinstance(r, tuple) else (r,)) for r in (expected, actual)), strict=True):
        assert (a.dtype, a.shape) == (e.dtype, e.shape) and torch.equal(a.nan_to_num(9), e.nan_to_num(9))


def test_the_default_dtype_is_that_of_the_call() -> None:
    compiled = stator.compile(lambda x: torch.Tensor([0.1]) + x, backend="eager", fullgraph=True)
    assert compiled(X).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(compiled(X), torch.Tensor([0.1]) + X)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_refused_is_refused_as_in_eager() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return torch.IntTensor(["a"]) + x
        except (TypeError, ValueError) as error:
            return type(error), str(error), x + 1

    expected, actual = program(X), stator.compile(program, backend="eager")(X)
    assert actual[:2] == expected[:2]


def test_a_tensor_of_a_tensor_shares_its_memory_around_a_break() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.FloatTensor(x).add_(1)
        return x * 2

    x = X.clone()
    assert torch.equal(stator.compile(program, backend="eager")(x), (X + 1) * 2) and torch.equal(x, X + 1)
