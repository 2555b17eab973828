"""Full backward hooks of modules: torch puts nodes of autograd around what the module is given and what it returns, and
hooks on both that share a state. The graph ends at each of the two; without gradients torch's code does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import BackwardHook

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.containers.sequences import SequenceValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


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
    """Of a tensor or of tensors in a tuple, which is where torch looks."""
    given = context.realized(given)
    items = context.iterate(given) if isinstance(given, SequenceValue) else iter((given,))
    return any(isinstance(item, TensorValue) and item.fake.requires_grad for item in items)
