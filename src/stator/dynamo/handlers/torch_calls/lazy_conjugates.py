"""Resolving tensors that are conjugated or negated lazily: what is not is itself, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from stator.dynamo.interpreter.calling import calls, tensor_methods
from stator.dynamo.values.base import Value
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


def _registered(name: str, is_lazy: Callable[[torch.Tensor], bool]) -> None:
    def handler(context: CaptureContext, tensor: TensorValue) -> Value:
        if not is_lazy(tensor.fake):
            return tensor
        return context.recorder.record("call_method", name, torch.Tensor.clone, [tensor], {})

    tensor_methods.register(name)(handler)
    calls(getattr(torch, name))(handler)


_registered("resolve_conj", torch.is_conj)
_registered("resolve_neg", torch.is_neg)
