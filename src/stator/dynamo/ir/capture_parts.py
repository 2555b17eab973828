"""The parts of captures, recipes and sources: the traversal that the verifier and code generation share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from stator.dynamo.guards.source import ConstantSource
from stator.dynamo.host.naming import module_of

from .reconstruct_ir import ConstantRecipe

_LEAVES = (ConstantRecipe, ConstantSource)  # they hold objects of the program
_field_names: dict[type, tuple[str, ...]] = {}


def parts(node: Any) -> Iterable[object]:
    """The fields of an object of a capture, or the items of a container. Other objects have no parts."""
    kind = type(node)
    if kind in (list, tuple, frozenset):
        return node
    if kind is dict:
        return node.values()
    names = _field_names.get(kind)
    if names is None:
        if not module_of(kind).startswith("stator.dynamo") or not hasattr(kind, "__dataclass_fields__"):
            return ()
        names = _field_names[kind] = tuple(field.name for field in fields(kind))
    return [getattr(node, name) for name in names]


def members(node: object, kind: type) -> list[Any]:
    """The nearest parts of this kind, in order."""
    found: list[object] = []
    for part in () if type(node) in _LEAVES else parts(node):
        if isinstance(part, kind):
            found.append(part)
        else:
            found += members(part, kind)
    return found
