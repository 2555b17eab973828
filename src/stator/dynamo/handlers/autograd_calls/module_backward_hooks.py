"""Full backward hooks of modules: torch puts autograd nodes around a module's inputs and results, with hooks that share
a state. The graph ends at both places; without gradients torch's code does nothing there."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.containers.sequences import SequenceValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.tensors.tensor import TensorValue


def _hooked(function: Any, what: str) -> None:
    @calls(function)
    def handler(context: CaptureContext, hook: Value, given: Value) -> Value:
        if torch.is_grad_enabled() and _requires_grad(context, given):
            raise unsupported(
                "custom-function", f"a full backward hook of a module, on {what}", "register it when it is needed"
            )
        followed = context.known(function)
        assert isinstance(followed, FunctionValue)
        return context.inline(followed, [hook, given], {})


_hooked(BackwardHook.setup_input_hook, "its input")
_hooked(BackwardHook.setup_output_hook, "its result")


def _requires_grad(context: CaptureContext, given: Value) -> bool:
    """Like torch, look at a tensor and at the tensors in a tuple."""
    given = context.realized(given)
    items = context.iterate(given) if isinstance(given, SequenceValue) else iter((given,))
    return any(isinstance(item, TensorValue) and item.fake.requires_grad for item in items)
