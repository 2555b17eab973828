"""Shape rules of operators that draw random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from stator.prims.layout import broadcast_shapes
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.type_promotion import common_dtype

from .creation import factory_result
from .like_arguments import preserved
from .operands import elementwise, fresh, is_tensor, overloads, unchanged_argument

aten = torch.ops.aten
RANDOM = ("random",)
IN_PLACE = """
    bernoulli_.float bernoulli_.Tensor uniform_ normal_ exponential_ geometric_ cauchy_ log_normal_ random_ random_.from
    random_.to
"""


@shape_rule(*overloads(IN_PLACE), tags=("random", "inplace"))
def drawn_in_place(self: Any, *_parameters: Any, **_options: Any) -> TensorMeta:
    return unchanged_argument(self)


@shape_rule(*overloads("normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor"), tags=RANDOM)
def normal(mean: Any, std: Any = 1, *, generator: Any = None) -> TensorMeta:
    given = [bound for bound in (mean, std) if is_tensor(bound)]
    return fresh(broadcast_shapes(tuple(given[0].shape), tuple(given[-1].shape)), given[0])


@shape_rule(*overloads("normal.float_float"), tags=RANDOM)
def normal_sized(
    mean: float, std: float, size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any
) -> TensorMeta:
    return factory_result(size, dtype or torch.get_default_dtype(), device)


@shape_rule(aten.native_dropout.default, tags=RANDOM)
def native_dropout(input: Any, p: float, train: bool | None) -> tuple[TensorMeta, TensorMeta]:
    result = preserved(input)
    return result, replace(result, dtype=torch.bool)


@shape_rule(*overloads("native_dropout_backward"), tags=("pointwise",))
def native_dropout_backward(grad_output: Any, mask: Any, scale: float) -> TensorMeta:
    return elementwise((grad_output, mask), common_dtype((grad_output, mask, scale)))


@shape_rule(aten.multinomial.default, tags=RANDOM)
def multinomial(self: Any, num_samples: Any, replacement: bool = False, *, generator: Any = None) -> TensorMeta:
    return fresh((*self.shape[:-1], num_samples), self, torch.int64)


@shape_rule(*overloads("rrelu_with_noise_functional"), tags=RANDOM)
def rrelu(
    self: Any, noise: Any, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[TensorMeta, TensorMeta]:
    return preserved(self), preserved(noise)
