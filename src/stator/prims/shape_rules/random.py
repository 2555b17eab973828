"""Shape rules of operators that draw random numbers."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import broadcast_shapes, preserved_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.type_promotion import common_dtype

from .creation import factory_result
from .operands import elementwise, fresh, overloads, unchanged_argument

aten = torch.ops.aten
RANDOM = ("random",)
IN_PLACE = """
    bernoulli_.float bernoulli_.Tensor uniform_ normal_ exponential_ geometric_ cauchy_ log_normal_ random_ random_.from
    random_.to
"""


@shape_rule(*overloads(IN_PLACE), tags=("random", "inplace"))
def drawn_in_place(self: Any, *_parameters: Any, **_options: Any) -> TensorMeta:
    return unchanged_argument(self)


@shape_rule(*overloads("bernoulli bernoulli.p"), tags=RANDOM)
def bernoulli(self: Any, *_parameters: Any, **_options: Any) -> TensorMeta:
    return fresh(self.shape, self)


LIKE_SELF = """
    bernoulli.Tensor uniform normal_functional exponential geometric cauchy log_normal random random.from random.to
"""


@shape_rule(*overloads(LIKE_SELF), tags=RANDOM)
def drawn_like(self: Any, *_parameters: Any, **_options: Any) -> TensorMeta:
    shape = tuple(self.shape)
    return fresh(shape, self, stride=preserved_strides(shape, self.stride()))


@shape_rule(*overloads("_standard_gamma _sample_dirichlet poisson binomial"), tags=RANDOM)
def one_number_per_element(self: Any, *_parameters: Any, **_options: Any) -> TensorMeta:
    """One number per element, in a dense tensor whatever the layout of the parameters."""
    return fresh(self.shape, self)


@shape_rule(*overloads("_standard_gamma_grad _dirichlet_grad"))
def gradient_for_each(self: Any, *_others: Any) -> TensorMeta:
    return fresh(self.shape, self)


@shape_rule(*overloads("normal.Tensor_float"), tags=RANDOM)
def normal_mean(mean: Any, std: float = 1, *, generator: Any = None) -> TensorMeta:
    return fresh(mean.shape, mean)


@shape_rule(*overloads("normal.float_Tensor"), tags=RANDOM)
def normal_std(mean: float, std: Any, *, generator: Any = None) -> TensorMeta:
    return fresh(std.shape, std)


@shape_rule(*overloads("normal.Tensor_Tensor"), tags=RANDOM)
def normal_both(mean: Any, std: Any, *, generator: Any = None) -> TensorMeta:
    return fresh(broadcast_shapes(tuple(mean.shape), tuple(std.shape)), mean)


@shape_rule(*overloads("normal.float_float"), tags=RANDOM)
def normal_sized(
    mean: float, std: float, size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any
) -> TensorMeta:
    return factory_result(size, dtype or torch.get_default_dtype(), device)


@shape_rule(aten.native_dropout.default, tags=RANDOM)
def native_dropout(input: Any, p: float, train: bool | None) -> tuple[TensorMeta, TensorMeta]:
    shape = tuple(input.shape)
    strides = preserved_strides(shape, input.stride())
    return fresh(shape, input, stride=strides), fresh(shape, input, torch.bool, strides)


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
    return drawn_like(self), drawn_like(noise)


@shape_rule(*overloads("rrelu_with_noise"), tags=("random", "pointwise"))
def rrelu_with_noise(self: Any, noise: Any, *_parameters: Any, **_options: Any) -> TensorMeta:
    return fresh(self.shape, self)
