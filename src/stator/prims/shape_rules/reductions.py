"""Shape rules of reductions over dimensions: sums, extrema, moments, norms, and their indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import Sizes, contiguous_strides, holds, numel, wrap_dim, wrap_dims
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.type_promotion import REAL_OF_COMPLEX, is_integral

from .operands import fresh, overloads

aten = torch.ops.aten
REDUCTION = ("reduction",)


def reduced_shape(shape: Sizes, dims: Any, keepdim: bool) -> Sizes:
    """Return the shape without the reduced dimensions, or with ones in their place. No dimensions means all."""
    if dims is None or (isinstance(dims, (tuple, list)) and not dims):
        return (1,) * len(shape) if keepdim else ()
    gone = wrap_dims(dims, len(shape))
    if keepdim:
        return tuple(1 if dim in gone else size for dim, size in enumerate(shape))
    return tuple(size for dim, size in enumerate(shape) if dim not in gone)


def reduced(self: Any, dims: Any, keepdim: bool, dtype: torch.dtype) -> TensorMeta:
    shape = reduced_shape(tuple(self.shape), dims, keepdim)
    return TensorMeta(shape, contiguous_strides(shape), dtype, self.device)


def sum_dtype(self: Any, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (torch.int64 if is_integral(self.dtype) else self.dtype)


def refuse_empty(self: Any, dims: Any = None) -> None:
    """An operator without an identity reduces no empty dimension."""
    shape = tuple(self.shape)
    if dims is None or (isinstance(dims, (tuple, list)) and not dims):
        refuse_if(shape and numel(shape) == 0)
    elif shape:
        refuse_if(any(shape[dim] == 0 for dim in wrap_dims(dims, len(shape))))


@shape_rule(aten.nansum.default, tags=REDUCTION)
def nansum(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorMeta:
    refuse_if(self.dtype.is_complex)
    return sum_all(self, dim, keepdim, dtype=dtype)


@shape_rule(*overloads("sum prod"), tags=REDUCTION)
def sum_all(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorMeta:
    return reduced(self, dim, keepdim, sum_dtype(self, dtype))


@shape_rule(*overloads("sum.dim_IntList prod.dim_int"), tags=REDUCTION)
def sum_dims(self: Any, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorMeta:
    return reduced(self, dim, keepdim, sum_dtype(self, dtype))


@shape_rule(*overloads("mean mean.dim"), tags=REDUCTION)
def mean(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorMeta:
    dtype = dtype or self.dtype
    refuse_if(is_integral(dtype))
    return reduced(self, dim, keepdim, dtype)


@shape_rule(*overloads("amax amin"), tags=REDUCTION)
def extremum(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> TensorMeta:
    refuse_empty(self, dim)
    return reduced(self, dim, keepdim, self.dtype)


@shape_rule(*overloads("max min"), tags=REDUCTION)
def extremum_all(self: Any) -> TensorMeta:
    refuse_empty(self)
    return reduced(self, None, False, self.dtype)


@shape_rule(*overloads("max.dim min.dim median.dim nanmedian.dim mode"), tags=REDUCTION)
def extremum_dim(self: Any, dim: int = -1, keepdim: bool = False) -> tuple[TensorMeta, TensorMeta]:
    refuse_empty(self, dim)
    return reduced(self, dim, keepdim, self.dtype), reduced(self, dim, keepdim, torch.int64)


@shape_rule(*overloads("kthvalue"), tags=REDUCTION)
def kthvalue(self: Any, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[TensorMeta, TensorMeta]:
    size = self.shape[wrap_dim(dim, len(self.shape))] if self.shape else 1
    refuse_if(not (holds(k >= 1) and holds(k <= size)))
    return extremum_dim(self, dim, keepdim)


@shape_rule(*overloads("median nanmedian"), tags=REDUCTION)
def median(self: Any) -> TensorMeta:
    return reduced(self, None, False, self.dtype)


@shape_rule(aten.aminmax.default, tags=REDUCTION)
def aminmax(self: Any, *, dim: int | None = None, keepdim: bool = False) -> tuple[TensorMeta, TensorMeta]:
    refuse_empty(self, dim)
    result = reduced(self, dim, keepdim, self.dtype)
    return result, result


@shape_rule(*overloads("argmax argmin"), tags=REDUCTION)
def arg_extremum(self: Any, dim: int | None = None, keepdim: bool = False) -> TensorMeta:
    refuse_empty(self, dim)
    return reduced(self, dim, keepdim, torch.int64)


@shape_rule(*overloads("all any all.dim any.dim all.dims any.dims"), tags=REDUCTION)
def truth(self: Any, dim: Any = None, keepdim: bool = False) -> TensorMeta:
    dtype = torch.uint8 if self.dtype is torch.uint8 else torch.bool
    return reduced(self, dim, keepdim, dtype)


@shape_rule(*overloads("_is_all_true _is_any_true"), tags=REDUCTION)
def truth_of_all(self: Any) -> TensorMeta:
    refuse_if(self.dtype is not torch.bool)
    return truth(self)


@shape_rule(*overloads("var.correction std.correction"), tags=REDUCTION)
def var(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> TensorMeta:
    return reduced(self, dim, keepdim, moment_dtype(self))


@shape_rule(*overloads("var_mean.correction std_mean.correction"), tags=REDUCTION)
def var_mean(
    self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    return reduced(self, dim, keepdim, moment_dtype(self)), reduced(self, dim, keepdim, self.dtype)


def moment_dtype(self: Any) -> torch.dtype:
    refuse_if(is_integral(self.dtype))
    return REAL_OF_COMPLEX.get(self.dtype, self.dtype)


@shape_rule(*overloads("logsumexp"), tags=REDUCTION)
def logsumexp(self: Any, dim: Any, keepdim: bool = False) -> TensorMeta:
    dtype = torch.get_default_dtype() if is_integral(self.dtype) else self.dtype
    return reduced(self, dim, keepdim, dtype)


@shape_rule(*overloads("count_nonzero count_nonzero.dim_IntList"), tags=REDUCTION)
def count_nonzero(self: Any, dim: Any = None) -> TensorMeta:
    return reduced(self, dim, False, torch.int64)


def norm_dtype(self: Any, dtype: torch.dtype | None) -> torch.dtype:
    result = dtype or self.dtype
    refuse_if(is_integral(result))
    return REAL_OF_COMPLEX.get(result, result)


@shape_rule(*overloads("linalg_vector_norm"), tags=REDUCTION)
def vector_norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorMeta:
    return reduced(self, dim, keepdim, norm_dtype(self, dtype))


@shape_rule(*overloads("norm.Scalar"), tags=REDUCTION)
def norm_all(self: Any, p: Any = 2) -> TensorMeta:
    return reduced(self, None, False, norm_dtype(self, None))


@shape_rule(*overloads("norm.ScalarOpt_dim"), tags=REDUCTION)
def norm_dim(self: Any, p: Any, dim: Any, keepdim: bool = False) -> TensorMeta:
    return reduced(self, dim, keepdim, norm_dtype(self, None))


@shape_rule(*overloads("norm.ScalarOpt_dim_dtype"), tags=REDUCTION)
def norm_dim_dtype(self: Any, p: Any, dim: Any, keepdim: bool = False, *, dtype: torch.dtype) -> TensorMeta:
    return reduced(self, dim, keepdim, norm_dtype(self, dtype))


@shape_rule(*overloads("_softmax _log_softmax _safe_softmax"), tags=REDUCTION)
def softmax(self: Any, dim: int, half_to_float: Any = False) -> TensorMeta:
    wrap_dim(dim, len(self.shape))
    refuse_if(is_integral(self.dtype))
    return fresh(self.shape, self, torch.float32 if half_to_float is True else self.dtype)


@shape_rule(*overloads("_softmax_backward_data _log_softmax_backward_data"), tags=REDUCTION)
def softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: torch.dtype) -> TensorMeta:
    return fresh(grad_output.shape, grad_output, input_dtype)
