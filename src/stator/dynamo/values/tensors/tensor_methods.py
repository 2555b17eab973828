"""Methods of torch.Tensor that a program may have replaced.

A graph names methods and operators. If the program has replaced a method, no graph may use its name: capture follows
the program's function, and a call of torch's own method ends the graph.

Operators return plain tensors for each subclass of nn.Parameter that leaves `__torch_function__` disabled. So such a
class may add methods and attributes, as long as it overrides none.
"""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

import torch
from torch import nn

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource, ReadSource
from stator.dynamo.host.naming import class_dict, full_name, resolution_order
from stator.dynamo.values.base import CaptureContext, unsupported
from stator.dynamo.values.objects import MISSING

# operator -> the special methods that it calls
SPECIAL: dict[Any, tuple[str, ...]] = {
    operator.getitem: ("__getitem__",),
    operator.setitem: ("__setitem__",),
    operator.neg: ("__neg__",),
    operator.pos: ("__pos__",),
    operator.invert: ("__invert__",),
    abs: ("__abs__",),
    operator.eq: ("__eq__",),
    operator.ne: ("__ne__",),
    operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"),
    operator.gt: ("__gt__", "__lt__"),
    operator.ge: ("__ge__", "__le__"),
    operator.and_: ("__and__", "__rand__"),
    operator.or_: ("__or__", "__ror__"),
    operator.iand: ("__iand__", "__and__", "__rand__"),
    operator.ior: ("__ior__", "__or__", "__ror__"),
}
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "xor", "lshift", "rshift"):
    _plain = (f"__{_name}__", f"__r{_name}__")
    SPECIAL[getattr(operator, _name)] = _plain
    SPECIAL[getattr(operator, f"i{_name}")] = (f"__i{_name}__", *_plain)


def replaced_method(context: CaptureContext, cls: type, name: str) -> Any:
    """The program's own attribute of a tensor class under this name, or MISSING. A guard holds the answer."""
    if not any(cls is one for one in TENSOR_CLASSES):
        return MISSING
    found = context.class_lookup(cls, name)
    function = found.fget if type(found) is property else found
    return found if type(function) is FunctionType and not _is_torch_s(function) else MISSING


def _is_torch_s(function: FunctionType) -> bool:
    """By its globals: functools.wraps copies names and modules to wrappers."""
    return str(function.__globals__.get("__name__")).partition(".")[0] == "torch"


def rely_on_method(context: CaptureContext, cls: type, name: str) -> None:
    """Guard that the method is torch's own. Raises Unsupported for a replaced method."""
    if replaced_method(context, cls, name) is not MISSING:
        raise unsupported(
            "tensor-method",
            f"Tensor.{name}, which the program has replaced by a function of its own",
            "call that function by another name",
        )


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
