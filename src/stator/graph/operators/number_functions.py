"""Forms of dropout, random numbers and padding whose numbers change between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from .number_forms import below_autograd, forms, has_gradient, is_between, is_positive, is_real, takes

aten = torch.ops.aten


@takes("dropout", "dropout_")
def _dropout(input: Any, p: Any, train: bool) -> Any:
    if not train or not is_between(p, 0, 1) or not is_real(input):
        return NotImplemented
    if input.device.type == "cpu":
        return input * _noise(torch.empty_like(input), 1 - p)
    kept = below_autograd(aten.native_dropout.default, torch.ones_like(input), p, True)[1]
    return input * kept * (1 / (1 - p))


def _noise(empty: Any, keep: Any) -> Any:
    """1 / keep with probability `keep`, else 0; as eager draws it."""
    return below_autograd(aten.bernoulli_.float, empty, keep).div_(keep)


def _draws(name: str, accepts: Callable[..., bool], target: OpOverload) -> None:
    """Register a function that fills a tensor with random numbers. accepts: whether eager does, for the numbers."""

    def form(input: Any, *numbers: Any, generator: Any = None, **named: Any) -> Any:
        if has_gradient(input) or not accepts(input, *numbers, **named):
            return NotImplemented
        return below_autograd(target, input, *numbers, generator=generator, **named)

    forms.add(name, form)


def _is_interval(input: Any, low: Any = 0.0, high: Any = 1.0, **named: Any) -> bool:
    low, high = named.get("from", low), named.get("to", high)
    return is_real(input) and is_between(high - low, 0, torch.finfo(input.dtype).max)


_draws("uniform_", _is_interval, aten.uniform_.default)
_draws("normal_", lambda x, mean=0.0, std=1.0: is_real(x) and is_positive(std), aten.normal_.default)
_draws("log_normal_", lambda x, mean=1.0, std=2.0: is_real(x) and is_positive(std), aten.log_normal_.default)
_draws("cauchy_", lambda x, median=0.0, sigma=1.0: is_real(x) and is_positive(sigma), aten.cauchy_.default)
_draws("exponential_", lambda x, lambd=1.0: is_real(x) and is_positive(lambd), aten.exponential_.default)
_draws("geometric_", lambda x, p: is_real(x) and is_between(p, 0, 1), aten.geometric_.default)
_draws("bernoulli_", lambda x, p=0.5: is_between(p, 0, 1), aten.bernoulli_.float)
_draws("bernoulli", lambda x, p: is_between(p, 0, 1), aten.bernoulli.p)


@takes("normal")
def _normal(mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, **options: Any) -> Any:
    """From tensors of means or deviations; from two numbers, an empty tensor is filled."""
    if has_gradient(mean, std) or options.get("out") is not None or options.get("requires_grad"):
        return NotImplemented
    if not isinstance(std, torch.Tensor) and not is_positive(std):
        return NotImplemented
    if size is not None:
        return below_autograd(aten.normal_.default, torch.empty(size, **options), mean, std, generator=generator)
    target = aten.normal.Tensor_float if isinstance(mean, torch.Tensor) else aten.normal.float_Tensor
    return below_autograd(target, mean, std, generator=generator)


@takes("pad")
def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return torch.constant_pad_nd(input, pad, value) if mode == "constant" and is_real(input) else NotImplemented
