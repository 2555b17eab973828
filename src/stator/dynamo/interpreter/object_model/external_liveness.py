"""Decides whether captured code may have dropped the last reference to an existing object, as weak references show."""

from __future__ import annotations

from typing import Any

import torch

from stator.dynamo.values.base import CaptureContext, Lazy
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.tensors.tensor import TensorValue


def may_have_dropped(context: CaptureContext, obj: object) -> bool:
    """Whether `obj` may be dead by now: no variable of the running frames holds it, and captured code changed a
    possible holder or rebound a parameter."""
    value = context.wrapped.get(id(obj))
    variables = [held for frame in context.frames for held in frame.locals.values()]
    if value is not None and any(held is value or (type(held) is Lazy and held.obj is obj) for held in variables):
        return False
    if not all(_keeps(context, kind, changed, name, obj) for kind, changed, name in context.mutations.entries.values()):
        return True
    frame = context.frames[0]
    for name, given in context.owned_arguments.items():
        cell = frame.cells.get(name)
        now = frame.locals.get(name) if cell is None else cell.content
        if now is not given and (now is None or now.source != given.source):
            return True
    return False


def _keeps(context: CaptureContext, kind: str, changed: Any, name: str, obj: object) -> bool:
    """Whether this change cannot have dropped the last reference to `obj`."""
    if kind == "message":
        return True
    if kind == "content":  # a dictionary of hooks, to which a handle refers
        return getattr(changed, "obj", None) is obj
    if kind == "attribute" and isinstance(changed, TensorValue):
        return name == "grad" and not isinstance(obj, torch.Tensor)
    if kind == "attribute" and isinstance(changed, ObjectValue):
        attributes = changed.instance_dict()
        in_class = hasattr(type(changed.obj), name)
        return attributes is not None and not in_class and context.is_constant_object(attributes.get(name))
    return False
