"""Functions by which a program asks whether it is compiled, or asks for a graph break."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from stator.base.errors import Unsupported
from stator.dynamo.handlers.polyfills.transformer_encoder import encode
from stator.dynamo.host.compile_status import is_compiling
from stator.dynamo.host.native_status import native
from stator.dynamo.interpreter.calling import calls, named_handlers
from stator.dynamo.interpreter.nested_break import user_code
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


@named_handlers.register(
    ("torch._dynamo.external_utils", "is_compiling"),
    ("torch._dynamo.eval_frame", "is_compiling"),
)
def _is_compiling(context: CaptureContext) -> ConstantValue:
    asker = user_code(context.frames[-1].program.code)
    if asker is nn.Module._call_impl.__code__:
        return ConstantValue(False)  # compiled or not, hooks marked `always_call` run behind an error as in eager
    if asker is nn.TransformerEncoder.forward.__code__:
        # Compiled encoders keep padding, as the polyfill wants. An encoder in a frame of its own computes as in eager.
        return ConstantValue(len(context.frames) > 1 and context.frames[-2].program.code is encode.__code__)
    context.asked_whether_compiling = True
    if context.assumptions.says_compiling:
        context.recorder.unlike_eager = True
    return ConstantValue(context.assumptions.says_compiling)


calls(is_compiling, torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)(_is_compiling)


if native is not None:

    @calls(native.arrived, native.going_on)
    def _arrived(context: CaptureContext) -> ConstantValue:
        return ConstantValue(None)


@named_handlers.register(
    ("stator.control", "graph_break"),
    ("torch._dynamo.decorators", "skip_frame"),
    ("torch._dynamo.decorators", "step_unsupported"),
)
def _graph_break(context: CaptureContext, msg: Value | None = None) -> ConstantValue:
    raise break_requested(context, msg)


def break_requested(context: CaptureContext, message: Value | None) -> Unsupported:
    """The error for a call of graph_break(message)."""
    text = message.value if isinstance(message, ConstantValue) and isinstance(message.value, str) else ""
    return unsupported("requested", f"the program asks for a graph break{text and f': {text}'}")
