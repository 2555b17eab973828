"""Values without items where an instruction takes a sequence apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator


def unpacked(x: torch.Tensor, value: Any) -> Any:
    try:
        _one, _other = value
    except TypeError as error:
        return x + 1, str(error)


def unpacked_with_a_rest(x: torch.Tensor, value: Any) -> Any:
    try:
        _one, *_others = value
    except TypeError as error:
        return x + 1, str(error)


def spread(x: torch.Tensor, value: Any) -> Any:
    try:
        return [x, *value]
    except TypeError as error:
        return x + 1, str(error)


def a_slice_as_a_key(x: torch.Tensor, value: Any) -> Any:
    try:
        return x + 1, {slice(1, 2): value}[slice(1, 2)]
    except TypeError as error:
        return x + 1, str(error)


@pytest.mark.parametrize("program", [unpacked, unpacked_with_a_rest, spread, a_slice_as_a_key])
def test_messages_are_those_of_the_interpreter(program: Any) -> None:
    compiled, x = stator.compile(program, backend="eager"), torch.ones(2)
    for value in (3, 4, 2.5, None, True):
        assert compiled(x, value)[1] == program(x, value)[1]
