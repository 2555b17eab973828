"""contextvars.ContextVar in compiled code: reads are captured, `set` and `reset` break the graph; all in the context of
the call, as in eager."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.arange(3.0)
FACTOR: contextvars.ContextVar[Any] = contextvars.ContextVar("factor", default=2)
EMPTY: contextvars.ContextVar[Any] = contextvars.ContextVar("empty")


def in_a_context(function: Callable[..., Any], *args: Any) -> tuple[Any, Any, Any]:
    """What it gives, and what the variables hold then."""

    def run() -> tuple[Any, Any, Any]:
        result = function(*args)
        return result, FACTOR.get(), EMPTY.get(None)

    return contextvars.copy_context().run(run)


def assert_as_eager(program: Callable[..., Any], *args: Any) -> None:
    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(in_a_context(compiled, *args), in_a_context(program, *args), rtol=0, atol=0)


def test_what_is_read_is_guarded() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * FACTOR.get()

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X * 2)
    token = FACTOR.set(5)
    try:
        assert torch.equal(compiled(X), X * 5)
    finally:
        FACTOR.reset(token)
    assert torch.equal(compiled(X), X * 2)


def test_a_variable_without_a_value() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return EMPTY.get()
        except LookupError:
            return x * EMPTY.get(3) + FACTOR.get(1)

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X * 3 + 1)
    assert in_a_context(lambda: (EMPTY.set(7), compiled(X))[1])[0] == 7


def test_set_and_put_back() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        outer = FACTOR.set(x + 1)
        inner = FACTOR.set(10)
        y = x * FACTOR.get()
        FACTOR.reset(inner)
        y = y + FACTOR.get()
        FACTOR.reset(outer)
        return y * FACTOR.get()

    assert_as_eager(program, X)


def test_set_for_good() -> None:
    def program(x: torch.Tensor) -> Any:
        before = FACTOR.get()
        FACTOR.set([x * 2, before])
        EMPTY.set(x - 1)
        return x + before, FACTOR.get()[1]

    assert_as_eager(program, X)


def test_put_back_in_finally_where_the_block_breaks_the_graph() -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append(FACTOR.get())

    def program(x: torch.Tensor) -> torch.Tensor:
        token = FACTOR.set(4)
        try:
            y = x * FACTOR.get()
            stator.disable(look)()
            return y + FACTOR.get()
        finally:
            FACTOR.reset(token)

    assert_as_eager(program, X)
    assert seen == [4] * 4


def test_an_error_leaves_what_was_set() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        FACTOR.set(9)
        raise ValueError(x.shape)

    def caught(function: Callable[..., Any]) -> Any:
        with pytest.raises(ValueError, match="3"):
            function(X)

    compiled = stator.compile(program, backend="eager")
    assert in_a_context(caught, compiled) == in_a_context(caught, program) == (None, 9, None)


def test_a_token_serves_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        token = FACTOR.set(4)
        FACTOR.reset(token)
        try:
            FACTOR.reset(token)
        except RuntimeError:
            return x + 1
        return x + 2

    assert_as_eager(program, X)


def test_tokens_leave_the_frame() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, FACTOR.set(6)

    compiled = stator.compile(program, backend="eager")

    def run() -> Any:
        y, token = compiled(X)
        before = token.old_value
        held = FACTOR.get()
        FACTOR.reset(token)
        return y, before is token.MISSING, held, FACTOR.get()

    y, missing, held, after = contextvars.copy_context().run(run)
    assert torch.equal(y, X + 1) and (missing, held, after) == (True, 6, 2)
