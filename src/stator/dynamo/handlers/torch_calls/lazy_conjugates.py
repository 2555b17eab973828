"""`resolve_conj` and `resolve_neg`: a tensor that is not lazily conjugated or negated is its own result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from stator.dynamo.interpreter.calling import calls, tensor_methods
from stator.dynamo.values.base import Value
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


def _register(name: str, is_lazy: Callable[[torch.Tensor], bool]) -> None:
    def handler(context: CaptureContext, tensor: TensorValue) -> Value:
        if not is_lazy(tensor.fake):
            return tensor
        return context.recorder.record("call_method", name, torch.Tensor.clone, [tensor], {})

    tensor_methods.register(name)(handler)
    calls(getattr(torch, name))(handler)


_register("resolve_conj", torch.is_conj)
_register("resolve_neg", torch.is_neg)
