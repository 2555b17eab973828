"""Shape rules of operators that simulate quantization on plain tensors. Quantized tensors are refused."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from stator.base.errors import Unsupported
from stator.prims.layout import preserved_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.shape_rules.operands import fresh, overloads


@shape_rule(
    *overloads(
        "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask "
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    )
)
def fake_quantize(self: Any, *_options: Any, **_named: Any) -> tuple[TensorMeta, TensorMeta]:
    """The rounded tensor, and the mask of elements in range."""
    shape = tuple(self.shape)
    strides = preserved_strides(shape, self.stride())
    return fresh(shape, self, stride=strides), fresh(shape, self, torch.bool, strides)


@shape_rule(*overloads("quantize_per_tensor quantize_per_tensor.tensor_qparams quantize_per_tensor.tensors"))
def quantize(*_args: Any, **_named: Any) -> NoReturn:
    """Refused: the meta kernel gives a tensor that is not quantized."""
    raise Unsupported("tensor-layout", "a quantized tensor is not supported")
