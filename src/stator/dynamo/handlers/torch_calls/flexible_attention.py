"""`torch.nn.attention.flex_attention`: capture follows torch's Python implementation of the operator, which computes
all scores. (The program imports the operator; stator never does.)"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from stator.dynamo.interpreter.calling import named_handlers
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_MODULE = "torch._higher_order_ops.flex_attention"


@named_handlers.register((_MODULE, "FlexAttentionHOP.__call__"))
def _flex_attention(context: CaptureContext, operator: Value, query: Value, *args: Value, **kwargs: Value) -> Value:
    plain = getattr(sys.modules[_MODULE], "sdpa_dense", None)
    device = query.fake.device.type if isinstance(query, TensorValue) else "cpu"
    if plain is None or context.recorder.transforms or torch.is_autocast_enabled(device):
        raise unsupported("call", "flex_attention under a function transform or autocast")
    tensors = [one for one in (query, *args[:2]) if isinstance(one, TensorValue)]
    if torch.is_grad_enabled() and any(one.fake.requires_grad for one in tensors):  # the operator has its own backward
        raise unsupported("call", "flex_attention on tensors that require grad")
    return context.call(context.known(plain), [query, *args], kwargs)
