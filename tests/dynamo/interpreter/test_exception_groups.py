"""Exception groups and `except*` in one graph: which clause handles what, what goes on, contexts and texts."""

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


def alone_and_unmatched(x: torch.Tensor) -> Any:
    try:
        try:
            raise KeyError("k")
        except* ValueError:
            x = x * 0
    except KeyError as error:
        return x + 1, shape(error)
    return None


def raised_again_by_itself(x: torch.Tensor) -> Any:
    try:
        try:
            raise group()
        except* ValueError:
            x = x + 1
            raise
        except* KeyError:
            x = x + 2
    except ExceptionGroup as error:
        return x, shape(error)
    return None


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


def all_handled_but_new(x: torch.Tensor) -> Any:
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1)])
        except* ValueError:
            raise RuntimeError("new")  # noqa: B904
    except (ExceptionGroup, RuntimeError) as error:
        return x + 1, shape(error)
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


def links(error: BaseException) -> Any:
    below = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    shown_links = shape(error.__cause__), shape(error.__context__), error.__suppress_context__
    return shown_links, [links(one) for one in below]


def parts_suppress_their_context(x: torch.Tensor) -> Any:
    found, rest = group().split(KeyError)
    return x + 1, links(found), links(rest)


def raised_by_name(x: torch.Tensor) -> Any:
    try:
        try:
            raise group()
        except* ValueError:
            raise
        except* KeyError as error:
            raise error
    except ExceptionGroup as error:
        return x + 1, shape(error)
    return None


def raised_again_in_a_function(x: torch.Tensor) -> Any:
    def again() -> None:
        raise

    try:
        try:
            raise group()
        except* ValueError:
            again()
    except ExceptionGroup as error:
        return x + 1, shape(error)
    return None


def attributes_stay_with_the_whole(x: torch.Tensor) -> Any:
    error = group()
    error.code = 1  # type: ignore[attr-defined]
    return x + 1, error.code, hasattr(error.subgroup(ValueError), "code")  # type: ignore[attr-defined]


def groups_are_not_to_be_named(x: torch.Tensor) -> Any:
    try:
        try:
            raise ValueError
        except* ExceptionGroup:
            pass
    except TypeError as error:
        return x + 1, str(error)
    return None


PROGRAMS = [by_clauses, nothing_raised, what_is_left, alone, alone_and_unmatched, raised_again_by_itself, given_back]
PROGRAMS += [parts_suppress_their_context, raised_by_name, raised_again_in_a_function, attributes_stay_with_the_whole]
PROGRAMS += [another_one_is_raised, all_handled_but_new, taken_apart, in_functions, groups_are_not_to_be_named]


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, BaseException):
        return shape(value)
    return [shown(one) for one in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda one: one.__name__)
def test_as_in_eager_in_one_graph(function: Any) -> None:
    stator.reset()
    compiled = stator.compile(function, fullgraph=True, backend="eager")
    for call in range(2):
        assert shown(compiled(X + call)) == shown(function(X + call))


def test_what_makes_no_group_is_told_as_eager_does() -> None:
    stator.reset()
    compiled = stator.compile(made_of, backend="eager")
    assert shown(compiled(X)) == shown(made_of(X))


def test_a_group_that_nobody_handles_leaves_the_frame() -> None:
    def program(x: torch.Tensor) -> Any:
        x = x + 1
        try:
            raise group()
        except* ValueError:
            x.add_(1)

    found = []
    for function in (program, stator.compile(program, backend="eager")):
        with pytest.raises(ExceptionGroup) as caught:
            function(X)
        found.append(shape(caught.value))
    assert found[0] == found[1]


def test_a_break_in_a_clause() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            raise group()
        except* ValueError as error:
            x = x + len(error.exceptions)
            stator.graph_break()
            x = x * 2
        except* Exception as error:
            x = x + len(error.exceptions)
        return x

    stator.reset()
    assert torch.equal(stator.compile(program, backend="eager")(X), program(X))


def test_a_part_that_leaves_keeps_its_links() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, group().split(ValueError)[0]

    stator.reset()
    (_, found), (_, expected) = stator.compile(program, backend="eager")(X), program(X)
    assert (shape(found), links(found)) == (shape(expected), links(expected))


@pytest.mark.parametrize("outside", [None, []], ids=["own", "from outside"])
def test_a_group_holds_what_its_list_held(outside: list[Any] | None) -> None:
    def program(x: torch.Tensor) -> Any:
        errors: list[Any] = [] if outside is None else outside
        errors.append(ValueError(1))
        made = ExceptionGroup("m", errors)
        errors.append(KeyError(2))
        y, count = x + 1, len(errors)
        errors.clear()
        return y, made, count

    stator.reset()
    (_, found, count), (_, expected, others) = stator.compile(program, backend="eager")(X), program(X)
    assert (shape(found), count) == (shape(expected), others)


@pytest.mark.parametrize("raised", [True, False])
def test_what_nobody_handled_goes_on_behind_a_break_in_a_clause(raised: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            try:
                raise group()
            except* ValueError:
                x = x + 1
                stator.graph_break()
                if raised:
                    raise
        except ExceptionGroup as error:
            return x * 2, shape(error)
        return None

    stator.reset()
    assert shown(stator.compile(program, backend="eager")(X)) == shown(program(X))
