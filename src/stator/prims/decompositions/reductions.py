"""Reductions by simpler reductions: means, moments, norms, softmax."""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.prims.layout import wrap_dims
from stator.prims.type_promotion import is_integral

from .decomposition_decorator import cast, decomposes, decomposition_table

aten = torch.ops.aten


def all_dims(self: Any, dim: Any) -> list[int]:
    """Return the reduced dimensions; None and an empty list mean all."""
    rank = len(self.shape)
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return list(range(rank))
    return list(wrap_dims(dim, rank)) if rank else []


def count(self: Any, dims: list[int]) -> Any:
    total: Any = 1
    for dim in dims:
        total = total * self.shape[dim]
    return total


@decomposes("mean mean.dim")
def mean(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    dims = all_dims(self, dim)
    x = self if dtype is None else cast(self, dtype)
    if x.dtype in (torch.float16, torch.bfloat16):
        x = cast(x, torch.float32)
    number = count(self, dims)
    total = aten.sum.dim_IntList(x, dims, keepdim) if dims else aten.clone.default(x)
    return aten.div.Tensor(total, number if number != 0 else math.nan if total.dtype.is_floating_point else 0)


@decomposes("var_mean.correction")
def var_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if self.dtype.is_complex:
        return NotImplemented
    dims = all_dims(self, dim)
    number = count(self, dims)
    average = aten.mean.dim(self, dims, True)
    centred = aten.sub.Tensor(self, average)
    freedom = number - (1 if correction is None else correction)
    squares = (
        aten.sum.dim_IntList(aten.mul.Tensor(centred, centred), dims, keepdim)
        if dims
        else aten.mul.Tensor(centred, centred)
    )
    variance = aten.div.Tensor(squares, freedom if freedom > 0 else 0.0)
    kept = average if keepdim or not dims else aten.squeeze.dims(average, dims)
    return variance, kept


def _variance(self: Any, dim: Any, correction: Any, keepdim: bool) -> Any:
    result = var_mean(self, dim, correction=correction, keepdim=keepdim)
    return NotImplemented if result is NotImplemented else result[0]


@decomposes("std.correction")
def std(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance = _variance(self, dim, correction, keepdim)
    return NotImplemented if variance is NotImplemented else aten.sqrt.default(variance)


@decomposes("std_mean.correction")
def std_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    result = var_mean(self, dim, correction=correction, keepdim=keepdim)
    return NotImplemented if result is NotImplemented else (aten.sqrt.default(result[0]), result[1])


@decomposes("nansum")
def nansum(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    x = self if is_integral(self.dtype) else aten.where.ScalarSelf(aten.ne.Tensor(self, self), 0, self)
    return aten.sum.dim_IntList(x, all_dims(self, dim), keepdim, dtype=dtype)


def _of_all(name: str, over_dims: torch._ops.OpOverload) -> None:
    @decomposes(name, wide=False)
    def of_all(self: Any) -> Any:
        return over_dims(self, all_dims(self, None), False)


def _of_one(name: str, over_dims: torch._ops.OpOverload) -> None:
    @decomposes(f"{name}.dim", wide=False)
    def of_one(self: Any, dim: int, keepdim: bool = False) -> Any:
        return over_dims(self, [dim], keepdim)


_of_all("max", aten.amax.default)
_of_all("min", aten.amin.default)
for _name in ("any", "all"):
    _of_all(_name, getattr(aten, _name).dims)
    _of_one(_name, getattr(aten, _name).dims)
    _of_all(f"_is_{_name}_true", getattr(aten, _name).dims)


@decomposes("aminmax", wide=False)
def aminmax(self: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = [] if dim is None else [dim]
    return aten.amin.default(self, dims, keepdim), aten.amax.default(self, dims, keepdim)


@decomposes("count_nonzero count_nonzero.dim_IntList", wide=False)
def count_nonzero(self: Any, dim: Any = None) -> Any:
    nonzero = aten.ne.Scalar(self, 0)
    return aten.sum.dim_IntList(nonzero, all_dims(self, dim), False)


@decomposes("logsumexp")
def logsumexp(self: Any, dim: Any, keepdim: bool = False) -> Any:
    if self.dtype.is_complex:
        return NotImplemented
    x = cast(self, torch.get_default_dtype()) if is_integral(self.dtype) else self
    dims = all_dims(x, dim)
    if not dims:
        return aten.clone.default(x)
    if 0 in tuple(x.shape):
        return aten.log.default(aten.sum.dim_IntList(aten.exp.default(x), dims, keepdim))
    largest = aten.amax.default(x, dims, True)
    shift = aten.where.ScalarSelf(aten.eq.Scalar(aten.abs.default(largest), math.inf), 0.0, largest)
    total = aten.log.default(aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, shift)), dims, keepdim))
    return aten.add.Tensor(total, shift if keepdim else aten.squeeze.dims(shift, dims))


@decomposes("_softmax")
def softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    if not len(self.shape):
        return aten.exp.default(aten.sub.Tensor(self, self))  # 1, or NaN
    if self.shape[dim] == 0:
        return aten.clone.default(self)
    exponentials = aten.exp.default(aten.sub.Tensor(self, aten.amax.default(self, [dim], True)))
    return aten.div.Tensor(exponentials, aten.sum.dim_IntList(exponentials, [dim], True))


@decomposes("_log_softmax")
def log_softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    if not len(self.shape):
        return aten.sub.Tensor(self, self)
    if self.shape[dim] == 0:
        return aten.clone.default(self)
    shifted = aten.sub.Tensor(self, aten.amax.default(self, [dim], True))
    total = aten.sum.dim_IntList(aten.exp.default(shifted), [dim], True)
    return aten.sub.Tensor(shifted, aten.log.default(total))


@decomposes("_safe_softmax", wide=False)
def safe_softmax(self: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    """Softmax that gives zeros if a whole row is -inf."""
    if not len(self.shape):
        return NotImplemented
    x = self if dtype is None else cast(self, dtype)
    masked = aten.all.dim(aten.eq.Scalar(x, -math.inf), dim, True)
    return aten.where.ScalarSelf(masked, 0.0, aten._softmax.default(x, dim, False))


@decomposes("_softmax_backward_data")
def softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: torch.dtype) -> Any:
    weighted = aten.mul.Tensor(grad_output, output)
    return aten.sub.Tensor(weighted, aten.mul.Tensor(output, aten.sum.dim_IntList(weighted, [dim], True)))


@decomposes("_log_softmax_backward_data")
def log_softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: torch.dtype) -> Any:
    total = aten.sum.dim_IntList(grad_output, [dim], True)
    return aten.sub.Tensor(grad_output, aten.mul.Tensor(aten.exp.default(output), total))


@decomposes("linalg_vector_norm")
def vector_norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """(sum |x|^p)^(1/p), with the limits p = 0 (the number of nonzero elements), inf and -inf."""
    if 0 in tuple(self.shape):
        return NotImplemented
    x = aten.abs.default(self if dtype is None else cast(self, dtype))
    if x.dtype in (torch.float16, torch.bfloat16):
        x = cast(x, torch.float32)
    dims = all_dims(self, dim)
    if not dims:
        return x if ord != 0 else cast(aten.ne.Scalar(x, 0), x.dtype)
    if ord == math.inf:
        return aten.amax.default(x, dims, keepdim)
    if ord == -math.inf:
        return aten.amin.default(x, dims, keepdim)
    if ord == 0:
        return aten.sum.dim_IntList(cast(aten.ne.Scalar(x, 0), x.dtype), dims, keepdim)
    if ord == 1:
        return aten.sum.dim_IntList(x, dims, keepdim)
    if ord == 2:
        return aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(x, x), dims, keepdim))
    return aten.pow.Tensor_Scalar(aten.sum.dim_IntList(aten.pow.Tensor_Scalar(x, ord), dims, keepdim), 1.0 / ord)


decomposition_table(
    {
        "sum": lambda self, *, dtype=None: aten.sum.dim_IntList(self, all_dims(self, None), False, dtype=dtype),
        "norm.ScalarOpt_dim": lambda self, p, dim, keepdim=False: aten.linalg_vector_norm.default(
            self, 2 if p is None else p, dim, keepdim
        ),
        "norm.Scalar": lambda self, p=2: aten.linalg_vector_norm.default(self, p),
    },
    wide=False,
)
decomposition_table(
    {
        "var.correction": lambda self, dim=None, *, correction=None, keepdim=False: _variance(
            self, dim, correction, keepdim
        ),
    }
)
