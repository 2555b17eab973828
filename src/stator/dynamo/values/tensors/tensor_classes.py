"""Classes of tensors that operators treat as plain tensors.

Operators return plain tensors for each subclass of nn.Parameter that leaves `__torch_function__` disabled. So such a
class may add methods and attributes, as long as it overrides none.
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
    """The sorted names that a subclass of nn.Parameter overrides; each special method counts."""
    order = resolution_order(cls)
    added = order[: order.index(nn.Parameter)]
    return tuple(sorted(name for one in added for name in class_dict(one) if _changes(name)))


def _changes(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return name not in _ABOUT_THE_CLASS
    return hasattr(nn.Parameter, name)


def relies_on_plain_parameters(context: CaptureContext, cls: type) -> bool:
    """Whether `cls` only adds attributes to nn.Parameter, which a guard then holds."""
    base = resolution_order(nn.Parameter)
    if resolution_order(cls)[-len(base) :] != base or type(cls) is not type(nn.Parameter) or changed_names(cls):
        return False
    context.guard(ReadSource(changed_names, (ConstantSource(full_name(cls), cls),)), GuardKind.EQUALS, ())
    return True
