"""Classes of tensors: which ones operators take as they take plain tensors, and what a program adds to them.

Operators give plain tensors for an nn.Parameter of any class that leaves `__torch_function__` switched off, as
nn.Parameter does; so such classes may have methods and attributes of their own, as long as they change none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource, ReadSource
from stator.dynamo.host.naming import class_dict, full_name, resolution_order

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

TENSOR_CLASSES: tuple[type, ...] = (torch.Tensor, nn.Parameter, nn.Buffer)
_ABOUT_THE_CLASS = frozenset(
    {
        "__module__",
        "__qualname__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__annotate__",
        "__firstlineno__",
        "__static_attributes__",
        "__new__",
        "__init__",
    }
)


def changed_names(cls: Any) -> tuple[str, ...]:
    """What a class derived from nn.Parameter does in another way, sorted; its special methods are taken to do so."""
    order = resolution_order(cls)
    added = order[: order.index(nn.Parameter)]
    return tuple(sorted(name for one in added for name in class_dict(one) if _changes(name)))


def _changes(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return name not in _ABOUT_THE_CLASS
    return hasattr(nn.Parameter, name)


def relies_on_plain_parameters(context: CaptureContext, cls: type) -> bool:
    """Whether `cls` is a parameter like others but for what it adds, which is guarded then."""
    base = resolution_order(nn.Parameter)
    if resolution_order(cls)[-len(base) :] != base or type(cls) is not type(nn.Parameter) or changed_names(cls):
        return False
    context.guard(ReadSource(changed_names, (ConstantSource(full_name(cls), cls),)), GuardKind.EQUALS, ())
    return True
