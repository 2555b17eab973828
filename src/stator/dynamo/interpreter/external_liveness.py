"""Whether captured code may have let go of the last reference to an object from outside, as weak references show."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.values.base import Lazy
from stator.dynamo.values.containers.append_only_lists import GrownList
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from .capture_context import CaptureContext

_MOST = 64  # items of a changed container that are looked at


def may_have_dropped(context: CaptureContext, obj: object) -> bool:
    """Whether `obj` may be gone by now: a change replaced what may have held it, or a parameter was rebound; and no
    variable of the frames at work holds it."""
    if _is_in_variable(context, obj):
        return False
    if any(_may_have_held(context, kind, value, name, obj) for kind, value, name in context.mutations.entries.values()):
        return True
    frame = context.frames[0]
    for name, given in context.given.items():
        cell = frame.cells.get(name)
        now = frame.locals.get(name) if cell is None else cell.content
        if now is not given and (now is None or now.source != given.source):
            return True
    return False


def _is_in_variable(context: CaptureContext, obj: object) -> bool:
    """As `weight` in `weight = self.weight; reference() is weight`: one value stands for an object wherever it is."""
    value = context.wrapped.get(id(obj))
    if value is None:
        return False
    for frame in context.frames:
        for held in frame.locals.values():
            if held is value or (type(held) is Lazy and held.obj is obj):
                return True
    return False


def _may_have_held(context: CaptureContext, kind: str, value: Any, name: str, obj: object) -> bool:
    if kind == "message":
        return False
    if kind == "attribute" and isinstance(value, TensorValue) and name == "grad":
        return isinstance(obj, torch.Tensor)
    if kind == "attribute" and isinstance(value, ObjectValue):
        olds: Iterable[Any] = [(value.instance_dict() or {}).get(name)] if _is_in_dict(value, name) else [obj]
    elif kind == "class":
        olds = [inspect.getattr_static(value.real(), name, None)]
    elif kind == "content" and isinstance(value, DictValue) and isinstance(value.obj, dict):
        olds = [old for key, old in dict.items(value.obj) if not _is_kept(value.entries.get(key), old, value.whole)]
    elif kind == "content" and isinstance(value, GrownList) and value.only_appended:
        return False
    elif kind == "content" and isinstance(value, ListValue) and isinstance(value.obj, list):
        kept = {id(getattr(item, "obj", None)) for item in value.items[:_MOST]}
        olds = [old for old in value.obj if id(old) not in kept]
    else:
        return True
    return any(not _holds_nothing(context, old, obj) for old in olds)


def _is_in_dict(value: ObjectValue, name: str) -> bool:
    """Whether the attribute stands in the instance's dictionary, or did not exist."""
    return value.instance_dict() is not None and not hasattr(type(value.obj), name)


def _is_kept(now: Any, old: object, whole: bool) -> bool:
    if now is None:
        return not whole
    return type(now) is Lazy or getattr(now, "obj", None) is old


def _holds_nothing(context: CaptureContext, old: object, obj: object) -> bool:
    """Whether letting go of `old` lets go of nothing else."""
    if isinstance(old, torch.Tensor):
        return not isinstance(obj, torch.Tensor) and not getattr(old, "__dict__", None)
    return context.is_constant_object(old)
