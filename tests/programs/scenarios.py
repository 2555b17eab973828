"""Scenarios: functions of `compiled`, which stands for stator.compile or for doing nothing; both must give the same.

A scenario changes things between calls of what it compiled, and returns all that it saw.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import stator

Scenario = Callable[[Callable[..., Any]], Any]


def collector() -> tuple[list[Scenario], Callable[[Scenario], Scenario]]:
    """A list of scenarios, and the decorator that fills it."""
    scenarios: list[Scenario] = []

    def scenario(function: Scenario) -> Scenario:
        scenarios.append(function)
        return function

    return scenarios, scenario


def written(value: Any) -> Any:
    """The value with tensors, containers and numbers written out, so that == compares types and bits."""
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.dtype, value.requires_grad, tuple(value.shape), repr(value.detach().tolist())
    if isinstance(value, dict):
        return type(value).__name__, [(written(key), written(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [written(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(map(repr, value))
    if isinstance(value, BaseException):
        return type(value).__name__, str(value)
    return type(value).__name__, repr(value) if isinstance(value, int | float | complex | str | bytes | None) else ""


def _outcome(function: Scenario, compiled: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    try:
        return written(function(compiled))
    except Exception as error:
        return type(error).__name__, str(error)


def check(function: Scenario, backend: str = "eager") -> None:
    """The scenario gives the same with and without compilation; whether it can be compiled is not asked here."""
    expected = _outcome(function, lambda target, **options: target)
    stator.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = _outcome(function, lambda target, **options: stator.compile(target, backend=backend, **options))
    assert actual == expected, function.__name__
