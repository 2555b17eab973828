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
from tests.dynamo.codegen.noted_breaks import LOG, brk
from torch import nn

import stator

# From 3.12 on the interpreter itself tells an error less once an instruction has run a few times; ours always does.
ALWAYS_TOLD = sys.version_info < (3, 12)


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


def that_cannot_be_told(x: Any) -> Any:
    try:
        return RAISES.picky
    except (ValueError, Picky) as error:
        raise AttributeError(*error.args if ALWAYS_TOLD else ()) from None


PROGRAMS: dict[str, Callable[..., Any]] = {
    "of_a_property": lambda x: PLAIN.fails,
    "to_be_called": lambda x: PLAIN.fails(x),
    "that_says_so_itself": lambda x: PLAIN.named,
    "of_two_properties": lambda x: PLAIN.chained,
    "of_getattr": lambda x: ASKED.nothing,
    "of_getattr_behind_a_property": lambda x: ASKED.fails,
    "of_getattr_to_be_called": lambda x: ASKED.nothing(x),
    "of_getattribute": lambda x: LOOKS.nothing,
    "of_getattribute_to_be_called": lambda x: LOOKS.nothing(x),
    "of_a_metaclass": lambda x: WithMeta.nothing,
    "of_a_module": lambda x: LAYER.fails,
    "in_a_comprehension": lambda x: [PLAIN.fails for _ in range(2)],
    "read_by_name": lambda x: getattr(PLAIN, "fails"),  # noqa: B009
    "that_cannot_be_told": that_cannot_be_told,
}


def told(error: AttributeError) -> tuple[Any, ...]:
    return (error.name, error.obj) if ALWAYS_TOLD else ()


def outcome(function: Callable[..., Any], x: Any) -> tuple[Any, ...]:
    LOG.clear()
    try:
        result = function(x + 1)
    except AttributeError as error:
        found = error.args, told(error), type(error.__cause__)
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        return (*found, names[names.index(function.__name__) :], list(LOG))
    raise AssertionError(f"it gave {result}")


@pytest.mark.parametrize("function", PROGRAMS.values(), ids=PROGRAMS)
def test_that_leaves_the_compiled_function(function: Callable[..., Any]) -> None:
    wanted = outcome(function, torch.ones(3))
    compiled = stator.compile(function, backend="eager")
    for _ in range(2):
        assert outcome(compiled, torch.ones(3)) == wanted


@pytest.mark.parametrize("function", PROGRAMS.values(), ids=PROGRAMS)
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
