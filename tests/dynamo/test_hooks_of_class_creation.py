"""What CPython calls while a class is made, or asks its metaclass: in a captured class statement each hook of the
program runs once, where eager runs it, and the class that stands for the made one while it is captured runs none.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

LOG: list[Any] = []
PROGRAMS: list[Callable[..., Any]] = []


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(function)
    return function


class Named:
    """Told its name."""

    def __set_name__(self, owner: type, name: str) -> None:
        LOG.append(("told", owner.__name__, name))

    def __get__(self, instance: Any, owner: Any = None) -> int:
        return 5


class Written:
    def __get__(self, instance: Any, owner: Any = None) -> int:
        return 11

    def __set__(self, instance: Any, value: Any) -> None:
        LOG.append(("written", value))

    def __delete__(self, instance: Any) -> None:
        LOG.append("deleted")


class Hashing(type):
    def __hash__(cls) -> int:
        LOG.append("hash")
        return 3

    def __eq__(cls, other: object) -> bool:
        LOG.append("eq")
        return cls is other


class Ordering(type):
    def mro(cls) -> list[type]:
        LOG.append("mro")
        return type.mro(cls)


class Looking(type):
    def __getattribute__(cls, name: str) -> Any:
        LOG.append(name)
        return type.__getattribute__(cls, name)


class Naming(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        LOG.append("name")
        return "a name"


class Keeping(type):
    kept = Written()


@program
def metaclass_that_hashes(x: torch.Tensor) -> Any:
    class B(metaclass=Hashing):
        k = 2

    return x * B.k


@program
def metaclass_that_orders_bases(x: torch.Tensor) -> Any:
    class B(metaclass=Ordering):
        k = 2

    return x * B.k


@program
def metaclass_that_looks_attributes_up(x: torch.Tensor) -> Any:
    class B(metaclass=Looking):
        k = 2

    return x * B.k


@program
def metaclass_that_names(x: torch.Tensor) -> Any:
    class B(metaclass=Naming):
        k = 2

    return x * B.k, B.__name__


@program
def metaclass_with_a_descriptor(x: torch.Tensor) -> Any:
    class B(metaclass=Keeping):
        k = 2

    B.kept = 3  # type: ignore[assignment]
    del B.kept
    return x * B.k, B.kept


@program
def descriptor_of_the_metaclass_told_its_name(x: torch.Tensor) -> Any:
    class B(metaclass=Keeping):
        kept = Named()  # type: ignore[assignment]

    return x * B.kept, list(vars(B))


@program
def member_told_its_name(x: torch.Tensor) -> Any:
    class B:
        a = 1
        d = Named()
        b = 2

    return x * B().d, [name for name in vars(B) if name in "abd"]


@program
def member_told_its_name_in_an_enumeration(x: torch.Tensor) -> Any:
    class C(enum.Enum):
        A = 1
        __d__ = Named()

    return x * len(C)


@program
def metaclass_made_inside_orders_bases(x: torch.Tensor) -> Any:
    class Meta(type):
        def mro(cls) -> list[type]:
            LOG.append("mro")
            return type.mro(cls)

    try:

        class B(metaclass=Meta):
            k = 2
    except NameError:
        return x + 1
    return x * B.k


@program
def metaclass_made_inside_compares(x: torch.Tensor) -> Any:
    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            return cls.__name__ == getattr(other, "__name__", None)

    class B(metaclass=Meta):
        k = 2

    return x * B.k + (B == B)


@program
def metaclass_changed_behind_its_class(x: torch.Tensor) -> Any:
    class Meta(type):
        pass

    class B(metaclass=Meta):
        k = 3

    Meta.__hash__ = lambda cls: LOG.append("hash") or 3  # type: ignore[assignment,func-returns-value,method-assign]
    return x * {B: 2}[B]


@program
def order_of_bases_set_before_the_class(x: torch.Tensor) -> Any:
    class Meta(type):
        pass

    Meta.mro = lambda cls: LOG.append("mro") or type.mro(cls)  # type: ignore[func-returns-value,method-assign]

    class B(metaclass=Meta):
        k = 3

    return x * B.k


@program
def member_whose_name_is_a_number(x: torch.Tensor) -> Any:
    return x * type("B", (), {42: 3, "k": 2}).k  # type: ignore[dict-item,attr-defined]


def outcome(function: Callable[..., Any]) -> Any:
    LOG.clear()
    result = function(torch.arange(3.0))
    parts = result if isinstance(result, tuple) else (result,)
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in parts], list(LOG)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_each_hook_runs_once(function: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="stator")
        warnings.filterwarnings("ignore", message="non-string key")
        expected = outcome(function)
        compiled = stator.compile(function, backend="eager")
        assert [outcome(compiled) for _ in range(3)] == [expected] * 3
