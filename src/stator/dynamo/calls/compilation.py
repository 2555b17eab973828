"""What the program says about its own compilation: that it opted out, and the question whether it is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from stator.base.errors import Unsupported

from ..call_chain import user_code
from ..calling import calls, named_handlers
from ..native_status import native
from ..polyfills.transformer_encoder import encode
from ..status import is_compiling
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue

if TYPE_CHECKING:
    from ..tracer import Tracer


@named_handlers.register(
    ("torch._dynamo.external_utils", "is_compiling"),
    ("torch._dynamo.eval_frame", "is_compiling"),
)
def _is_compiling(tracer: Tracer) -> ConstantValue:
    asker = user_code(tracer.frames[-1].program.code)
    if asker is nn.Module._call_impl.__code__:
        return ConstantValue(False)  # a module asks in order not to call, behind an error, the hooks it calls always
    if asker is nn.TransformerEncoder.forward.__code__:
        # in order not to look at a mask for padding to drop: none is, where it was called from what is followed in its
        # place; and where it is a frame of its own, it is to compute what it does in eager
        return ConstantValue(len(tracer.frames) > 1 and tracer.frames[-2].program.code is encode.__code__)
    tracer.told.asked = True
    if tracer.told.compiling:
        tracer.recorder.unlike_eager = True
    return ConstantValue(tracer.told.compiling)


calls(is_compiling, torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)(_is_compiling)


if native is not None:

    @calls(native.arrived, native.going_on)
    def _arrived(tracer: Tracer) -> ConstantValue:
        return ConstantValue(None)


@named_handlers.register(
    ("stator.control", "graph_break"),
    ("torch._dynamo.decorators", "skip_frame"),
    ("torch._dynamo.decorators", "step_unsupported"),
)
def _graph_break(tracer: Tracer, msg: Value | None = None) -> ConstantValue:
    raise break_requested(tracer, msg)


def break_requested(tracer: Tracer, message: Value | None) -> Unsupported:
    """What a call of a graph break raises; `message` is what the program said to it."""
    text = message.value if isinstance(message, ConstantValue) and isinstance(message.value, str) else ""
    return unsupported("requested", f"the program asks for a graph break{text and f': {text}'}")
