"""`is_compiling()` is True in captured code, unless the program fails when it hears that."""

from __future__ import annotations

import pytest
import torch

import stator
from stator.base import counters

X = torch.arange(4.0)
ALL, NONE = torch.ones(4), torch.zeros(4)


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As libraries make masks: they do not look at data when compiled. What they do then is wrong here."""
    if torch.compiler.is_compiling() or not mask.all():
        return (x * mask).view(7)
    return x + 1


def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return masked(x * 2, mask) * 3


def test_a_library_that_fails_when_compiled_is_told_that_it_is_not() -> None:
    compiled = stator.compile(program, backend="eager")
    assert torch.equal(compiled(X, ALL), program(X, ALL)) and torch.equal(compiled(X, ALL), program(X, ALL))
    with pytest.raises(RuntimeError, match="shape '\\[7\\]' is invalid"):
        compiled(X, NONE)


def test_what_the_program_itself_raises_then_is_not_raised() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if stator.is_compiling():
            raise ValueError("not to be compiled")
        return y * 2

    counters.clear()
    compiled = stator.compile(refuses, backend="eager")
    assert torch.equal(compiled(X), refuses(X))
    assert counters.counts["graphs"] == 1 and counters.counts["graph_breaks"] == 0


def test_a_failure_that_is_caught_is_none() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            if stator.is_compiling():
                raise ValueError
            return x + 1
        except ValueError:
            return x + 2

    assert torch.equal(stator.compile(program, backend="eager")(X), X + 2)


def test_an_error_of_eager_is_raised_and_the_next_call_is_told_again() -> None:
    def program(x: torch.Tensor, size: int) -> torch.Tensor:
        return x.view(size) + (1 if stator.is_compiling() else 10)

    compiled = stator.compile(program, backend="eager")
    with pytest.raises(RuntimeError, match="shape '\\[5\\]' is invalid"):
        compiled(X, 5)
    assert torch.equal(compiled(X, 4), X + 1)


def test_fullgraph_shows_the_error_that_came_first() -> None:
    many = torch.arange(32.0)  # a branch on a shorter vector of floats would be guarded
    with pytest.raises(stator.Unsupported, match="shape '\\[7\\]' is invalid"):
        stator.compile(program, backend="eager", fullgraph=True)(many, torch.ones(32))
