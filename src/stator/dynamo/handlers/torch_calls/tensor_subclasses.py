"""Tensor subclasses: how captured code makes them, the default `__torch_function__`, and blocks without overrides."""

from __future__ import annotations

from typing import Any

import torch
from torch import overrides

from stator.dynamo.host.torch_overrides import function_state, set_function_state
from stator.dynamo.interpreter.calling import calls, handlers, makers, polyfill, tensor_methods
from stator.dynamo.interpreter.torch_overrides import as_subclass, call_overrides, converted
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import MISSING
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.dynamo.values.tensors.tensor_subclasses import TensorSubclassValue, override_of
from stator.graph.fake.wrapper_subclasses import has_own_functions


def _tensor_class(context: CaptureContext, cls: Value) -> type:
    real = context.real_of(cls, "a class")
    if not (isinstance(real, type) and issubclass(real, torch.Tensor)) or real.__torch_dispatch__ is not _NO_DISPATCH:
        raise unsupported("tensor-subclass", f"a tensor of {cls.describe(context)}")
    return real


_NO_DISPATCH = torch.Tensor.__torch_dispatch__


@calls(torch.Tensor.as_subclass)
@tensor_methods.register("as_subclass")
def _as_subclass(context: CaptureContext, tensor: Value, cls: Value) -> Value:
    return as_subclass(context, tensor, _tensor_class(context, cls))


@calls(torch.Tensor._make_subclass)
def _make_subclass(context: CaptureContext, cls: Value, data: Value, require_grad: Value | None = None) -> Value:
    if require_grad is not None and context.truth(require_grad):
        raise unsupported("new-object", "a tensor subclass that requires grad, made by _make_subclass")
    kind = _tensor_class(context, cls)
    plain = data.plain(context) if isinstance(data, TensorSubclassValue) else data
    detached = context.record_method("detach", [plain], {})
    assert isinstance(detached, TensorValue)
    return TensorSubclassValue(kind, detached)


@calls(torch.Tensor.__new__)
def _new(context: CaptureContext, cls: Value, *args: Value, **kwargs: Value) -> Value:
    """torch.Tensor's constructor: another view of a tensor, or a tensor of numbers."""
    kind = _tensor_class(context, cls)
    made = context.call(context.known(torch.Tensor), list(args), kwargs)
    return made if kind is torch.Tensor or not isinstance(made, TensorValue) else TensorSubclassValue(kind, made)


@makers.register(torch.Tensor)
def _make(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _new(context, context.known(kind), *args, **kwargs)


# ---- __torch_function__ ----


@calls(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def _default(
    context: CaptureContext,
    cls: Value,
    func: Value,
    types: Value,
    args: Value | None = None,
    kwargs: Value | None = None,
) -> Value:
    """The inherited override: runs the function on plain tensors, and gives its results the class."""
    kind = _tensor_class(context, cls)
    if not all(issubclass(kind, context.real_of(other, "a class")) for other in context.iterate(types)):
        return ConstantValue(NotImplemented)
    given = list(context.iterate(args)) if args is not None else []
    result = _disabled(context, func, types, args, kwargs)
    if kind is torch.Tensor or func.real() in overrides.get_default_nowrap_functions():
        return result
    return converted(context, result, kind, given)


@calls(torch._C._disabled_torch_function_impl)
def _disabled(
    context: CaptureContext, func: Value, types: Value, args: Value | None = None, kwargs: Value | None = None
) -> Value:
    """Call the function without overrides."""
    given = list(context.iterate(args)) if args is not None else []
    named = {} if kwargs is None or context.is_none(kwargs) else dict(_named(context, kwargs))
    with torch._C.DisableTorchFunctionSubclass():
        return context.call(func, given, named)


def _named(context: CaptureContext, kwargs: Value) -> list[tuple[str, Value]]:
    return [(context.constant_of(name, "a keyword"), value) for name, value in context.mapping_items(kwargs)]


@calls(overrides.handle_torch_function)
def _handle(context: CaptureContext, api: Value, relevant: Value, *args: Value, **kwargs: Value) -> Value:
    asked = [
        value
        for value in context.iterate(relevant)
        if value.python_type(context) is torch.Tensor or override_of(context, value) is not MISSING
    ]
    if any(isinstance(value, TensorValue) and has_own_functions(value.cls) for value in asked):
        # an operation of the graph, which the class of a tensor made of other tensors runs
        return context.record_function(context.real_of(api, "a torch function"), list(args), kwargs)
    return call_overrides(context, api, asked, list(args), kwargs, in_c=False)


# ---- blocks without overrides ----


class OverridesDisabled:
    """In captured code: a block in which torch calls fewer overrides."""

    def __init__(self, subclasses_only: bool) -> None:
        self.subclasses_only = subclasses_only
        self.before = 0

    def __enter__(self) -> None:
        self.before = function_state()
        set_function_state(max(self.before, 1) if self.subclasses_only else 2)

    def __exit__(self, *error: Any) -> None:
        set_function_state(self.before)


@polyfill(torch._C.DisableTorchFunctionSubclass)
def disable_of_subclasses() -> OverridesDisabled:
    return OverridesDisabled(True)


@polyfill(torch._C.DisableTorchFunction)
def disable_all() -> OverridesDisabled:
    return OverridesDisabled(False)


@calls(set_function_state)
def _set_function_state(context: CaptureContext, state: Value) -> None:
    """No operator depends on it, so that the graph has no node for it."""
    context.run_real(set_function_state, (context.constant_of(state, "a state"),))


# ---- special methods of torch.Tensor, called by name ----


handlers.add_all(
    {
        torch._C._is_torch_function_enabled: lambda context: ConstantValue(torch._C._is_torch_function_enabled()),
        torch._C._is_torch_function_all_disabled: lambda context: ConstantValue(function_state() == 2),
        function_state: lambda context: ConstantValue(function_state()),
        torch.Tensor.__getitem__: lambda context, tensor, key: context.get_item(tensor, key),
        torch.Tensor.__setitem__: lambda context, tensor, key, value: tensor.set_item(context, key, value),
        torch.Tensor.__bool__: lambda context, tensor: ConstantValue(context.truth(tensor)),
    }
)
