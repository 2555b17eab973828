"""Making a class in captured code breaks the graph: the statement runs as it is, between two graphs."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import stator
from stator.base.errors import Unsupported

LOG: list[str] = []


class Told:
    def __set_name__(self, owner: type, name: str) -> None:
        LOG.append(f"{owner.__name__}.{name}")


class Meta(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any], **named: Any) -> Any:
        LOG.append(f"{name} {sorted(named)}")
        return super().__new__(mcs, name, bases, members)

    def __init__(cls, *args: Any, **named: Any) -> None:
        super().__init__(*args)


def plain(x: torch.Tensor) -> Any:
    y = x + 1

    class Scaled:
        factor = 3

        def scale(self, z: torch.Tensor) -> torch.Tensor:
            return z * self.factor + y

    return Scaled().scale(y), Scaled.__name__


def derived(x: torch.Tensor) -> Any:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return z * self.weight

    return Layer()(x + 1) * 2


def hooked(x: torch.Tensor) -> Any:
    y = x + 1

    class Named(metaclass=Meta, level=2):
        told = Told()

    return y * 2, isinstance(Named, Meta)


def by_call(x: torch.Tensor) -> Any:
    made = type("Made", (list,), {"double": lambda self: [2 * item for item in self]})
    return made([x + 1]).double()[0], made.__mro__[1].__name__


def dataclass(x: torch.Tensor) -> Any:
    y = x + 1

    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        loss: float = 0.5

    made = Output(y)
    return made.logits * made.loss, [field.name for field in dataclasses.fields(made)]


def named_tuples(x: torch.Tensor) -> Any:
    pair = collections.namedtuple("pair", "one two")

    class Typed(NamedTuple):
        first: Any
        second: int = 3

    made = Typed(pair(x + 1, 2).one)
    return made.first * made.second


def enumerations(x: torch.Tensor) -> Any:
    class Kind(enum.Enum):
        ADD = enum.auto()
        SUB = enum.auto()

    other = enum.Enum("other", "A B")
    return x + Kind.SUB.value + len(other), [kind.name for kind in Kind]


def abstract(x: torch.Tensor) -> Any:
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self) -> None: ...

    try:
        Shape()  # type: ignore[abstract]
    except TypeError as error:
        return x + 1, str(error)


def ordered(x: torch.Tensor) -> Any:
    @functools.total_ordering
    class Version:
        def __init__(self, number: int) -> None:
            self.number = number

        def __eq__(self, other: object) -> bool:
            return self.number == other.number  # type: ignore[attr-defined]

        def __lt__(self, other: Any) -> bool:
            return self.number < other.number

    return x + 1 if Version(3) >= Version(2) else x - 1


def refused(x: torch.Tensor) -> Any:
    y = x + 1
    try:

        @dataclasses.dataclass
        class Bad:
            items: list[Any] = []  # noqa: RUF008

    except ValueError as error:
        return y, str(error)


def _maker(x: torch.Tensor, factor: int) -> Any:
    class Holder:
        held = x * factor

    return Holder


def inside_a_call(x: torch.Tensor) -> Any:
    return sum(_maker(x, factor).held for factor in range(3)) + 1


PROGRAMS = [
    plain,
    derived,
    hooked,
    by_call,
    dataclass,
    named_tuples,
    enumerations,
    abstract,
    ordered,
    refused,
    inside_a_call,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_are_those_of_eager(program: Callable[..., Any]) -> None:
    x = torch.arange(3.0)
    LOG.clear()
    expected = program(x)
    hooks = list(LOG)
    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        LOG.clear()
        found = compiled(x)
        assert hooks == LOG
        tensor, *rest = found if isinstance(found, tuple) else (found,)
        wanted, *others = expected if isinstance(expected, tuple) else (expected,)
        assert torch.equal(tensor, wanted) and rest == others


def test_the_break_says_that_a_class_is_made() -> None:
    with pytest.raises(Unsupported) as caught:
        stator.compile(plain, backend="eager", fullgraph=True)(torch.arange(3.0))
    assert caught.value.kind == "class-definition"
