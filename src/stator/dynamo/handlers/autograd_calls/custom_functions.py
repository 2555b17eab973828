"""Calls of custom autograd.Functions: which of them capture follows, and which end the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.modules._functions import BackwardHookFunction

from stator.dynamo.host.naming import class_name
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value, unsupported

from .autograd_function import FunctionCapture

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_OTHER_PROTOCOLS = ("boxed_grads_call", "clear_saved_tensors_on_access")


@calls(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(context: CaptureContext, cls: Value, *args: Value, **kwargs: Value) -> Value:
    kind = context.real_of(cls, "a subclass of torch.autograd.Function")
    if kwargs:
        raise unsupported("custom-function", f"{class_name(kind)}.apply with keyword arguments")
    if kind is BackwardHookFunction:
        raise unsupported(
            "custom-function", "a backward hook of a module, which looks for a node of autograd by its name"
        )
    for name in _OTHER_PROTOCOLS:
        if getattr(kind, name, False):
            raise unsupported("custom-function", f"{class_name(kind)} sets {name}")
    if context.recorder.transforms:
        raise unsupported("custom-function", f"{class_name(kind)}.apply under a function transform")
    capture = FunctionCapture(context, cls, kind, list(args))
    return capture.differentiated() if capture.is_differentiable() else capture.forward_only()
