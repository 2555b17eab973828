"""Calls of custom autograd.Functions: which of them capture follows, and which end the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules._functions import BackwardHookFunction

from stator.dynamo.host.compile_directives import Treatment, mark_of
from stator.dynamo.host.naming import class_name
from stator.dynamo.interpreter.calling import calls, in_graph, makers
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.objects import ObjectValue

from .autograd_function import FunctionCapture

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_OTHER_PROTOCOLS = ("boxed_grads_call", "clear_saved_tensors_on_access")


@makers.register(torch.autograd.Function)
def _make_function(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`F()`, for the deprecated `F().apply(x)`."""
    return ObjectValue(kind)


@calls(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(context: CaptureContext, cls: Value, *args: Value, **kwargs: Value) -> Value:
    kind = context.real_of(cls, "a subclass of torch.autograd.Function")
    if kwargs:
        raise unsupported("custom-function", f"{class_name(kind)}.apply with keyword arguments")
    if kind is BackwardHookFunction:
        raise unsupported(
            "custom-function", "a backward hook of a module, which looks for a node of autograd by its name"
        )
    mark = mark_of(kind)
    if mark is not None and mark.treatment is Treatment.IN_GRAPH:
        return in_graph(context, mark, context.known(_applied(kind)), list(args), kwargs)
    for name in _OTHER_PROTOCOLS:
        if getattr(kind, name, False):
            raise unsupported("custom-function", f"{class_name(kind)} sets {name}")
    if context.recorder.transforms:
        raise unsupported("custom-function", f"{class_name(kind)}.apply under a function transform")
    capture = FunctionCapture(context, cls, kind, list(args))
    return capture.differentiated() if capture.is_differentiable() else capture.forward_only()


def _applied(kind: type[torch.autograd.Function]) -> Any:
    """`kind.apply` as a plain function: fx graphs print a method of torch by its name in torch."""

    def apply(*args: Any) -> Any:
        return kind.apply(*args)

    apply.__name__ = apply.__qualname__ = f"apply_{class_name(kind)}"
    return apply
