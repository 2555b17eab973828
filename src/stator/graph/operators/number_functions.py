"""Forms of dropout, random numbers and arithmetic whose numbers change between calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from stator.graph.fake.number_stand_ins import is_number
from stator.prims.decompositions import quantiles
from stator.prims.decompositions.decomposition_decorator import cast
from stator.prims.layout import broadcast_shapes
from stator.prims.type_promotion import computation_dtype

from .data_dependent_functions import decomposed
from .number_forms import (
    below_autograd,
    forms,
    has_gradient,
    is_between,
    is_empty,
    is_half,
    is_nonzero,
    is_positive,
    is_real,
    is_real_number,
    number_tensor,
    root,
    takes,
)

aten = torch.ops.aten
_SELU_SHIFT = 1.7580993408473766  # -alpha * scale of selu: what alpha dropout puts in place of dropped elements


# ---- dropout --------------------------------------------------------------------------------------------------------


def _noise(like: Any, keep: Any) -> Any:
    """1 with probability `keep`, else 0; as eager draws it."""
    return below_autograd(aten.bernoulli_.float, torch.empty_like(like), keep)


@takes("dropout", "dropout_")
def _dropout(input: Any, p: Any, train: bool) -> Any:
    if not train or not is_between(p, 0, 1) or is_empty(input) or not is_real(input):
        return NotImplemented
    if input.device.type == "cpu":
        return input * _noise(input, 1 - p).div_(1 - p)
    kept = below_autograd(aten.native_dropout.default, torch.ones_like(input), p, True)[1]
    return input * kept * (1 / (1 - p))


@takes("feature_dropout", "feature_dropout_")
def _feature_dropout(input: Any, p: Any, train: bool) -> Any:
    if not train or not is_between(p, 0, 1) or is_empty(input) or not is_real(input) or input.dim() < 2:
        return NotImplemented
    return input * _noise(_one_element_a_feature(input), 1 - p).div_(1 - p)


def _one_element_a_feature(input: Any) -> Any:
    return input.new_empty([*input.shape[:2], *[1] * (input.dim() - 2)])


@takes("alpha_dropout", "alpha_dropout_")
def _alpha_dropout(input: Any, p: Any, train: bool, like: Any = None) -> Any:
    """Dropped elements become `-_SELU_SHIFT`; a scale and a shift keep mean and variance (Klambauer et al., 2017)."""
    if not train or not is_between(p, 0, 1) or is_empty(input) or not is_real(input):
        return NotImplemented
    noise = _noise(input if like is None else like, 1 - p)
    scale = 1 / root((p * _SELU_SHIFT**2 + 1) * (1 - p))
    shift = noise.add(-1).mul_(scale * _SELU_SHIFT).add_(scale * _SELU_SHIFT * p)
    return input * noise.mul_(scale) + shift


@takes("feature_alpha_dropout", "feature_alpha_dropout_")
def _feature_alpha_dropout(input: Any, p: Any, train: bool) -> Any:
    return NotImplemented if input.dim() < 2 else _alpha_dropout(input, p, train, _one_element_a_feature(input))


# ---- random numbers -------------------------------------------------------------------------------------------------


def _draws(name: str, accepts: Callable[..., bool], target: OpOverload) -> None:
    """Register a method that fills a tensor with random numbers. accepts: whether eager does, for the numbers."""

    def form(self: Any, *numbers: Any, generator: Any = None, **named: Any) -> Any:
        if not is_real(self) or has_gradient(self) or not accepts(self, *numbers, **named):
            return NotImplemented
        return below_autograd(target, self, *numbers, generator=generator, **named)

    forms.add(name, form)


def _is_interval(self: Any, low: Any = 0.0, high: Any = 1.0, **named: Any) -> bool:
    low, high = named.get("from", low), named.get("to", high)
    return is_between(high - low, 0, torch.finfo(self.dtype).max)


_draws("uniform_", _is_interval, aten.uniform_.default)
_draws("normal_", lambda _, mean=0.0, std=1.0: is_positive(std), aten.normal_.default)
_draws("log_normal_", lambda _, mean=1.0, std=2.0: is_positive(std), aten.log_normal_.default)
_draws("cauchy_", lambda _, median=0.0, sigma=1.0: is_positive(sigma), aten.cauchy_.default)
_draws("exponential_", lambda _, lambd=1.0: is_positive(lambd), aten.exponential_.default)
_draws("geometric_", lambda _, p: is_between(p, 0, 1), aten.geometric_.default)


@takes("bernoulli_")
def _bernoulli_(self: Any, p: Any = 0.5, *, generator: Any = None) -> Any:
    if not is_between(p, 0, 1) or has_gradient(self):
        return NotImplemented
    return below_autograd(aten.bernoulli_.float, self, p, generator=generator)


@takes("bernoulli")
def _bernoulli(input: Any, p: Any, *, generator: Any = None) -> Any:
    if not is_between(p, 0, 1) or has_gradient(input):
        return NotImplemented
    return below_autograd(aten.bernoulli.p, input, p, generator=generator)


# ---- arithmetic -----------------------------------------------------------------------------------------------------


@takes("pow", "pow_ ipow")
def _power(input: Any, exponent: Any) -> Any:
    """By a tensor of the number, of which the gradient's formula asks nothing."""
    tensor, number = (input, exponent) if isinstance(input, torch.Tensor) else (exponent, input)
    if not is_number(number) or not isinstance(tensor, torch.Tensor) or not is_real(tensor) or not has_gradient(tensor):
        return NotImplemented
    made = number_tensor(number, tensor)
    return torch.pow(input, made) if tensor is input else torch.pow(made, exponent)


@takes("float_power", "float_power_")
def _float_power(input: Any, exponent: Any) -> Any:
    wide = [one.double() if isinstance(one, torch.Tensor) else one for one in (input, exponent)]
    if any(isinstance(one, torch.Tensor) and one.is_complex() for one in (input, exponent)):
        return NotImplemented
    made = _power(*wide)
    return torch.pow(*wide) if made is NotImplemented else made


def _by_tensor(name: str, function: Callable[..., Any]) -> None:
    """Register a function with a number as its second operand, which it rounds to the first one's dtype."""

    @takes(name, f"{name}_")
    def form(input: Any, other: Any) -> Any:
        if not is_number(other) or not is_real(input):
            return NotImplemented
        return function(input, cast(number_tensor(other, input), input.dtype))


_by_tensor("xlogy", torch.xlogy)
_by_tensor("special_xlogy", torch.special.xlogy)
_by_tensor("copysign", torch.copysign)


@takes("lerp", "lerp_")
def _lerp(input: Any, end: Any, weight: Any) -> Any:
    if not is_number(weight) or not is_real(input, end) or not has_gradient(input, end):
        return NotImplemented
    wide = computation_dtype(input.dtype)
    made = torch.lerp(cast(input, wide), cast(end, wide), cast(number_tensor(weight, input), wide))
    return cast(made, input.dtype)


def _with_alpha(name: str, combine: Callable[..., Any]) -> None:
    @takes(name, f"{name}_")
    def form(input: Any, other: Any, *, alpha: Any = 1) -> Any:
        if not is_number(alpha) or not isinstance(other, torch.Tensor) or not has_gradient(input, other):
            return NotImplemented
        return combine(input, other * alpha) if is_real(input, other) else NotImplemented


_with_alpha("add", torch.add)
_with_alpha("sub", torch.sub)
_with_alpha("subtract", torch.sub)


@takes("index_add", "index_add_")
def _index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    if not is_real(input, source) or is_half(input):
        return NotImplemented
    return torch.index_add(input, dim, index, source * alpha)


def _with_product(name: str, rank: int, product: Callable[..., Any]) -> None:
    """Register beta * input + alpha * product of tensors of this rank. Half floats would be rounded once more than by
    eager's kernel."""

    @takes(name, f"{name}_")
    def form(input: Any, first: Any, second: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if not is_real(input) or is_half(input) or not input.dtype is first.dtype is second.dtype:
            return NotImplemented
        ignores = not is_number(beta) and beta == 0  # the input, NaN or not
        if first.dim() != rank or not is_real_number(alpha) or not (ignores or is_nonzero(beta)):
            return NotImplemented
        made = product(first, second) * alpha
        if broadcast_shapes(tuple(input.shape), tuple(made.shape)) != tuple(made.shape):
            return NotImplemented
        return made if ignores else input * beta + made


_with_product("addmm", 2, torch.mm)
_with_product("addmv", 2, torch.mv)
_with_product("addr", 1, torch.outer)
_with_product("baddbmm", 3, torch.bmm)
_with_product("addbmm", 3, lambda first, second: torch.bmm(first, second).sum(0))


@takes("logit special_logit", "logit_")
def _logit(input: Any, eps: Any = None) -> Any:
    if not is_between(eps, 0, 0.5) or not is_real(input):
        return NotImplemented
    wide = input.float() if is_half(input) else input
    inner = wide.clamp(eps, 1 - eps)
    return torch.log(inner / (1 - inner)).to(input.dtype)


@takes("nan_to_num", "nan_to_num_")
def _nan_to_num(input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if not is_real(input):
        return NotImplemented
    limits = torch.finfo(input.dtype)
    result = torch.where(torch.isnan(input), 0.0 if nan is None else nan, input)
    result = torch.where(input == math.inf, limits.max if posinf is None else posinf, result)
    return torch.where(input == -math.inf, limits.min if neginf is None else neginf, result)


@takes("pad")
def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return torch.constant_pad_nd(input, pad, value) if mode == "constant" and is_real(input) else NotImplemented


@takes("celu", "celu_")
def _celu(input: Any, alpha: Any = 1.0) -> Any:
    return aten.elu.default(input, alpha, 1.0, 1 / alpha) if is_nonzero(alpha) else NotImplemented


@takes("softshrink")
def _softshrink(input: Any, lambd: Any = 0.5) -> Any:
    return decomposed(aten.softshrink.default, input, lambd) if is_positive(lambd) else NotImplemented


def _quantile(name: str, rule: Callable[..., Any]) -> None:
    @takes(name)
    def form(input: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_between(q, 0, 1) or not is_real(input):
            return NotImplemented
        return rule(input, cast(number_tensor(q, input), input.dtype).to(input.device), *args, **kwargs)


_quantile("quantile", quantiles.quantile)
_quantile("nanquantile", quantiles.nanquantile)


@takes("normal")
def _normal(mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, **options: Any) -> Any:
    """From tensors of means or deviations; from two numbers, an empty tensor is filled."""
    if has_gradient(mean, std) or options.get("out") is not None or options.get("requires_grad"):
        return NotImplemented
    if size is not None:
        return NotImplemented if not is_positive(std) else _filled_normally(mean, std, size, generator, options)
    if isinstance(mean, torch.Tensor):
        fits = is_real(mean) and is_positive(std)
        return below_autograd(aten.normal.Tensor_float, mean, std, generator=generator) if fits else NotImplemented
    return below_autograd(aten.normal.float_Tensor, mean, std, generator=generator) if is_real(std) else NotImplemented


def _filled_normally(mean: Any, std: Any, size: Any, generator: Any, options: dict[str, Any]) -> Any:
    made = torch.empty(size, **options)
    return below_autograd(aten.normal_.default, made, mean, std, generator=generator)
