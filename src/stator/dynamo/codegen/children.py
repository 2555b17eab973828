"""The parts of sources and recipes: the traversal that all visitors share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from stator.dynamo.guards.source import ConstantSource, Source
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Recipe


def source_bases(source: Source) -> Iterable[Source]:
    """The sources through which a source is read."""
    return _members(source, Source)  # type: ignore[return-value]


def recipe_children(recipe: Recipe) -> Iterable[Recipe]:
    """The recipes to which a recipe refers directly, in order."""
    return _members(recipe, Recipe)  # type: ignore[return-value]


_LEAVES = (ConstantRecipe, ConstantSource)


_field_names: dict[type, tuple[str, ...]] = {}


def _members(node: Any, kind: type) -> list[object]:
    found: list[object] = []
    if type(node) in _LEAVES:  # leaves hold objects of the program, which are not traversed
        return found
    names = _field_names.get(type(node))
    if names is None:
        names = _field_names[type(node)] = tuple(field.name for field in fields(node))
    for name in names:
        _collect(getattr(node, name), kind, found)
    return found


def _collect(value: object, kind: type, found: list[object]) -> None:
    if isinstance(value, kind):
        found.append(value)
    elif type(value) in (list, tuple):
        for item in value:  # type: ignore[attr-defined]
            _collect(item, kind, found)
    elif type(value) is dict:
        for item in value.values():
            _collect(item, kind, found)
