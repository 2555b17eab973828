"""Tensors that are conjugated or negated lazily: fake tensors do not show it, real ones in the same graph may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..calling import calls, tensor_methods
from ..values.base import Value
from ..values.tensors import TensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer


def _registered(name: str) -> None:
    def handler(tracer: Tracer, tensor: TensorValue) -> Value:
        """A value of its own, though on fake tensors it is the tensor itself: there may be something to resolve."""
        if name == "resolve_conj" and not tensor.fake.is_complex():
            return tensor
        return tracer.recorder.record("call_method", name, lambda fake: fake.view_as(fake), [tensor], {})

    tensor_methods.register(name)(handler)
    calls(getattr(torch, name))(handler)


_registered("resolve_conj")
_registered("resolve_neg")
