"""Special functions on tensors: the formulas of `prims/special/special_functions.py` in ATen operators."""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.prims.special.special_functions import POLYGAMMA, binary_formulas, unary_formulas
from stator.prims.type_promotion import Kind, apply_kind, common_dtype, is_integral

from .decomposition_decorator import cast, decomposes

aten = torch.ops.aten


class TensorFunctions:
    """The elementary functions of the formulas, on tensors. Arithmetic is the tensors' own."""

    def __getattr__(self, name: str) -> Any:
        return aten.copysign.Tensor if name == "copysign" else getattr(aten, name).default

    @staticmethod
    def where(condition: Any, x: Any, y: Any, like: Any = None) -> Any:
        if not isinstance(x, torch.Tensor) and not isinstance(y, torch.Tensor):
            return aten.where.ScalarOther(condition, aten.full_like.default(like, x), y)
        if not isinstance(x, torch.Tensor):
            return aten.where.ScalarSelf(condition, x, y)
        if not isinstance(y, torch.Tensor):
            return aten.where.ScalarOther(condition, x, y)
        return aten.where.self(condition, x, y)

    @staticmethod
    def clamp(x: Any, low: Any, high: Any) -> Any:
        return aten.clamp_max.default(aten.clamp_min.default(x, low), high)

    @staticmethod
    def fma(x: Any, y: Any, z: Any) -> Any:
        return x * y + z


FUNCTIONS = TensorFunctions()


def floating(tensor: Any) -> Any:
    """Return integers as the default floating-point dtype; None for complex tensors, which no formula covers."""
    if is_integral(tensor.dtype):
        return cast(tensor, torch.get_default_dtype())
    return None if tensor.dtype.is_complex else tensor


def _unary(name: str) -> None:
    formula = unary_formulas[name]

    def rule(self: Any) -> Any:
        x = floating(self)
        return NotImplemented if x is None else formula(FUNCTIONS, x)

    rule.__name__, rule.__doc__ = name, formula.__doc__
    decomposes(name)(rule)


def _binary(name: str) -> None:
    formula = binary_formulas[name]

    def rule(self: Any, other: Any) -> Any:
        dtype = apply_kind(common_dtype((self, other)), Kind.INT_TO_FLOAT)
        like = self if isinstance(self, torch.Tensor) else other
        if dtype.is_complex:
            return NotImplemented
        operands = [
            cast(one, dtype)
            if isinstance(one, torch.Tensor)
            else aten.full.default([], one, dtype=dtype, device=like.device)
            for one in (self, other)
        ]
        return formula(FUNCTIONS, *operands)

    rule.__name__, rule.__doc__ = name, formula.__doc__
    scalars = ("x_scalar", "n_scalar") if "polynomial" in name else ("self_scalar", "other_scalar")
    decomposes(f"{name} {name}.{scalars[0]} {name}.{scalars[1]}")(rule)


for _name in unary_formulas:
    _unary(_name)
for _name in binary_formulas:
    _binary(_name)


@decomposes("polygamma")
def polygamma(n: int, self: Any) -> Any:
    """Derivatives of digamma; beyond the first, n! times Hurwitz's zeta, with a sign."""
    x = floating(self)
    if x is None or n < 0:
        return NotImplemented
    if n < len(POLYGAMMA):
        return POLYGAMMA[n](FUNCTIONS, x)
    zeta = aten.special_zeta.default(aten.full_like.default(x, n + 1), x)
    return zeta * ((-1.0) ** (n + 1) * math.factorial(n))


@decomposes("mvlgamma")
def mvlgamma(self: Any, p: int) -> Any:
    """The sum of lgamma(x - i / 2) for i below p, plus p (p - 1) / 4 log(pi)."""
    x = floating(self)
    if x is None or p < 1:
        return NotImplemented
    total = aten.lgamma.default(x)
    for index in range(1, p):
        total = aten.add.Tensor(total, aten.lgamma.default(aten.sub.Tensor(x, index * 0.5)))
    return aten.add.Tensor(total, p * (p - 1) / 4 * math.log(math.pi))
