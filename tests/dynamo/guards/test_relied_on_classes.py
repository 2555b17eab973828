"""What captured code finds in classes, functions and abstract classes is relied on: once it is another, so is the
answer. Code without operations on tensors is replaced, too.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import reprlib
import types
from typing import Any

import pytest

import stator
from stator.base import config


@stator.disable
def pause() -> None:
    """A call that capture does not follow."""


@pytest.fixture(autouse=True)
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", True)


def _compiled(function: Any) -> Any:
    return stator.compile(function, backend="eager")


@pytest.mark.parametrize("name", ["__name__", "__qualname__", "__module__", "__doc__"])
def test_names_of_a_class_that_change(name: str) -> None:
    class Named:
        pass

    compiled = _compiled(lambda: getattr(Named, name))
    for text in ("first", "second"):
        setattr(Named, name, text)
        assert compiled() == text


@pytest.mark.parametrize("name", ["__name__", "__qualname__", "__module__", "__doc__"])
def test_names_of_functions_with_the_same_code(name: str) -> None:
    def made(text: str) -> Any:
        def function() -> None:
            pass

        setattr(function, name, text)
        return function

    compiled = _compiled(lambda function: getattr(function, name))
    assert [compiled(made(text)) for text in ("first", "second")] == ["first", "second"]


def test_a_class_that_is_registered_later() -> None:
    class Sized:
        pass

    value = Sized()
    compiled = _compiled(
        lambda: (issubclass(Sized, collections.abc.Container), isinstance(value, int | collections.abc.Container))
    )
    assert compiled() == (False, False)
    collections.abc.Container.register(Sized)
    assert compiled() == (True, True)


def test_a_proxy_says_what_its_class_is() -> None:
    class Proxy:
        def __init__(self, shown: object) -> None:
            object.__setattr__(self, "shown", shown)

        def __getattribute__(self, name: str) -> Any:
            return getattr(object.__getattribute__(self, "shown"), name)

    def kinds() -> tuple[bool, ...]:
        proxy = Proxy(5)
        return isinstance(proxy, int), isinstance(proxy, str), isinstance(proxy, Proxy)

    assert _compiled(kinds)() == kinds() == (True, False, True)


def test_members_of_an_enumeration_that_is_being_made() -> None:
    def made() -> list[int]:
        class Numbered(enum.IntEnum):
            def __new__(cls) -> Any:
                made = int.__new__(cls, len(cls.__members__) + 1)
                made._value_ = len(cls.__members__) + 1
                return made

        class Color(Numbered):
            red = ()
            green = ()

        return [int(color) for color in Color]

    assert _compiled(made)() == made() == [1, 2]


def test_what_stands_behind_the_metadata_of_a_field() -> None:
    notes: dict[str, int] = {}

    @dataclasses.dataclass
    class Point:
        x: int = dataclasses.field(default=0, metadata=notes)

    compiled = _compiled(lambda: dict(dataclasses.fields(Point)[0].metadata))
    assert compiled() == {}
    notes["unit"] = 1
    assert compiled() == {"unit": 1}
    notes["unit"] = 2
    assert compiled() == {"unit": 2}


def test_what_an_object_inside_of_itself_is_shown_as() -> None:
    class Held:
        def __init__(self) -> None:
            self.items: list[Any] = []

    class Shown(Held):
        @reprlib.recursive_repr("+++")
        def __repr__(self) -> str:
            return "<" + ", ".join(map(str, self.items)) + ">"

    def show() -> str:
        made = Shown()
        made.items.append(made)
        return repr(made)

    assert _compiled(show)() == show() == "<+++>"


def test_kinds_of_bound_methods_of_built_in_classes() -> None:
    def kinds() -> tuple[bool, ...]:
        return (
            isinstance(object().__init__, types.MethodWrapperType),
            isinstance([].__len__, types.MethodWrapperType),
            isinstance([].append, types.BuiltinMethodType),
        )

    assert _compiled(kinds)() == kinds() == (True, True, True)


class _Base:
    def __init__(self, number: int) -> None:
        self.number = number

    def who(self) -> int:
        return self.number


class _Receivers(_Base):
    def another(self, other: _Base) -> tuple[int, int]:
        self = other  # noqa: F841 - super() asks for it
        pause()
        return super().who(), super().number if hasattr(super(), "number") else -1

    def none(self) -> str:
        del self
        pause()
        try:
            return str(super().who())
        except (RuntimeError, UnboundLocalError) as error:  # as the version has it
            return str(error)


def test_the_receiver_of_super_behind_a_break() -> None:
    one, other = _Receivers(1), _Receivers(2)
    assert _compiled(lambda: one.another(other))() == one.another(other)
    assert _compiled(_Receivers.another)(one, other) == one.another(other)
    assert _compiled(lambda: one.none())() == one.none()
    assert _compiled(_Receivers.none)(one) == one.none()


def test_super_without_a_receiver() -> None:
    def asks() -> Any:
        pause()
        return super().who()

    with pytest.raises(RuntimeError, match=r"super\(\): no arguments"):
        _compiled(asks)()
