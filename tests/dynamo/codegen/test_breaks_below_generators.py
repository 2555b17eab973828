"""Graph breaks in functions that a generator calls: results, order of effects, exceptions and lines of tracebacks are
eager's."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.dynamo.codegen.noted_breaks import LOG, brk, check_as_eager, collector
from torch import nn

from stator.base import config

PROGRAMS, program = collector()


def below(x: Any, *what: Any, factor: float = 2.0) -> Any:
    x = x + 1
    brk("below", *what)
    return x * factor


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


@program
def modules(x: Any) -> Any:
    t = x + 1
    for y in (layer(t) for layer in LAYERS):
        t = t + y
    return t * 2


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
