"""Graphs that end inside of generators, and while generators wait: results, order of effects, exceptions and what can
be seen of the generators are eager's; and the counts of graphs."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.dynamo.codegen.noted_breaks import LOG, brk, check_as_eager, collector, graphs_made

import stator
from stator.base import config

PROGRAMS, program = collector()


def counting(x: Any, turns: int = 3) -> Iterator[Any]:
    for i in range(turns):
        x = x * 2 + i
        yield x


def breaking(x: Any, turns: int = 3) -> Iterator[Any]:
    for i in range(turns):
        x = x * 2
        brk("in", i)
        x = x + i
        yield x
    brk("end")
    return x * 3


def guarded(x: Any) -> Iterator[Any]:
    try:
        x = x + 1
        got = yield x
        brk("got", got)
        x = x * 2
        yield x
    except ValueError as error:
        brk("caught", str(error))
        yield x - 1
    finally:
        brk("finally")
        LOG.append(float((x * 3).sum()))


@contextlib.contextmanager
def managed(x: Any, swallow: bool = False) -> Iterator[Any]:
    y = x * 2
    brk("enter")
    y = y + 1
    try:
        yield y
    except ZeroDivisionError:
        brk("error")
        y.add_(2)
        if not swallow:
            raise
    finally:
        y.mul_(3)
        brk("exit")
        y.sub_(1)


# ---- loops ----


@program
def break_in_the_loop(x: Any) -> Any:
    t = x + 1
    for v in counting(x):
        t = t + v
        brk("loop")
        t = t * 2
    return t


@program
def break_in_the_generator(x: Any) -> Any:
    t = x + 1
    for v in breaking(x):
        t = t + v
    return t * 2


@program
def loop_that_is_left(x: Any) -> Any:
    t = x + 1
    for v in guarded(x):
        t = t + v
        brk("loop")
        if len(LOG) > 1:
            break
    brk("behind")
    return t * 2


# ---- yield from ----


def delegating(x: Any) -> Iterator[Any]:
    result = yield from breaking(x, 2)
    x = x + result
    result = yield from guarded(x)
    brk("result", result)
    yield x - 7


@program
def delegation(x: Any) -> Any:
    t = x
    for v in delegating(x):
        t = t + v
        brk("turn")
    return t


# ---- next, send, throw, close ----


@program
def sent_to(x: Any) -> Any:
    t = x + 1
    generator = guarded(t)
    t = t + next(generator)
    brk("started")
    t = t + generator.send(4)
    try:
        generator.send(5)
    except StopIteration as stop:
        brk("stopped", stop.value)
    return t


@program
def thrown_into(x: Any) -> Any:
    t = x + 1
    generator = guarded(t)
    t = t + next(generator)
    t = t * 2
    t = t + generator.throw(ValueError("thrown"))
    brk("thrown")
    generator.close()
    return t


@program
def closed(x: Any) -> Any:
    t = x + 1
    generator = guarded(t)
    t = t + next(generator)
    brk("waiting")
    t = t * 2
    generator.close()
    return t, next(generator, None) is None


@program
def returned_value(x: Any) -> Any:
    t = x + 1
    generator = breaking(t, 1)
    t = t + next(generator)
    try:
        next(generator)
    except StopIteration as stop:
        t = t + stop.value
    return t


@program
def held_by_an_object(x: Any) -> Any:
    held = {"one": [guarded(x)]}
    t = x + next(held["one"][0])
    brk("waiting")
    t = t * 2
    held.clear()
    LOG.append("gone")
    return t + 1


@program
def left_waiting_at_the_return(x: Any) -> Any:
    generator = guarded(x)
    t = x + next(generator)
    brk("waiting")
    return t * 2, generator


@program
def given_back_in_the_middle(x: Any) -> Any:
    generator = breaking(x)
    t = x + next(generator)
    return t * 2, generator, counting(x)


# ---- exceptions ----


def failing(x: Any) -> Iterator[Any]:
    x = x + 1
    yield x
    brk("fails")
    x = x * 2
    raise KeyError("of the generator")


@program
def raised_out_of_a_generator(x: Any) -> Any:
    t = x
    try:
        for v in failing(x):
            t = t + v
            brk("turn")
    except KeyError as error:
        LOG.append(str(error))
        t = t * 2
    return t


@program
def stop_iteration_inside(x: Any) -> Any:
    def fails(y: Any) -> Iterator[Any]:
        yield y * 2
        brk("stop")
        raise StopIteration

    t = x
    try:
        for v in fails(x):
            t = t + v
    except RuntimeError as error:
        LOG.append(str(error))
    return t


@program
def waiting_in_a_handler(x: Any) -> Any:
    def handling(y: Any) -> Iterator[Any]:
        try:
            raise ValueError("first")
        except ValueError:
            y = y + 1
            yield y
            brk("handled")
            yield y * 2

    t = x
    for v in handling(x):
        t = t + v
        brk("turn")
    return t


# ---- what can be seen ----


@program
def states(x: Any) -> Any:
    generator = counting(x, 2)
    t = x + 1
    brk(inspect.getgeneratorstate(generator))
    t = t + next(generator)
    brk(inspect.getgeneratorstate(generator), generator.gi_frame.f_lineno - counting.__code__.co_firstlineno)
    t = t + next(generator)
    brk(sorted(inspect.getgeneratorlocals(generator)), generator.__name__, generator.__qualname__)
    for _ in generator:
        pass
    brk(inspect.getgeneratorstate(generator), generator.gi_frame)
    return t


@program
def shared_variables(x: Any) -> Any:
    total = x * 0

    def adding() -> Iterator[Any]:
        nonlocal total
        for i in range(3):
            total = total + x * i
            brk("added", i)
            total = total + 1
            yield i

    for i in adding():
        total = total * 2
        brk("turn", i, float(total.sum()))
    return total


# ---- context managers ----


@program
def managers(x: Any) -> Any:
    t = x + 1
    with managed(t) as y:
        t = t * y
        brk("inside")
        t = t + y
    return t + y


@program
def manager_that_swallows(x: Any) -> Any:
    t = x + 1
    with managed(t, swallow=True) as y:
        t = t * y
        brk("inside")
        t = t + 1 // 0
    return t + y


@program
def manager_with_an_error(x: Any) -> Any:
    t = x + 1
    try:
        with managed(t) as y:
            t = t * y
            LOG.append(1 // 0)
    except ZeroDivisionError:
        t = t + 1
    return t + y


@program
def manager_of_modes(x: Any) -> Any:
    @contextlib.contextmanager
    def without_gradients() -> Iterator[None]:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        try:
            yield
        finally:
            torch.set_grad_enabled(before)

    x = x.clone().requires_grad_()
    with without_gradients():
        y = x * 2
        brk(torch.is_grad_enabled())
        z = y + x
    w = z * x
    return w.detach(), z.requires_grad, w.requires_grad


@program
def iterators_around_generators(x: Any) -> Any:
    t = x + 1
    for v in itertools.islice(itertools.chain(breaking(x, 2), counting(x)), 4):
        t = t + v
        brk("turn")
    for v in map(operator.neg, counting(x, 2)):
        t = t + v
        brk("mapped")
    return t, sum(breaking(x, 2)), list(breaking(x, 1)), [*counting(x, 2)], dict(enumerate(breaking(x, 1)))


def seen(value: Any) -> Any:
    """A result, with generators run to their end."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return list(value), seen(list(value.values()))
    if isinstance(value, (list, tuple)):
        return [seen(one) for one in value]
    if inspect.isgenerator(value):
        found = [inspect.getgeneratorstate(value), value.__qualname__]
        return [*found, *[seen(one) for one in itertools.islice(value, 2)], value.close()]
    return value


@pytest.mark.parametrize("replaced", [False, True], ids=["", "replaced"])
@pytest.mark.parametrize("function", PROGRAMS)
def test_as_eager(function: Callable[..., Any], replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", replaced)
    check_as_eager(function, seen)


GRAPHS = {
    "break_in_the_loop": 3,  # before the generator, and the loop's body in its first and in later turns
    "managers": 4,  # up to each of two breaks on entering and one inside, and the rest
    "sent_to": 3,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_counts_of_graphs(name: str) -> None:
    function = next(param.values[0] for param in PROGRAMS if param.id == name)
    assert graphs_made(function, seen) == GRAPHS[name]


def test_a_generator_that_is_kept_from_being_compiled() -> None:
    told: list[bool] = []

    def made(x: Any) -> Iterator[Any]:
        for i in range(3):
            told.append(stator.is_compiling())
            yield x + i

    @stator.compile(backend="eager")
    def program(x: Any, generator: Any) -> Any:
        for v in generator:
            x = x * 2 + v
        return x

    x = torch.arange(3.0)
    expected = x
    for v in made(x):
        expected = expected * 2 + v
    told.clear()
    assert torch.equal(program(x, stator.disable(made)(x)), expected)
    assert told == [False] * 3
