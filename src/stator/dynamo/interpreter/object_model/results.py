"""Values of new objects that real code computed from constants during capture; no guard watches them."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

from stator.dynamo.host.naming import class_name, is_python_class
from stator.dynamo.host.numpy_boundary import is_numpy_bool, is_numpy_number
from stator.dynamo.interpreter import wrapping
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.sets import SetValue
from stator.dynamo.values.containers.slices import RangeValue, SliceValue

_IMMUTABLE: tuple[type, ...] = (
    types.GenericAlias,
    types.UnionType,
    typing._Final,  # type: ignore[attr-defined]
    *(typing.TypeVar, typing.TypeVarTuple, typing.ParamSpec),  # written in C since 3.12
    re.Pattern,
    re.Match,
    type(torch.ops.aten),
)
_RESULTS: dict[type, Callable[[Any, Any, str], Value]] = {
    slice: lambda context, obj, what: SliceValue(
        ConstantValue(obj.start), ConstantValue(obj.stop), ConstantValue(obj.step)
    ),
    range: lambda context, obj, what: RangeValue(obj),
    list: lambda context, obj, what: ListValue([wrap_result(context, item, what) for item in obj]),
    set: lambda context, obj, what: SetValue.of(context, [wrap_result(context, item, what) for item in obj]),
    torch.SymInt: lambda context, obj, what: context.recorder.numbers.number(obj),
    torch.SymFloat: lambda context, obj, what: context.recorder.numbers.number(obj),
    torch.SymBool: lambda context, obj, what: context.recorder.numbers.number(obj),
}


def wrap_result(context: CaptureContext, obj: Any, what: str) -> Value:
    """The value of a new object; errors call it `what`. Raises Unsupported."""
    text_or_number = isinstance(obj, (int, float, str)) and not is_python_class(type(obj))
    constant = wrapping.is_constant_object(obj) and type(obj) is not tuple
    if constant or text_or_number or is_numpy_number(obj) or is_numpy_bool(obj):
        return ConstantValue(obj)
    maker = _RESULTS.get(type(obj))
    if maker is not None:
        return maker(context, obj, what)
    if isinstance(obj, tuple):
        return TupleValue([wrap_result(context, item, what) for item in obj], cls=type(obj))
    if isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, *_IMMUTABLE)):
        return context.known(obj)
    raise unsupported("result", f"{what} is a {class_name(type(obj))}, which capture cannot hold")


def is_immutable(obj: Any) -> bool:
    """Whether an object never changes and compares by identity, so that an IS guard suffices."""
    return issubclass(type(obj), _IMMUTABLE)  # a weak proxy claims its referent's class
