"""Exception groups and `except*` break the graph: which clause handles what, what goes on, contexts and texts."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import stator

X = torch.arange(3.0)


def shape(error: Any) -> Any:
    if isinstance(error, BaseExceptionGroup):
        return type(error).__name__, error.message, [shape(one) for one in error.exceptions]
    return error if error is None else (type(error).__name__, error.args)


def group() -> ExceptionGroup[Any]:
    inner = ExceptionGroup("inner", [KeyError("k"), ValueError("w")])
    return ExceptionGroup("outer", [ValueError("v"), inner, TypeError("t")])


def by_clauses(x: torch.Tensor) -> Any:
    seen = []
    try:
        raise group()
    except* ValueError as error:
        seen.append((shape(error), sys.exception() is error))
        x = x + 1
    except* (KeyError, TypeError) as error:
        seen.append((shape(error), str(error)))
        x = x * 2
    else:
        x = x - 100
    finally:
        x = x + 0.5
    return x, seen, sys.exception()


def nothing_raised(x: torch.Tensor) -> Any:
    try:
        x = x + 1
    except* ValueError:
        x = x * 0
    else:
        x = x * 3
    return x


def what_is_left(x: torch.Tensor) -> Any:
    found = None
    try:
        try:
            raise group()
        except* ValueError:
            x = x + 1
    except ExceptionGroup as error:
        found = shape(error), str(error)
    return x, found


def alone(x: torch.Tensor) -> Any:
    try:
        raise ValueError("v")
    except* ValueError as error:
        return_value = shape(error), shape(error.__context__)
    return x + 1, return_value


def another_one_is_raised(x: torch.Tensor) -> Any:
    try:
        try:
            raise group()
        except* ValueError:
            raise RuntimeError("new")  # noqa: B904
        except* KeyError as error:
            raise OSError("from") from error
    except ExceptionGroup as error:
        parts = [(shape(one), shape(one.__context__), shape(one.__cause__)) for one in error.exceptions]
        return x + len(parts), shape(error), parts
    return None


def taken_apart(x: torch.Tensor) -> Any:
    error = group()
    found, rest = error.split(ValueError)
    some = error.subgroup(lambda one: isinstance(one, TypeError))
    none = error.subgroup(OSError)
    own = error.derive([KeyError(5)])
    whole, nothing = error.split(ExceptionGroup)
    return x + 1, shape(found), shape(rest), shape(some), none, shape(own), whole is error, nothing


def made_of(x: torch.Tensor) -> Any:
    found = []
    one, other = BaseExceptionGroup("b", [ValueError(1)]), BaseExceptionGroup("b", (KeyboardInterrupt(),))
    for errors in ([], [KeyboardInterrupt()], [1]):
        try:
            found.append(shape(ExceptionGroup("g", errors)))
        except (TypeError, ValueError) as error:
            found.append((type(error).__name__, str(error)))
    return x + 1, type(one).__name__, type(other).__name__, found, isinstance(one, Exception)


def in_functions(x: torch.Tensor) -> Any:
    def fails(kind: Any) -> None:
        raise kind("q")

    errors = []
    for kind in (ValueError, KeyError, ValueError):
        try:
            fails(kind)
        except Exception as error:
            errors.append(error)
    counts = {}
    try:
        raise ExceptionGroup("all", errors)
    except* ValueError as caught:
        counts["value"] = len(caught.exceptions)
    except* KeyError as caught:
        counts["key"] = len(caught.exceptions)
    return x + counts["value"], counts


def given_back(x: torch.Tensor) -> Any:
    return x + 1, group()


PROGRAMS = [by_clauses, nothing_raised, what_is_left, alone, another_one_is_raised, taken_apart, made_of, in_functions]
PROGRAMS += [given_back]


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, BaseException):
        return shape(value)
    return [shown(one) for one in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda one: one.__name__)
def test_as_in_eager(function: Any) -> None:
    stator.reset()
    compiled = stator.compile(function, backend="eager")
    for call in range(2):
        assert shown(compiled(X + call)) == shown(function(X + call))
