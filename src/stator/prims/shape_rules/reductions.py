"""Shape rules of reductions over dimensions: sums, extrema, moments, norms, and their indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.prims.layout import Sizes, contiguous_strides, holds, numel, wrap_dim, wrap_dims
from stator.prims.record import ShapeRule, TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.type_promotion import REAL_OF_COMPLEX, is_integral

from .operands import fresh, overloads, shape_table

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


def nansum_dtype(self: Any, dtype: torch.dtype | None) -> torch.dtype:
    refuse_if(self.dtype.is_complex)
    return sum_dtype(self, dtype)


def mean_dtype(self: Any, dtype: torch.dtype | None) -> torch.dtype:
    refuse_if(is_integral(dtype or self.dtype))
    return dtype or self.dtype


def moment_dtype(self: Any, dtype: torch.dtype | None = None) -> torch.dtype:
    refuse_if(is_integral(self.dtype))
    return REAL_OF_COMPLEX.get(self.dtype, self.dtype)


def norm_dtype(self: Any, dtype: torch.dtype | None) -> torch.dtype:
    result = dtype or self.dtype
    refuse_if(is_integral(result))
    return REAL_OF_COMPLEX.get(result, result)


# By operator: the dtype of the result, for the tensor and the dtype that is asked for.
DTYPES: dict[str, Callable[[Any, torch.dtype | None], torch.dtype]] = {
    "nansum": nansum_dtype,
    "sum prod sum.dim_IntList prod.dim_int": sum_dtype,
    "mean mean.dim": mean_dtype,
    "median nanmedian": lambda self, dtype: self.dtype,
    "all any all.dim any.dim all.dims any.dims": lambda self, dtype: (
        torch.uint8 if self.dtype is torch.uint8 else torch.bool
    ),
    "var.correction std.correction": moment_dtype,
    "logsumexp": lambda self, dtype: torch.get_default_dtype() if is_integral(self.dtype) else self.dtype,
    "count_nonzero count_nonzero.dim_IntList": lambda self, dtype: torch.int64,
}
NORMS = "norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype linalg_vector_norm"


def _reduction(dtype_of: Callable[[Any, torch.dtype | None], torch.dtype]) -> ShapeRule:
    def rule(
        self: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, correction: Any = None
    ) -> TensorMeta:
        return reduced(self, dim, keepdim, dtype_of(self, dtype))

    return rule


for _names, _dtype_of in DTYPES.items():
    shape_rule(*overloads(_names), tags=REDUCTION)(_reduction(_dtype_of))


@shape_rule(*overloads(NORMS), tags=REDUCTION)
def norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, p: Any = 2
) -> TensorMeta:
    return reduced(self, dim, keepdim, norm_dtype(self, dtype))


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


@shape_rule(aten.aminmax.default, tags=REDUCTION)
def aminmax(self: Any, *, dim: int | None = None, keepdim: bool = False) -> tuple[TensorMeta, TensorMeta]:
    refuse_empty(self, dim)
    result = reduced(self, dim, keepdim, self.dtype)
    return result, result


@shape_rule(*overloads("argmax argmin"), tags=REDUCTION)
def arg_extremum(self: Any, dim: int | None = None, keepdim: bool = False) -> TensorMeta:
    refuse_empty(self, dim)
    return reduced(self, dim, keepdim, torch.int64)


@shape_rule(*overloads("_is_all_true _is_any_true"), tags=REDUCTION)
def truth_of_all(self: Any) -> TensorMeta:
    refuse_if(self.dtype is not torch.bool)
    return reduced(self, None, False, torch.bool)


@shape_rule(*overloads("_softmax _log_softmax _safe_softmax"), tags=REDUCTION)
def softmax(self: Any, dim: int, half_to_float: Any = False) -> TensorMeta:
    wrap_dim(dim, len(self.shape))
    refuse_if(is_integral(self.dtype))
    return fresh(self.shape, self, torch.float32 if half_to_float is True else self.dtype)


shape_table(
    REDUCTION,
    {
        "var_mean.correction std_mean.correction": lambda self, dim=None, *, correction=None, keepdim=False: (
            reduced(self, dim, keepdim, moment_dtype(self)),
            reduced(self, dim, keepdim, self.dtype),
        ),
        "_softmax_backward_data _log_softmax_backward_data": lambda grad, output, dim, dtype: fresh(
            grad.shape, grad, dtype
        ),
    },
)
