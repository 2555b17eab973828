"""Comparisons of NumPy's numbers give NumPy's truths, with sequences arrays, wherever they are made."""

from __future__ import annotations

import operator
from typing import Any

import numpy
import pytest
import torch

import stator

NUMBERS = [numpy.float64(1.5), numpy.float32(1.5), numpy.int64(3), numpy.float64("nan")]
OTHERS: list[Any] = [*NUMBERS, 1.5, 3, True, numpy.bool_(True), None, "text", (1.5,), [1.5], [1.5, 3]]


def compared(x: torch.Tensor, one: Any, other: Any) -> tuple[list[Any], torch.Tensor]:
    found: list[Any] = []
    for function in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        try:
            result = function(one, other)
        except TypeError as error:
            result = str(error)
        found.append((type(result), repr(result)))
    return found, x + 1


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize("other", OTHERS, ids=repr)
def test_comparisons(number: Any, other: Any) -> None:
    compiled = stator.compile(compared, backend="eager")
    for pair in ((number, other), (other, number)):
        assert compiled(torch.ones(2), *pair)[0] == compared(torch.ones(2), *pair)[0]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_truths_in_the_place_of_numbers(backend: str) -> None:
    def program(x: torch.Tensor, one: Any, other: Any) -> Any:
        truth = one == other
        made = x * truth, x + (one != other), torch.where(torch.tensor(bool(truth)), x, x * 2)
        return made, bool(truth), int(truth), not truth, repr(truth & (one > other)), repr(truth + 1)

    compiled = stator.compile(program, backend=backend)
    for number in (numpy.float64(1.5), numpy.float32(1.5), numpy.int64(2)):
        for other in (1.5, 2):
            expected = program(torch.ones(2), number, other)
            found = compiled(torch.ones(2), number, other)
            assert found[1:] == expected[1:]
            assert all(map(torch.equal, found[0], expected[0]))


def test_which_truth_it_is() -> None:
    def program(x: torch.Tensor, one: Any) -> Any:
        truth = one == 1.5
        return truth is numpy.True_, truth is numpy.False_, truth is True, x + 1

    compiled = stator.compile(program, backend="eager")
    for number in (numpy.float64(1.5), numpy.float64(2)):
        assert compiled(torch.ones(2), number)[:3] == program(torch.ones(2), number)[:3]
