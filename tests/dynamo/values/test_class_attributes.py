"""Writes to attributes of classes break the graph: results and classes are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


class Meta(type):
    @property
    def special(cls) -> int:
        return 3

    @special.setter
    def special(cls, value: int) -> None:
        cls.seen = value


class Base:
    count = 0
    kept: Any = None

    def tick(self, x: Any) -> Any:
        type(self).count += 1
        self.__class__.kept = x.sum()
        return x * self.count + type(self).kept


class Derived(Base):
    limit = 2


class OfMeta(metaclass=Meta):
    pass


def counting(x: Any) -> Any:
    Base.count += 1
    return x * 2 + Base.count


def through_instances(x: Any) -> Any:
    return Base().tick(x) + Derived().tick(x)


def read_through_a_subclass(x: Any) -> Any:
    Base.count = 5
    found = (Derived.count, Derived().count, getattr(Derived, "count"))  # noqa: B009
    Derived.count = 6
    return x + sum(found), Derived.count, Base.count


def set_by_name(x: Any) -> Any:
    setattr(Base, "other", [x])  # noqa: B010
    Base.other.append(x + 1)  # type: ignore[attr-defined]
    return len(Base.other), hasattr(Derived, "other"), hasattr(Base, "nothing"), x * 2  # type: ignore[attr-defined]


def shadowed_by_the_instance(x: Any) -> Any:
    one = Base()
    one.kept = 1
    Base.kept = 2
    return x + one.kept, Base().kept


def before_an_error(x: Any) -> Any:
    Base.count = 7
    y = x + 1
    if y.shape[0] == 3:
        raise ValueError(str(Base.count))
    return y


def functions(x: Any) -> Any:
    Base.method = lambda self: 4  # type: ignore[attr-defined]
    return x + Base().method()  # type: ignore[attr-defined]


def deleted(x: Any) -> Any:
    Base.other = x + 1  # type: ignore[attr-defined]
    y = Base.other * 2  # type: ignore[attr-defined]
    del Base.other  # type: ignore[attr-defined]
    return y, hasattr(Base, "other")


def through_a_metaclass(x: Any) -> Any:
    OfMeta.special = 8
    return x + OfMeta.seen + OfMeta.special  # type: ignore[attr-defined]


def refused(x: Any) -> Any:
    found = []
    for change in (lambda: object.__setattr__(Base, "count", 3), lambda: setattr(int, "count", 3)):
        try:
            change()
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


ORIGINAL = {cls: dict(vars(cls)) for cls in (Base, Derived, OfMeta)}


def put_back() -> None:
    for cls, names in ORIGINAL.items():
        for name in [name for name in vars(cls) if name not in names]:
            delattr(cls, name)
        for name, value in names.items():
            if not name.startswith("__"):
                setattr(cls, name, value)


def outcomes(function: Callable[..., Any]) -> list[Any]:
    put_back()
    found: list[Any] = []
    for turn in range(4):
        try:
            found.append(str(function(torch.full((3,), turn + 1.0))))
        except Exception as error:
            found.append(repr(error))
        found.append([str({k: v for k, v in vars(cls).items() if not callable(v) and k[0] != "_"}) for cls in ORIGINAL])
    put_back()
    return found


FUNCTIONS = [counting, through_instances, read_through_a_subclass, set_by_name, shadowed_by_the_instance]
FUNCTIONS += [before_an_error, functions, deleted, through_a_metaclass, refused]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_as_eager(function: Callable[..., Any]) -> None:
    assert outcomes(stator.compile(function, backend="eager")) == outcomes(function)


def test_a_deferred_function_may_not() -> None:
    def in_checkpoint(x: Any) -> Any:
        def inner(x: Any) -> Any:
            Base.count += 1
            return x * 2

        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)

    assert outcomes(stator.compile(in_checkpoint, backend="eager")) == outcomes(in_checkpoint)


class Key:
    """A key that is no name; what compares it with one acts."""

    def __init__(self, asked: list[Any]) -> None:
        self.asked = asked

    def __hash__(self) -> int:
        return hash("value")

    def __eq__(self, other: object) -> bool:
        self.asked.append(other)
        return False


@pytest.mark.filterwarnings("ignore:non-string key")
def test_a_class_that_holds_more_than_names_is_looked_at_by_the_program_alone():
    def asked_by(run: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> list[Any]:
        asked: list[Any] = []
        base = type("Base", (), {"value": 3})
        odd: Any = type("Odd", (base,), {Key(asked): 1})  # type: ignore[dict-item]

        def program(x: Any) -> Any:
            return x * odd.value

        torch.testing.assert_close(run(program)(torch.arange(3.0)), torch.arange(3.0) * 3)
        return asked

    assert asked_by(lambda program: stator.compile(program, backend="eager")) == asked_by(lambda program: program)


class Indexed:
    def __class_getitem__(cls, key: Any) -> Any:
        return cls.__name__, key


class MoreIndexed(Indexed):
    pass


def test_classes_with_a_subscript_of_their_own() -> None:
    def program(x: Any) -> Any:
        return Indexed[int], MoreIndexed["a"], MoreIndexed[x][1] * 2

    x = torch.arange(3.0)
    assert str(stator.compile(program, fullgraph=True)(x)) == str(program(x))
