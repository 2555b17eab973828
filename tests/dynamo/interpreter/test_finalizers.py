"""Objects whose end the program notices, made in functions with graphs: their finalizers and callbacks come where they
come in eager, between the same effects."""
# ruff: noqa: F841 (variables that only hold an object)

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.base import config

LOG: list[Any] = []


class Ending:
    def __init__(self, name: Any) -> None:
        self.name = name

    def __del__(self) -> None:
        LOG.append(("ended", self.name))


class Plain:
    pass


def deleted(x: Any) -> Any:
    d = Ending("a")
    y = x + 1
    del d
    LOG.append("after")
    return y * 2


def of_an_inner_function(x: Any) -> Any:

    def inner(x):
        d = Ending("in")
        return x * 2

    y = inner(x)
    LOG.append("after inner")
    return y


def weak_reference_with_callback(x: Any) -> Any:
    w = Plain()
    r = weakref.ref(w, lambda _: LOG.append("cb"))
    y = x + 1
    a = r() is w
    del w
    LOG.append("after")
    return (y, a, r() is None)


def weakref_finalize(x: Any) -> Any:
    w = Plain()
    fz = weakref.finalize(w, LOG.append, "fin")
    y = x + 1
    del w
    LOG.append("after")
    return (y, fz.alive)


def items_of_a_list(x: Any) -> Any:
    items = [Ending(i) for i in range(3)]
    y = x + len(items)
    items.pop(0)
    LOG.append("popped")
    items.clear()
    LOG.append("cleared")
    return y


def attribute_replaced(x: Any) -> Any:
    h = Plain()
    h.d = Ending("attr")
    y = x * 2
    h.d = None
    LOG.append("after")
    return y


def reassigned(x: Any) -> Any:
    d = Ending("1")
    y = x + 1
    d = Ending("2")
    LOG.append("reassigned")
    y = y * 2
    return y


def in_a_try(x: Any) -> Any:
    try:
        d = Ending("exc")
        y = x + 1
        raise ValueError
    except ValueError:
        LOG.append("caught")
    return y


def in_a_loop(x: Any) -> Any:
    for i in range(2):
        d = Ending(i)
        x = x + 1
        LOG.append(("turn", i))
    return x


def behind_another_break(x: Any) -> Any:
    d = Ending("k")
    y = x + 1
    stator.graph_break()
    LOG.append("behind")
    z = y + 1
    del d
    LOG.append("end")
    return z


def generator_of_a_loop(x: Any) -> Any:
    def made(y: Any) -> Iterator[Any]:
        try:
            yield y * 2
            yield y + 1
        finally:
            LOG.append("closed")

    y = x + 1
    for value in made(y):
        z = value * 2
        break
    LOG.append("after the loop")
    first = next(made(x))
    LOG.append("after next")
    return value, first, z


def logging_its_end() -> Iterator[int]:
    try:
        yield 1
        yield 2
    finally:
        LOG.append("closed")


def delegating() -> Iterator[int]:
    yield from logging_its_end()


def holding() -> Iterator[int]:
    held = Ending("held")
    yield 1
    yield 2


def generator_of_a_loop_that_raises(x: Any) -> Any:
    try:
        for one in logging_its_end():
            y = x + one
            y = y * (1 // 0)
    except ZeroDivisionError:
        LOG.append("caught")
    return y * 2


class Slotted:
    __slots__ = ("held",)


def object_with_slots(x: Any) -> Any:
    d = Slotted()
    d.held = Ending("slot")
    y = x + 1
    stator.graph_break()
    d = None
    LOG.append("let go")
    return y * 2


class Used(Ending):
    """Each use of it is made behind the break that makes it."""

    turns = 0

    def __add__(self, other: int) -> int:
        return other + 1

    def __getitem__(self, key: int) -> int:
        return key

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.turns += 1
        if self.turns > 2:
            raise StopIteration
        return self.turns

    def __enter__(self) -> Used:
        LOG.append("entered")
        return self

    def __exit__(self, *error: object) -> bool:
        LOG.append("left")
        return True

    def method(self) -> int:
        return 5

    def calls_with(self, *others: object) -> int:
        LOG.append("called")
        return len(others)

    @property
    def half(self) -> float:
        return self.turns / 2


@stator.disable
def used(name: str) -> Any:
    return Used(name)


def never_named(x: Any) -> Any:
    y = used("added") + 1
    LOG.append(y)
    y += used("subscript")[2]
    LOG.append(y)
    y += used("method").method()
    LOG.append(y)
    y += used("attribute").turns
    LOG.append(y)
    y += used("compared") is None
    LOG.append(y)
    y += isinstance(used("asked"), Ending)
    LOG.append(y)
    return x * y


def used_up_where_it_raises(x: Any) -> Any:
    try:
        x = x + used("b").calls_with(1, 2, *used("c").name)
        int(used("d"))
    except TypeError:
        LOG.append("no number")
    return x * 2


def iterated_without_a_name(x: Any) -> Any:
    for one in used("iterated"):
        x = x + one
    LOG.append("behind")
    return x * 2


def entered_without_a_name(x: Any) -> Any:
    with used("manager"):
        x = x + 1
    LOG.append("behind")
    with used("manager"):
        x = x + 1
        raise ValueError
    LOG.append("behind")
    return x * 2


PROGRAMS = [
    deleted,
    of_an_inner_function,
    weak_reference_with_callback,
    weakref_finalize,
    items_of_a_list,
    attribute_replaced,
    reassigned,
    in_a_try,
    in_a_loop,
    behind_another_break,
    generator_of_a_loop,
    generator_of_a_loop_that_raises,
    object_with_slots,
    never_named,
    used_up_where_it_raises,
    iterated_without_a_name,
    entered_without_a_name,
]


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def outcome(function: Callable[..., Any]) -> list[Any]:
    found: list[Any] = []
    for _ in range(3):
        LOG.clear()
        result = function(torch.ones(2))
        parts = result if isinstance(result, tuple) else (result,)
        found.append([one.name if isinstance(one, Ending) else str(one) for one in parts])
        found.append(list(LOG))
        del result, parts
    return found


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_ends_come_where_they_come_in_eager(
    function: Callable[..., Any], replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", replaced)
    expected = outcome(function)
    assert outcome(stator.compile(function, backend="eager")) == expected


@stator.disable
def entered(make: Callable[[], Any]) -> Any:
    made = make()
    next(made)
    return made


def swapped_generators(x: Any, make: Callable[[], Any]) -> Any:
    first = entered(make)
    y = x + 1
    stator.graph_break()
    first = None
    LOG.append("let go")
    return y * 2


def unnoticed() -> Iterator[int]:
    yield 1


def test_a_generator_that_is_closed_with_effects_later() -> None:
    compiled = stator.compile(swapped_generators, backend="eager")
    for make in (unnoticed, unnoticed, delegating, unnoticed, holding):
        LOG.clear()
        swapped_generators(torch.ones(2), make)
        expected = list(LOG)
        LOG.clear()
        compiled(torch.ones(2), make)
        assert expected == LOG


KEPT: list[Any] = []


@stator.disable
def made(watched: bool) -> Plain:
    one = Plain()
    if watched:
        KEPT.append(weakref.ref(one, lambda _: LOG.append("gone")))
    return one


def swapped(x: Any, watched: bool) -> Any:
    first = made(watched)
    y = x + 1
    stator.graph_break()
    first = None
    LOG.append("let go")
    return y * 2


def test_a_callback_that_a_later_object_has() -> None:
    """Behind the break the variable owns its object: there a guard watches whether it has a callback."""
    compiled = stator.compile(swapped, backend="eager")
    for watched in (False, False, True, False, True):
        LOG.clear()
        swapped(torch.ones(2), watched)
        expected = list(LOG)
        LOG.clear()
        compiled(torch.ones(2), watched)
        assert expected == LOG


def let_go_inside(x: Any, held: str) -> Any:
    y = x + 1
    one = made(True) if held == "made" else Plain()
    watch = None if held == "made" else weakref.ref(one, lambda _: LOG.append("gone"))
    del one
    LOG.append("let go")
    stator.graph_break()
    LOG.append(watch is None or watch() is None)
    return y * 2


def calls_what_lets_go(x: Any, held: str) -> Any:
    result = let_go_inside(x * 2, held)
    LOG.append("returned")
    return result + 1


def calls_it_twice_removed(x: Any, held: str) -> Any:
    return calls_what_lets_go(x, held) * 2


@pytest.mark.parametrize("held", ["made", "here"])
@pytest.mark.parametrize("program", [let_go_inside, calls_what_lets_go, calls_it_twice_removed])
def test_a_function_inside_lets_go_of_what_frames_around_it_handed_on(program: Callable[..., Any], held: str) -> None:
    """Behind the break that makes the object, the frame around calls the rest of the one inside: it does not hold what
    it calls that with."""
    compiled = stator.compile(program, backend="eager")
    for _ in range(3):
        LOG.clear()
        expected = program(torch.ones(2), held)
        wanted = list(LOG)
        LOG.clear()
        assert torch.equal(compiled(torch.ones(2), held), expected)
        assert wanted == LOG


def with_an_end() -> Any:
    return Ending("made")


def in_a_list(x: Any) -> Any:
    items = [with_an_end(), with_an_end()]
    y = x + 1
    try:
        (_one,) = iter(items)
    except ValueError:
        y = y * 3
    del items
    LOG.append("after")
    return y * 2


def in_a_list_beside_a_variable(x: Any) -> Any:
    one = with_an_end()
    items = [one]
    y = x + 1
    del items
    LOG.append("after")
    y = y * one.name.count("m")
    return y * 2


@pytest.mark.parametrize("function", [in_a_list, in_a_list_beside_a_variable])
def test_objects_that_a_container_made_here_holds_end_with_it(function):
    x = torch.arange(3.0)
    LOG.clear()
    expected, in_order = function(x), list(LOG)
    compiled = stator.compile(function, backend="eager")
    for _ in range(2):
        LOG.clear()
        torch.testing.assert_close(compiled(x), expected)
        assert in_order == LOG
