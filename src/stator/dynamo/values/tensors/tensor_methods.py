"""Methods of torch.Tensor that a program may have replaced.

A graph names methods and operators. If the program has replaced a method, no graph may use its name: capture follows
the program's function, and a call of torch's own method ends the graph.
"""

from __future__ import annotations

import operator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from stator.dynamo.values.base import unsupported
from stator.dynamo.values.objects import MISSING

from .tensor_classes import TENSOR_CLASSES

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

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
