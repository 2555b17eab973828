"""Numbers that only the run can tell: in checks, in messages, in max() and min(), and as parts to write: one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.tensor([1.0, -2.0, 3.0, -4.0])


def one_graph(program: Callable[..., Any], *calls: torch.Tensor) -> None:
    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for x in calls:
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)


def checked(x: torch.Tensor) -> torch.Tensor:
    found = x[x > 0]
    if found.shape[0] != 2:
        raise ValueError(f"{found.shape[0]:>3} numbers, not two")
    return found + 1


def checked_by_torch(x: torch.Tensor) -> torch.Tensor:
    found = x[x > 0]
    torch._check_with(IndexError, found.numel() == 2, lambda: f"found {found.numel()} of {x.numel()}")
    return found * 2


def asserted(x: torch.Tensor) -> torch.Tensor:
    found = x[x > 0]
    assert found.shape[0] == 2, f"found {found.shape[0]}"
    return found - 1


@pytest.mark.parametrize("program", [checked, checked_by_torch, asserted])
def test_checks_are_made_by_the_graph_and_raise_as_the_program(program: Callable[..., Any]) -> None:
    one_graph(program, X, -X)
    compiled = stator.compile(program, backend="eager")
    assert torch.equal(compiled(X), program(X))
    wrong = X.abs()
    with pytest.raises(Exception) as expected:
        program(wrong)
    with pytest.raises(type(expected.value)) as actual:
        compiled(wrong)
    assert str(actual.value) == str(expected.value)
    assert torch.equal(compiled(-X), program(-X))


def test_text_with_such_numbers_is_made_when_the_graph_has_run() -> None:
    def program(x: torch.Tensor) -> Any:
        found = x[x > 0]
        return found, f"{found.shape[0]:03d} of {x.shape[0]}, {found.shape[0]!r}"

    compiled = stator.compile(program, backend="eager")
    for x in (X, X.abs(), -X.abs()):
        (found, text), (expected, expected_text) = compiled(x), program(x)
        assert torch.equal(found, expected) and text == expected_text


@pytest.mark.parametrize("extreme", [max, min])
def test_the_largest_and_smallest_of_several(extreme: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        parts = [x[x > limit] for limit in (-3.0, 0.0, 2.0)]
        padded = x.new_zeros(len(parts), extreme(part.shape[0] for part in parts))
        return padded.shape[1] * x + padded.sum()

    one_graph(program, X, -X, X.abs())


def test_a_branch_that_does_not_raise_breaks_the_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        found = x[x > 0]
        return found + 1 if found.shape[0] > 2 else found - 1

    compiled = stator.compile(program, backend="eager")
    for x in (X, X.abs(), X):
        assert torch.equal(compiled(x), program(x))
    with pytest.raises(stator.Unsupported, match="data-dependent-jump"):
        stator.compile(program, backend="eager", fullgraph=True)(X)


def padded(x: torch.Tensor) -> torch.Tensor:
    parts = (x[x > 0], x[x > 2])
    out = x.new_zeros(2, max(part.shape[0] for part in parts))
    for at, part in enumerate(parts):
        out[at, : part.shape[0]] = part
    return out


def by_segments(x: torch.Tensor) -> torch.Tensor:
    ends = torch.cumsum((x > 0).long(), 0)
    out = torch.zeros(5)
    for at in range(3):
        begin, end = ends[at], ends[at + 1]
        out[begin:end] = (x[begin:end] * 2).double()
    out[begin:] = x.sum()
    return out


@pytest.mark.parametrize("program", [padded, by_segments])
def test_parts_of_sizes_that_only_the_run_can_tell_are_written(program: Callable[..., Any]) -> None:
    one_graph(program, X, -X, X.abs())


def test_functions_that_take_another_number_of_numbers() -> None:
    def program(x: torch.Tensor) -> Any:
        count = int(x.abs().sum().item())
        try:
            return x + round(count, -1), abs(count, 2)  # type: ignore[call-arg]
        except TypeError as error:
            return x + round(count, -1), str(error)

    compiled = stator.compile(program, backend="eager")
    for x in (X, X * 17):
        assert repr(compiled(x)) == repr(program(x))
