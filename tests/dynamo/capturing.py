"""Runs a program eagerly and compiled on equal inputs and compares everything it returned and changed."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

import stator
from stator.base import counters

Maker = Callable[[], Any]
Program = tuple[Callable[..., Any], tuple[Maker, ...]]


def collector() -> tuple[list[Any], Callable[..., Any]]:
    """A list of pytest-ready programs and the decorator `program(*makers of arguments)` that fills it."""
    programs: list[Any] = []

    def program(*makers: Maker) -> Callable[[Any], Any]:
        def register(function: Any) -> Any:
            programs.append((function, makers))
            return function

        return register

    return programs, program


def name_of(program: Any) -> str:
    return program[0].__name__


def check(program: Program, *, fullgraph: bool = True) -> None:
    """Two compiled calls (the second finds the compiled code) against eager; under fullgraph also no recompilation."""
    function, makers = program
    expected, eager_args = _call(function, makers)
    stator.reset()
    compiled = stator.compile(function, backend="eager", fullgraph=fullgraph)
    assert_same((expected, eager_args), _call(compiled, makers), name_of(program))
    counters.clear()
    assert_same((expected, eager_args), _call(compiled, makers), name_of(program))
    if fullgraph:
        assert not counters.counts["graphs"], f"{name_of(program)} was compiled twice for equal arguments"


def _call(function: Callable[..., Any], makers: tuple[Maker, ...]) -> tuple[Any, list[Any]]:
    args = [maker() for maker in makers]
    return function(*args), args


def assert_same(expected: Any, actual: Any, path: str, seen: set[tuple[int, int]] | None = None) -> None:
    """Same types, same structure, same attributes, tensors equal bit by bit."""
    seen = set() if seen is None else seen
    assert type(expected) is type(actual), f"{path}: {type(expected)} became {type(actual)}"
    if isinstance(expected, torch.Tensor):
        assert expected.dtype == actual.dtype and expected.requires_grad == actual.requires_grad, path
        assert torch.equal(expected, actual), f"{path}: {expected} became {actual}"
        return
    if (id(expected), id(actual)) in seen:
        return
    seen.add((id(expected), id(actual)))
    if isinstance(expected, (list, tuple, deque)):
        assert len(expected) == len(actual), path
        for at, (one, other) in enumerate(zip(expected, actual, strict=True)):
            assert_same(one, other, f"{path}[{at}]", seen)
    elif isinstance(expected, dict):
        assert list(expected) == list(actual), f"{path}: keys {list(expected)} became {list(actual)}"
        for key in expected:
            assert_same(expected[key], actual[key], f"{path}[{key!r}]", seen)
    elif hasattr(expected, "__dict__") and not isinstance(expected, (type, enum.Enum)) and not callable(expected):
        assert_same(vars(expected), vars(actual), f"{path}.__dict__", seen)
    elif not callable(expected):
        assert expected == actual, f"{path}: {expected!r} became {actual!r}"
