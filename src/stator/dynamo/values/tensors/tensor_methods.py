"""What `torch.Tensor` holds under the names that programs use: relied on, and told apart from what a program put there.

A graph names methods and operators; so where a program has put a function of its own in the place of one of torch's, no
graph may use that name: the program's function is followed, and torch's own, which it may call, ends the graph.
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

# operator -> the special methods that it asks
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


def of_program(context: CaptureContext, cls: type, name: str) -> Any:
    """What a program has put into the tensor class, or its base, under a name. MISSING where it has not: relied on."""
    if not any(cls is one for one in TENSOR_CLASSES):
        return MISSING
    found = context.class_lookup(cls, name)
    function = found.fget if type(found) is property else found
    return found if isinstance(function, FunctionType) and not _is_torch_s(function) else MISSING


def _is_torch_s(function: FunctionType) -> bool:
    """By its globals: a wrapper may call itself like what it wraps, module included."""
    return str(function.__globals__.get("__name__")).partition(".")[0] == "torch"


def rely_on_method(context: CaptureContext, cls: type, name: str) -> None:
    """What is there under the name is torch's own. Raises Unsupported where it is not."""
    if of_program(context, cls, name) is not MISSING:
        raise unsupported(
            "tensor-method",
            f"Tensor.{name}, in whose place the program has put a function of its own",
            "call that function by another name",
        )
