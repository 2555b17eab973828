"""An AttributeError that leaves a function behind a graph break, which was entered to read an attribute: what it says
of the attribute and its object is what eager's says, and so are its arguments, the order of effects and the functions
in its traceback."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stator

# From 3.12 on the interpreter itself tells an error less once an instruction has run a few times; ours always does.
ALWAYS_TOLD = sys.version_info < (3, 12)
LOG: list[Any] = []
PROGRAMS: list[Any] = []


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(pytest.param(function, id=function.__name__))
    return function


def brk(*what: Any) -> None:
    LOG.append(what)
    stator.graph_break()


class Plain:
    @property
    def fails(self) -> Any:
        brk("property")
        raise AttributeError("mine")

    @property
    def named(self) -> Any:
        brk("named")
        raise AttributeError("mine", name="other", obj=3)

    @property
    def chained(self) -> Any:
        brk("chained")
        try:
            return self.fails
        except AttributeError as error:
            raise AttributeError("outer") from error


class Asked:
    @property
    def fails(self) -> Any:
        brk("property")
        return self.nothing

    def __getattr__(self, name: str) -> Any:
        brk(name)
        raise AttributeError(f"no {name}")


class Looks:
    def __getattribute__(self, name: str) -> Any:
        brk(name)
        raise AttributeError(f"it has no {name}")


class OfClass(type):
    def __getattr__(cls, name: str) -> Any:
        brk(name)
        raise AttributeError(f"the class has no {name}")


class WithMeta(metaclass=OfClass):
    pass


class Picky(AttributeError):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "obj":
            raise ValueError("not told")
        super().__setattr__(name, value)


class Raises:
    @property
    def picky(self) -> Any:
        brk("picky")
        raise Picky("x")


class Layer(nn.Module):
    @property
    def fails(self) -> Any:
        brk("module")
        raise AttributeError("mine")


PLAIN, ASKED, LOOKS, RAISES, LAYER = Plain(), Asked(), Looks(), Raises(), Layer()


@program
def of_a_property(x: Any) -> Any:
    return PLAIN.fails


@program
def to_be_called(x: Any) -> Any:
    return PLAIN.fails(x)


@program
def that_says_so_itself(x: Any) -> Any:
    return PLAIN.named


@program
def of_two_properties(x: Any) -> Any:
    return PLAIN.chained


@program
def of_getattr(x: Any) -> Any:
    return ASKED.nothing


@program
def of_getattr_behind_a_property(x: Any) -> Any:
    return ASKED.fails


@program
def of_getattr_to_be_called(x: Any) -> Any:
    return ASKED.nothing(x)


@program
def of_getattribute(x: Any) -> Any:
    return LOOKS.nothing


@program
def of_getattribute_to_be_called(x: Any) -> Any:
    return LOOKS.nothing(x)


@program
def of_a_metaclass(x: Any) -> Any:
    return WithMeta.nothing


@program
def of_a_module(x: Any) -> Any:
    return LAYER.fails


@program
def in_a_comprehension(x: Any) -> Any:
    return [PLAIN.fails for _ in range(2)]


@program
def that_cannot_be_told(x: Any) -> Any:
    try:
        return RAISES.picky
    except (ValueError, Picky) as error:
        raise AttributeError(*error.args if ALWAYS_TOLD else ()) from None


def told(error: AttributeError) -> tuple[Any, ...]:
    return (error.name, error.obj) if ALWAYS_TOLD else ()


@program
def read_by_name(x: Any) -> Any:
    return getattr(PLAIN, "fails")  # noqa: B009


def outcome(function: Callable[..., Any], x: Any) -> tuple[Any, ...]:
    LOG.clear()
    try:
        result = function(x + 1)
    except AttributeError as error:
        found = error.args, told(error), type(error.__cause__)
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        return (*found, names[names.index(function.__name__) :], list(LOG))
    raise AssertionError(f"it gave {result}")


@pytest.mark.parametrize("function", PROGRAMS)
def test_that_leaves_the_compiled_function(function: Callable[..., Any]) -> None:
    wanted = outcome(function, torch.ones(3))
    compiled = stator.compile(function, backend="eager")
    for _ in range(2):
        assert outcome(compiled, torch.ones(3)) == wanted


@pytest.mark.parametrize("function", PROGRAMS)
def test_that_is_caught(function: Callable[..., Any]) -> None:
    def caught(x: Any) -> tuple[Any, ...]:
        x = x + 1
        try:
            return (function(x),)
        except AttributeError as error:
            return (x * 2).tolist(), error.args, told(error)

    LOG.clear()
    wanted, effects = caught(torch.ones(3)), list(LOG)
    compiled = stator.compile(caught, backend="eager")
    for _ in range(2):
        LOG.clear()
        assert (compiled(torch.ones(3)), LOG) == (wanted, effects)
