"""Graphs that end in functions which a generator calls, or which those call: results, order of effects, exceptions and
lines of tracebacks are eager's; and the counts of graphs."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.dynamo.codegen.noted_breaks import LOG, brk, check_as_eager, collector, graphs_made, outcome
from torch import nn

import stator
from stator.base import config

PROGRAMS, program = collector()
GRAPHS: dict[str, int] = {}


def graphs(count: int) -> Callable[..., Any]:
    """A program, and how many graphs two calls of it make."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        GRAPHS[function.__name__] = count
        return program(function)

    return register


def below(x: Any, *what: Any, factor: float = 2.0) -> Any:
    x = x + 1
    brk("below", *what)
    return x * factor


def twice(x: Any, *what: Any) -> Any:
    x = below(x, *what, "first", factor=1.5)
    x = x - 1
    brk("between")
    return below(x, "second") - 2


def failing(x: Any, at: int, wanted: int, error: type[Exception] = ValueError) -> Any:
    x = x + 1
    brk("failing", at)
    x = x * 2
    if at == wanted:
        raise error(f"at {at}", x.shape)
    return x - 1


class Layer(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Any) -> Any:
        x = x * self.factor
        brk(self.factor)
        return x + 1

    @property
    def broken(self) -> Any:
        brk("property")
        return self.factor


LAYERS = nn.ModuleList([Layer(1.5), Layer(0.5), Layer(2.0)])
MANY = nn.ModuleList([Layer(1.0 + i / 8) for i in range(12)])
HOOKED = Layer(1.25)
HOOKED.register_forward_hook(lambda module, args, result: (brk("hook"), result * 2)[1])


class Parent:
    def scaled(self, x: Any) -> Any:
        x = x * 2
        brk("parent")
        return x + 1


class Child(Parent):
    def scaled(self, x: Any) -> Any:
        brk("child")
        x = x - 1
        return super().scaled(x) * 3


@graphs(4)
def expression(x: Any) -> Any:
    t = x + 1
    for y in (below(x + i, i) for i in range(3)):
        t = t + y
    return t * 2


@graphs(4)
def modules(x: Any) -> Any:
    t = x + 1
    for y in (layer(t) for layer in LAYERS):
        t = t + y
    return t * 2


@program
def module_with_hooks(x: Any) -> Any:
    return next(HOOKED(x + i) for i in range(2)) + 1


@graphs(5)
def functions_in_functions(x: Any) -> Any:
    def made(x: Any) -> Iterator[Any]:
        for i in range(2):
            x = twice(x, i)
            yield x

    t = x + 1
    for y in made(t):
        t = t + y
    return t


@graphs(6)
def breaks_at_all_levels(x: Any) -> Any:
    def made(x: Any) -> Iterator[Any]:
        for i in range(2):
            x = below(x, i)
            brk("in the generator")
            yield x * 2
        x = below(x, "at the end")

    t = x + 1
    for y in made(t):
        t = t + y
        brk("in the loop")
        t = t * 2
    return t


@program
def many_turns(x: Any) -> Any:
    t = x + 1
    for y in (below(x, i, factor=0.5) for i in range(20)):
        t = t * 0.5 + y
    return t


def deep(x: Any) -> Any:
    x = below(x, 1)
    x = below(x, 2) - x
    x = below(x, 3) * 0.1
    x = below(x, 4) - 1
    x = below(x, 5) - x
    x = below(x, 6) * 0.1
    x = below(x, 7) - 1
    x = below(x, 8) - x
    x = below(x, 9) * 0.1
    return below(x, 10) * 0.001


@graphs(12)
def many_places(x: Any) -> Any:
    t = x + 1
    for y in (deep(t) for _ in range(2)):
        t = t + y
    return t


@graphs(4)
def many_layers(x: Any) -> Any:
    t = x + 1
    for y in (layer(t) for layer in MANY):
        t = t + y
    return t * 2


@program
def delegating(x: Any) -> Any:
    def inner(x: Any) -> Iterator[Any]:
        got = yield below(x, "inner")
        brk(got is None)
        yield twice(x)
        return below(x, "result")

    def outer(x: Any) -> Iterator[Any]:
        y = yield from inner(x)
        yield below(y, "outer")

    t = x + 1
    for y in outer(x):
        t = t + y
    return t


@program
def sent_and_thrown(x: Any) -> Any:
    def made(x: Any) -> Iterator[Any]:
        while True:
            try:
                got = yield x
                x = below(x, "got") + got
            except KeyError as error:
                brk("caught", str(error))
                x = x - 1

    generator = made(x * 2)
    t = next(generator)
    for i in range(3):
        t = t + generator.send(i)
    t = t + generator.throw(KeyError("thrown"))
    generator.close()
    return t, inspect.getgeneratorstate(generator)


@program
def raised_to_the_caller(x: Any) -> Any:
    t = x + 1
    for y in (failing(x, i, 2) for i in range(4)):
        t = t + y
    return t


@program
def raised_and_caught(x: Any) -> Any:
    def made(x: Any) -> Iterator[Any]:
        for i in range(3):
            try:
                x = failing(x, i, 1)
            except ValueError as error:
                LOG.append([one.lineno for one in traceback.extract_tb(error.__traceback__)])
                x = x - 3
            else:
                x = x + 5
            finally:
                LOG.append("finally")
            yield x

    t = x + 1
    for y in made(t):
        t = t + y
    return t


@program
def stops_the_iteration(x: Any) -> Any:
    t = x + 1
    try:
        for y in (failing(x, i, 1, StopIteration) for i in range(3)):
            t = t + y
    except RuntimeError as error:
        LOG.append((str(error), type(error.__cause__)))
    return t


@program
def cleans_up_in_the_function(x: Any) -> Any:
    @contextlib.contextmanager
    def noted(name: str) -> Iterator[str]:
        LOG.append(("enter", name))
        try:
            yield name
        finally:
            LOG.append(("exit", name))

    def careful(x: Any, i: int) -> Any:
        with noted(f"turn {i}"):
            try:
                x = x * 2
                brk("careful", i)
                x = x + 1
                if i == 2:
                    raise LookupError
            finally:
                LOG.append("finally")
        return x

    t = x + 1
    try:
        for y in (careful(x, i) for i in range(4)):
            t = t + y
    except LookupError:
        t = t - 1
    return t


@program
def managers(x: Any) -> Any:
    @contextlib.contextmanager
    def managed(x: Any) -> Iterator[Any]:
        y = below(x, "enter")
        try:
            yield y
        finally:
            y.add_(twice(y.clone(), "exit"))

    t = x + 1
    with managed(t) as y:
        t = t + y
        with managed(t) as z:
            brk("inside")
            t = t * z
    return t + y + z


@program
def variables_that_are_shared(x: Any) -> Any:
    count, total = 0, x

    def counted(y: Any) -> Any:
        nonlocal count, total
        count += 1
        y = y * count
        brk(count)
        count += 10
        total = total + y
        return y - count

    def made(x: Any) -> Iterator[Any]:
        nonlocal total
        for _ in range(3):
            x = counted(x)
            total = total * 2
            yield x

    t = x + 1
    for y in made(t):
        t = t + y * count
    return t, total, count


@program
def attributes(x: Any) -> Any:
    t = x + 1
    for y in (t * layer.broken for layer in LAYERS):
        t = t + y
    return t


@program
def methods_of_a_parent(x: Any) -> Any:
    t = x + 1
    for y in (Child().scaled(t + i) for i in range(2)):
        t = t + y
    return t


@program
def generators_below_functions(x: Any) -> Any:
    def summed(x: Any, i: int) -> Any:
        t = x * 0
        for y in (below(x + j, i, j) for j in range(2)):
            t = t + y
        return t

    t = x + 1
    for y in (summed(x, i) for i in range(2)):
        t = t + y
    return t


@program
def left_in_the_middle(x: Any) -> Any:
    def made(x: Any) -> Iterator[Any]:
        try:
            for i in range(5):
                x = below(x, i)
                yield x
        finally:
            LOG.append("closed")

    t = x + 1
    for y in made(x):
        t = t + y
        if len(LOG) == 2:
            break
    LOG.append("behind")
    return t


@program
def references_that_are_weak(x: Any) -> Any:
    class Box:
        pass

    def using(x: Any) -> Any:
        box = Box()
        reference = weakref.ref(box, lambda _: LOG.append("box gone"))
        x = x * 2
        brk(reference() is box)
        del box
        brk(reference() is None)
        return x

    t = x + 1
    for y in (using(x + i) for i in range(2)):
        t = t + y
    return t


@program
def frames_that_are_looked_at(x: Any) -> Any:
    def looking(x: Any) -> Any:
        x = x * 2
        seen, frame = [], sys._getframe()
        while frame is not None and frame.f_code.co_filename == __file__ and len(seen) < 3:
            seen.append((frame.f_code.co_name, frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        LOG.append(seen)
        return x + 1

    t = x + 1
    for y in (looking(below(x, i)) for i in range(2)):
        t = t + y
    return t


@program
def generators_that_are_given_back(x: Any) -> Any:
    generator = (below(x + i, i) for i in range(3))
    t = next(generator)
    brk("behind")
    return t + 1, generator


@program
def numbers_that_are_computed(x: Any) -> Any:
    def counted(i: int) -> int:
        brk(i)
        return i * 3

    t = x + 1
    for n in (counted(i) for i in range(3)):
        t = t * n + torch.ones(n + 1).sum()
    return t


@graphs(4)
def collected_in_a_list(x: Any) -> Any:
    t = x + 1
    return torch.stack(list(below(t + i, i) for i in range(3))) * 2  # noqa: C400


@graphs(4)
def collected_in_a_tuple(x: Any) -> Any:
    t = x + 1
    return torch.stack(tuple(layer(t) for layer in LAYERS)) * 2


@program
def many_are_collected(x: Any) -> Any:
    t = x + 1
    return torch.stack(tuple(layer(t) for layer in MANY)) * 2


@graphs(4)
def collected_and_added(x: Any) -> Any:
    t = x + 1
    return sum(below(t + i, i) for i in range(3)) * 2


@program
def collected_further_inside(x: Any) -> Any:
    def inner(x: Any, i: int) -> Any:
        first, second = (below(x + j, i, j) for j in range(2))
        return torch.maximum(*(below(y, "argument") for y in (first, second)))

    t = x + 1
    return torch.stack([t, *(inner(t, i) for i in range(2))])


@program
def collected_behind_the_end(x: Any) -> Any:
    def made(x: Any) -> Iterator[Any]:
        try:
            yield below(x, 0)
            brk("in the generator")
            yield x * 2
            x = below(x, "end")
        finally:
            LOG.append("finally")

    t = x + 1
    y, z = made(t)
    return y + z, list(made(t)), tuple(made(y))


@program
def wrong_number_of_items(x: Any) -> Any:
    t = x + 1
    y, z = (below(t, i) for i in range(3))
    return y + z


@program
def fails_while_it_is_collected(x: Any) -> Any:
    t = x + 1
    return list(failing(t, i, 2) for i in range(4))  # noqa: C400


@program
def asked_one_by_one(x: Any) -> Any:
    def size(x: Any, i: int) -> int:
        x = x * 2
        brk(i)
        return (x + 1).shape[0] + i

    t = x + 1
    found = [any(size(t, i) > 3 for i in range(4)), all(size(t, i) < 5 for i in range(4))]
    found += [max(size(t, i) for i in range(3)), min(size(t, -i) for i in range(3))]
    found += [sorted(size(t, -i) for i in range(3)), set(size(t, i) for i in range(2))]  # noqa: C401
    return t * 2, *found, dict((i, below(t, i)) for i in range(2))[1]  # noqa: C402


class Loud:
    def __init__(self, number: int) -> None:
        self.number = number

    def __bool__(self) -> bool:
        LOG.append(("truth", self.number))
        return self.number < 2

    def __hash__(self) -> int:
        LOG.append(("hash", self.number))
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __gt__(self, other: Any) -> bool:
        LOG.append(("more", self.number, other.number))
        return self.number > other.number

    def __radd__(self, other: Any) -> Any:
        LOG.append(("add", self.number))
        return self.number + other


@program
def objects_that_are_asked_once(x: Any) -> Any:
    def loud(i: int) -> Loud:
        brk(i)
        return Loud(i)

    t = x + 1
    found: list[Any] = [all(loud(i) for i in range(4)), max(loud(i) for i in range(3)).number]
    found += [len(set(loud(i) for i in range(2)))]  # noqa: C401
    return t * 2, *found


def interrupted(x: Any) -> Any:
    def careful(x: Any, i: int) -> Any:
        try:
            x = below(x, i)
        finally:
            LOG.append(("finally", i))
        return x

    def made(x: Any) -> Iterator[Any]:
        try:
            for i in range(2):
                x = careful(x, i) - 1
                brk("in the generator")
                x = x * 2
                yield x
        finally:
            LOG.append("closed")

    t = x + 1
    try:
        for y in made(x):
            t = t + y
    except KeyboardInterrupt:
        LOG.append("caught")
    return t


def test_interrupts_are_raised_in_the_middle() -> None:
    """They come while the graph of what goes on there is compiled."""
    ends = []
    for at in range(2, 5):
        made: list[Any] = []

        def backend(gm: Any, example_inputs: Any, made: list[Any] = made, at: int = at) -> Callable[..., Any]:
            made.append(gm)
            if len(made) == at:
                raise KeyboardInterrupt
            return gm.forward

        stator.reset()
        outcome(stator.compile(interrupted, backend=backend), seen)
        ends.append([one for one in LOG if type(one) is str or one[0] == "finally"])
    assert ends == [
        [("finally", 0), "closed", "caught"],
        [("finally", 0), "closed", "caught"],
        [("finally", 0), ("finally", 1), "closed", "caught"],
    ]


def seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [seen(one) for one in value]
    return [seen(one) for one in value] if inspect.isgenerator(value) else value


@pytest.mark.parametrize("replaced", [False, True], ids=["", "replaced"])
@pytest.mark.parametrize("function", PROGRAMS)
def test_as_eager(function: Callable[..., Any], replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", replaced)
    check_as_eager(function, seen)


@pytest.mark.parametrize("name", GRAPHS)
def test_counts_of_graphs(name: str) -> None:
    function = next(param.values[0] for param in PROGRAMS if param.id == name)
    assert graphs_made(function, seen) == GRAPHS[name]
