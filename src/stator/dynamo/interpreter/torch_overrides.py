"""Calls of torch functions with arguments that have `__torch_function__`: tensors of the program's classes and other
objects. The override is called as torch calls it; without an override, the graph works on plain tensors."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stator.dynamo.host.naming import full_name
from stator.dynamo.host.torch_overrides import TORCH_BUILTINS, public_function
from stator.dynamo.values.base import CaptureContext, Lazy, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, SequenceValue, TupleValue
from stator.dynamo.values.objects import MISSING, ObjectValue
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.dynamo.values.tensors.tensor_subclasses import TensorSubclassValue, override_of

_TORCH_S = (torch.Tensor, torch._C.TensorBase)
_NEVER_ASK = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
_CONTAINERS = (list, tuple, torch.Size)
_OF_CLASSES = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)


def takes_subclasses(fn: Any) -> bool:
    """Whether this function in C takes tensors of any class; nearly all of those ask for `__torch_function__`."""
    if isinstance(fn, types.MethodWrapperType):
        fn = fn.__self__  # `__get__` of a getter
    if isinstance(fn, _OF_CLASSES):
        return fn.__objclass__ in _TORCH_S and fn is not torch.Tensor.as_subclass
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    return isinstance(fn, types.BuiltinFunctionType) and fn in TORCH_BUILTINS


def overriding(context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The arguments that may have an override: tensors of other classes and objects, also in lists and tuples."""
    found: list[Value] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, SequenceValue) and value.cls not in _CONTAINERS and _has_override(context, value):
            # torch asks it where a tensor may stand, but not where a list of tensors may stand
            raise unsupported("call-builtin", f"{value.describe(context)}, which overrides torch functions")
        for one in value.items if isinstance(value, SequenceValue) else (value,):
            if type(one) is Lazy and isinstance(one.obj, torch.Tensor):
                one = one.realize(context)
            if type(one) is TensorSubclassValue or (type(one) is ObjectValue and _has_override(context, one)):
                found.append(one)
    return found


def _has_override(context: CaptureContext, value: ObjectValue) -> bool:
    return hasattr(value.cls, "__torch_function__") and override_of(context, value) is not MISSING


def overridden_call(
    context: CaptureContext,
    fn: Any,
    args: list[Value],
    kwargs: dict[str, Value],
    call: Callable[[list[Value], dict[str, Value]], Value],
) -> Value | None:
    """The result of a torch function in C whose arguments may override it; None if they are plain. `call` calls the
    function with plain tensors."""
    found = overriding(context, args, kwargs)
    if not found:
        return None
    if torch._C._is_torch_function_enabled() and fn not in _NEVER_ASK:
        asked = [value for value in found if override_of(context, value) is not MISSING]
        if asked:
            api = context.known(public_function(fn))
            return call_overrides(context, api, asked, args, kwargs, in_c=True)
    if isinstance(fn, types.MethodWrapperType) and fn.__name__ == "__get__" and type(args[0]) is TensorSubclassValue:
        attribute = args[0].plain_attr(context, fn.__self__.__name__)  # type: ignore[attr-defined]
        if attribute is not None:
            return attribute
    return on_plain_tensors(context, args, kwargs, call)


def call_overrides(
    context: CaptureContext,
    api: Value,
    asked: list[Value],
    args: list[Value],
    kwargs: dict[str, Value],
    *,
    in_c: bool,
) -> Value:
    """Call the overrides in torch's order, until one has a result."""
    if context.recorder.function_modes:
        raise unsupported("call-builtin", "a tensor subclass under a mode that sees torch functions")
    order = _in_order(context, asked)
    kinds = TupleValue([context.known(value.python_type(context)) for value in order])
    packed: list[Value] = [api, kinds, TupleValue(list(args))]
    if kwargs or not in_c:
        packed.append(context.dict_of([part for name in kwargs for part in (ConstantValue(name), kwargs[name])]))
    for value in order:
        result = _bound(context, value, in_c).call(context, packed, {})
        if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
            return result
    raise context.raised(TypeError, _refusal(api.real(), [value.python_type(context) for value in order], in_c))


def _in_order(context: CaptureContext, asked: list[Value]) -> list[Value]:
    """One argument of each class: from left to right, but subclasses before their bases."""
    order: list[Value] = []
    kinds: list[type] = []
    for value in asked:
        kind = value.python_type(context)
        if kind not in kinds:
            at = next((at for at, other in enumerate(kinds) if issubclass(kind, other)), len(kinds))
            order.insert(at, value)
            kinds.insert(at, kind)
    return order


def _bound(context: CaptureContext, value: Value, in_c: bool) -> Value:
    kind = value.python_type(context)
    raw = context.class_lookup(kind, "__torch_function__")
    if type(raw) is types.FunctionType and in_c:
        context.warn_now(_PLAIN_METHOD)
    elif not isinstance(raw, (classmethod, staticmethod)):
        raise unsupported("call", f"__torch_function__ of {value.describe(context)}, which is no class method")
    return context.bind(value, kind, "__torch_function__", raw)


_PLAIN_METHOD = (
    "Defining your `__torch_function__` as a plain method is deprecated and will be an error in future, please define "
    "it as a classmethod."
)


def _refusal(function: Any, kinds: list[type], in_c: bool) -> str:
    """The message of torch's TypeError."""
    if not in_c:
        api = f"{function.__module__}.{function.__name__}"
        return f"no implementation found for '{api}' on types that implement __torch_function__: {kinds}"
    where, name, owner = "torch", function.__name__, getattr(function, "__self__", None)
    if isinstance(owner, types.GetSetDescriptorType):
        where, name = "torch.Tensor", f"{owner.__name__}.{name}"
    elif hasattr(function, "__objclass__"):
        where = "torch.Tensor"
    elif isinstance(owner, types.ModuleType):
        where = f"torch.{owner.__name__.rpartition('._')[2]}"
    elif isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        raise unsupported("call-builtin", f"{function}, for which no override has a result")
    listed = "".join(f"\n\n  - tensor subclass {kind}" for kind in kinds)
    return (
        f"Multiple dispatch failed for '{where}.{name}'; all __torch_function__ handlers returned NotImplemented:"
        f"{listed}\n\nFor more information, try re-running with TORCH_LOGS=not_implemented"
    )


# ---- plain tensors ----


def on_plain_tensors(
    context: CaptureContext,
    args: list[Value],
    kwargs: dict[str, Value],
    call: Callable[[list[Value], dict[str, Value]], Value],
) -> Value:
    """Call a function with the plain tensors. An argument that the function returns keeps its class."""
    seen: dict[int, TensorSubclassValue] = {}
    plain = [_plain(context, value, seen) for value in args]
    result = call(plain, {name: _plain(context, value, seen) for name, value in kwargs.items()})
    if isinstance(result, SequenceValue):
        result.items[:] = [seen.get(id(item), item) for item in result.items]
    return seen.get(id(result), result)


def _plain(context: CaptureContext, value: Value, seen: dict[int, TensorSubclassValue]) -> Value:
    value = context.realized(value)
    if type(value) is TensorSubclassValue:
        plain = value.plain(context)
        seen[id(plain)] = value
        return plain
    if isinstance(value, (TupleValue, ListValue)):
        items = [_plain(context, item, seen) for item in value.items]
        if any(type(one) is TensorSubclassValue for one in map(context.realized, value.items)):
            return ListValue(items) if isinstance(value, ListValue) else TupleValue(items)
    return value


def converted(context: CaptureContext, result: Value, cls: type, arguments: list[Value]) -> Value:
    """A result of a torch function as torch.Tensor's own `__torch_function__` gives it: tensors get the class `cls`."""
    if isinstance(result, (TensorValue, TensorSubclassValue)) and not issubclass(result.python_type(context), cls):
        if type(result) is TensorValue and not any(one is result for one in _flat(arguments)):
            return TensorSubclassValue(cls, result)  # nobody else has this plain tensor
        return as_subclass(context, result, cls)
    if isinstance(result, SequenceValue) and result.cls is not torch.Size:
        items = [converted(context, context.realized(item), cls, arguments) for item in result.items]
        return ListValue(items) if isinstance(result, ListValue) else TupleValue(items, cls=result.cls)
    return result


def _flat(values: list[Value]) -> Iterator[Value]:
    for value in values:
        yield from _flat(value.items) if isinstance(value, SequenceValue) else (value,)


def as_subclass(context: CaptureContext, value: Value, cls: type) -> Value:
    """A tensor of class `cls` on the memory of another tensor."""
    if not isinstance(value, (TensorValue, TensorSubclassValue)) or not issubclass(cls, torch.Tensor):
        raise unsupported("new-object", f"a {full_name(cls)} of {value.describe(context)}")
    plain = value.plain(context) if isinstance(value, TensorSubclassValue) else value
    made = context.record_function(torch.ops.aten.alias.default, [plain], {})
    assert isinstance(made, TensorValue)
    return made if cls is torch.Tensor else TensorSubclassValue(cls, made)
