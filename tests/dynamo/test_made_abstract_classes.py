"""Abstract classes that captured code makes are abstract when they leave the graph, too."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


def method(x: torch.Tensor) -> Any:
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self) -> None: ...

    try:
        Shape()
    except TypeError as error:
        text = str(error)
    stator.graph_break()
    return x + 1, text, sorted(Shape.__abstractmethods__)


def descriptors(x: torch.Tensor) -> Any:
    class Shape(abc.ABC):
        @property
        @abc.abstractmethod
        def area(self) -> None: ...

        @staticmethod
        @abc.abstractmethod
        def unit() -> None: ...

    made = issubclass(Shape, abc.ABC)
    stator.graph_break()
    return x + 1, made, sorted(Shape.__abstractmethods__)


def behind_other_attributes(x: torch.Tensor) -> Any:
    class Shape(abc.ABC):  # noqa: B024
        def area(self) -> None: ...  # noqa: B027

        area.tags = [1]  # type: ignore[attr-defined]
        area = abc.abstractmethod(area)

    stator.graph_break()
    return x + 1, sorted(Shape.__abstractmethods__), sorted(vars(Shape.area))


@pytest.mark.parametrize("function", [method, descriptors, behind_other_attributes], ids=lambda one: one.__name__)
def test_what_is_abstract_stays_so(function: Callable[..., Any]) -> None:
    stator.reset()
    assert stator.compile(function, backend="eager")(torch.ones(2))[1:] == function(torch.ones(2))[1:]


def test_attributes_of_functions_keep_their_order() -> None:
    def function(x: torch.Tensor) -> Any:
        def inner() -> None: ...

        inner.one, inner.two, inner.three = 1, [2], 3  # type: ignore[attr-defined]
        return x + 1, inner

    stator.reset()
    made = stator.compile(function, backend="eager", fullgraph=True)(torch.ones(2))[1]
    assert list(vars(made).items()) == [("one", 1), ("two", [2]), ("three", 3)]
