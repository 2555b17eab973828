"""Special methods and methods that a property, a descriptor or `__getattr__` gives, where the graph ends in these:
results, the order of what happens, and lines of tracebacks are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.dynamo.codegen.noted_breaks import LOG, brk, check_as_eager, collector

PROGRAMS, program = collector()


def giving(name: str, make: Callable[[Any], Any]) -> property:
    def get(self: Any) -> Any:
        brk(name, 1)
        y = self.y + 1
        brk(name, 2)
        return make(y)

    return property(get)


class Properties:
    def __init__(self, y: Any) -> None:
        self.y = y

    __enter__ = giving("enter", lambda y: lambda: y + 1)
    __exit__ = giving("exit", lambda y: lambda *error: LOG.append(len(error)))
    __len__ = giving("len", lambda y: lambda: 3)
    __iter__ = giving("iter", lambda y: lambda: iter([y, y * 2]))
    __next__ = giving("next", lambda y: lambda: y)
    __call__ = giving("call", lambda y: lambda x: x * y)
    __getitem__ = giving("getitem", lambda y: lambda key: y * key)
    __add__ = giving("add", lambda y: lambda other: y * other)
    __contains__ = giving("contains", lambda y: lambda item: True)
    __bool__ = giving("bool", lambda y: lambda: True)
    method = giving("method", lambda y: lambda factor: y * factor)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "y":
            raise AttributeError(name)
        brk("getattr", name)
        y = self.y + 1
        brk("getattr again")
        return lambda other: y - other


class Descriptor:
    def __get__(self, owner: Any, kind: type) -> Any:
        brk("descriptor")
        y = owner.y - 1
        brk("descriptor again")
        return lambda *args: y


class Described:
    def __init__(self, y: Any) -> None:
        self.y = y

    __enter__ = Descriptor()
    __neg__ = Descriptor()
    __getitem__ = Descriptor()
    __next__ = Descriptor()
    method = Descriptor()

    def __exit__(self, *error: Any) -> None:
        LOG.append("exit")


class Failing(Properties):
    @property
    def method(self) -> Any:
        brk("failing")
        self.y = self.y + 1
        brk("failing again")
        raise AttributeError("inner")


class FailingAlone:
    y = 1

    @property
    def method(self) -> Any:
        brk("alone")
        brk("alone again")
        raise AttributeError("inner")


@program
def entered(x: Any) -> Any:
    with Properties(x + 1) as y:
        x = x + y
    return x


@program
def length(x: Any) -> Any:
    return x * len(Properties(x + 1))


@program
def loop(x: Any) -> Any:
    for y in Properties(x + 1):
        x = x + y
    return x


@program
def called(x: Any) -> Any:
    return Properties(x + 1)(x)


@program
def subscripted(x: Any) -> Any:
    return Properties(x + 1)[3]


@program
def added(x: Any) -> Any:
    return Properties(x + 1) + 3


@program
def contained(x: Any) -> Any:
    return x * (3 in Properties(x + 1))


@program
def decided(x: Any) -> Any:
    x = x + 1
    if Properties(x):
        x = x * 2
    return x


@program
def next_item(x: Any) -> Any:
    return next(Properties(x + 1))


@program
def method(x: Any) -> Any:
    return Properties(x + 1).method(2)


@program
def method_by_getattr(x: Any) -> Any:
    return Properties(x + 1).other(2)


@program
def entered_by_a_descriptor(x: Any) -> Any:
    with Described(x + 1) as y:
        x = x + y
    return x


@program
def operators_by_a_descriptor(x: Any) -> Any:
    return -Described(x + 1) + Described(x)[2] + next(Described(x * 2))


@program
def method_by_a_descriptor(x: Any) -> Any:
    return Described(x + 1).method(2)


@program
def property_that_leads_to_getattr(x: Any) -> Any:
    return Failing(x + 1).method(2)


@program
def property_that_fails(x: Any) -> Any:
    return FailingAlone().method(2)


@program
def kept_methods(x: Any) -> Any:
    first, second = Properties(x + 1).method, Properties(x).other
    return first(1) + second(2)


@program
def methods_in_generators(x: Any) -> Any:
    one = sum(each.method(1) for each in [Properties(x + 1), Properties(x)])
    return one, [each.other(1) for each in [Properties(x + 1), Failing(x)]]


def seen(result: Any) -> Any:
    return [one.tolist() if isinstance(one, torch.Tensor) else [each.tolist() for each in one] for one in result]


@pytest.mark.parametrize("function", PROGRAMS)
def test_as_eager(function: Callable[..., Any]) -> None:
    check_as_eager(function, seen)
