"""Recipes: small expression trees by which an object is rebuilt at run time. Codegen emits bytecode from them.

The symbolic interpreter turns its values into recipes when a graph ends; nothing here knows values or bytecode. Two
appearances of one `New*` recipe object (by identity) mean one object at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stator.dynamo.bytecode import Position
from stator.dynamo.guards.source import Source


@dataclass(eq=False, slots=True)
class Recipe:
    """Base of all recipes. Recipes compare by identity."""


@dataclass(eq=False, slots=True)
class Load(Recipe):
    """Read the content of a source as it was when the frame was entered; effects are applied afterwards."""

    source: Source


@dataclass(eq=False, slots=True)
class ConstantRecipe(Recipe):
    """An object known at compile time, kept alive by the compiled code. Must not be mutable user state."""

    value: Any


@dataclass(eq=False, slots=True)
class RaisedAt(Recipe):
    """The offset of the instruction that raised, on the stack of a frame that is left inside an exception handler."""


@dataclass(eq=False, slots=True)
class GraphOutput(Recipe):
    """The `index`-th output of the compiled graph."""

    index: int


@dataclass(eq=False, slots=True)
class NewTuple(Recipe):
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class NewList(Recipe):
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class NewDict(Recipe):
    """A plain dict in the given insertion order."""

    items: list[tuple[Recipe, Recipe]]


@dataclass(eq=False, slots=True)
class NewCell(Recipe):
    """A fresh closure cell; `content` None leaves it empty."""

    content: Recipe | None


@dataclass(eq=False, slots=True)
class FrameCell(Recipe):
    """The cell object of a cell or free variable of the captured frame."""

    name: str


@dataclass(eq=False, slots=True)
class CallRecipe(Recipe):
    """`function(*args, **kwargs)`, evaluated once however often the recipe occurs."""

    function: Recipe
    args: list[Recipe] = field(default_factory=list)
    kwargs: dict[str, Recipe] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class GetAttr(Recipe):
    base: Recipe
    name: str


@dataclass(eq=False, slots=True)
class Effect:
    """An expression that is evaluated for its effect, behind the graph and before the exit; effects keep their order.
    `position`: the place in the user's code that tracebacks show."""

    expression: Recipe
    position: Position | None = None


def call_recipe(function: Callable[..., object], *args: Recipe) -> CallRecipe:
    return CallRecipe(ConstantRecipe(function), list(args))


def call_effect(function: Callable[..., object], *args: Recipe) -> Effect:
    return Effect(call_recipe(function, *args))
