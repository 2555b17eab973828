"""Factories by `full`, `empty` and `arange`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.type_promotion import is_integral

from .decomposition_decorator import cast, decomposes, decomposition_table

aten = torch.ops.aten


def filled(self: Any, size: Sequence[Any], value: Any, dtype: torch.dtype | None, device: Any) -> Any:
    return aten.full.default(size, value, dtype=dtype or self.dtype, device=self.device if device is None else device)


def _constant(name: str, value: int) -> None:
    @decomposes(name, wide=False)
    def factory(size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any) -> Any:
        return aten.full.default(size, value, dtype=dtype or torch.get_default_dtype(), device=device)

    @decomposes(f"{name}_like", wide=False)
    def like(self: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any) -> Any:
        return filled(self, list(self.shape), value, dtype, device)

    @decomposes(f"new_{name}", wide=False)
    def new(self: Any, size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any) -> Any:
        return filled(self, size, value, dtype, device)


_constant("zeros", 0)
_constant("ones", 1)


@decomposes("_new_zeros_with_same_feature_meta", wide=False)
def new_zeros_with_same_feature_meta(self: Any, other: Any, *, self_num_batch_dims: int = 0) -> Any:
    """Make the zero tangent of an in-place target: the layout of `other`, repeated over the batch dimensions of
    `self`."""
    if not other.is_contiguous():
        return NotImplemented  # ATen allocates as much memory as the storage of `other`
    return filled(other, [*self.shape[:self_num_batch_dims], *other.shape], 0, None, None)


@decomposes("new_empty", wide=False)
def new_empty(self: Any, size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any) -> Any:
    device = self.device if device is None else device
    return aten.empty.memory_format(size, dtype=dtype or self.dtype, device=device)


@decomposes("new_empty_strided", wide=False)
def new_empty_strided(
    self: Any, size: Any, stride: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any
) -> Any:
    device = self.device if device is None else device
    return aten.empty_strided.default(size, stride, dtype=dtype or self.dtype, device=device)


def _range_dtype(dtype: torch.dtype | None, *bounds: Any) -> torch.dtype:
    if dtype is not None:
        return dtype
    return torch.get_default_dtype() if any(isinstance(bound, float) for bound in bounds) else torch.int64


@decomposes("eye.m", wide=False)
def eye_m(n: Any, m: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any) -> Any:
    rows = aten.unsqueeze.default(aten.arange.start_step(0, n, 1, dtype=torch.int64, device=device), 1)
    columns = aten.arange.start_step(0, m, 1, dtype=torch.int64, device=device)
    return cast(aten.eq.Tensor(rows, columns), dtype or torch.get_default_dtype())


@decomposes("linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor", wide=False)
def linspace(
    start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any
) -> Any:
    dtype = dtype or torch.get_default_dtype()
    if dtype.is_complex or is_complex(start) or is_complex(end):
        return NotImplemented
    return cast(evenly_spaced(start, end, steps, dtype, device), dtype)


@decomposes("logspace logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor", wide=False)
def logspace(
    start: Any,
    end: Any,
    steps: Any,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_options: Any,
) -> Any:
    dtype = dtype or torch.get_default_dtype()
    if dtype.is_complex or is_complex(start) or is_complex(end):
        return NotImplemented
    return cast(aten.pow.Scalar(base, evenly_spaced(start, end, steps, dtype, device)), dtype)


def is_complex(value: Any) -> bool:
    return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.dtype.is_complex)


def evenly_spaced(start: Any, end: Any, steps: Any, dtype: torch.dtype, device: Any) -> Any:
    """Return `steps` values from one bound (a number or a zero-dim tensor) to the other, computed from both ends
    towards the middle as in eager; in float32 for half floats, in float64 for integers, whose bounds are truncated
    first."""
    working = torch.float64 if is_integral(dtype) or dtype is torch.float64 else torch.float32
    first, last = bound(start, dtype, working), bound(end, dtype, working)
    index = aten.arange.start_step(0, steps, 1, dtype=torch.int64, device=device)
    if steps < 2:
        return aten.add.Tensor(aten.mul.Tensor(cast(index, working), 0.0), first)
    gap = aten.sub.Tensor(last, first) if isinstance(last, torch.Tensor) else None
    if gap is None:
        gap = aten.rsub.Scalar(first, last) if isinstance(first, torch.Tensor) else last - first
    step = aten.div.Tensor(gap, steps - 1) if isinstance(gap, torch.Tensor) else gap / (steps - 1)
    rising = aten.add.Tensor(aten.mul.Tensor(cast(index, working), step), first)
    backwards = aten.mul.Tensor(cast(aten.rsub.Scalar(index, steps - 1), working), step)
    falling = aten.add.Tensor(aten.neg.default(backwards), last)
    return aten.where.self(aten.lt.Scalar(index, steps // 2), rising, falling)


def bound(value: Any, dtype: torch.dtype, working: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return cast(cast(value, dtype), working)
    return math.trunc(value) if is_integral(dtype) else value


@decomposes("native_dropout", wide=False)
def native_dropout(input: Any, p: float, train: bool | None) -> Any:
    if train or train is None:
        return NotImplemented
    return aten.clone.default(input), aten.ones_like.default(input, dtype=torch.bool)


decomposition_table(
    {
        "full_like": lambda self, value, *, dtype=None, device=None, **_: filled(
            self, list(self.shape), value, dtype, device
        ),
        "new_full": lambda self, size, value, *, dtype=None, device=None, **_: filled(self, size, value, dtype, device),
        "scalar_tensor": lambda s, *, dtype=None, device=None, **_: aten.full.default(
            [], s, dtype=dtype or torch.get_default_dtype(), device=device
        ),
        "fill.Scalar": lambda self, value: aten.full_like.default(self, value),
        "fill.Tensor": lambda self, value: aten.expand.default(cast(value, self.dtype), list(self.shape)),
        "arange": lambda end, *, dtype=None, device=None, **_: aten.arange.start_step(
            0, end, 1, dtype=_range_dtype(dtype, end), device=device
        ),
        "arange.start": lambda start, end, *, dtype=None, device=None, **_: aten.arange.start_step(
            start, end, 1, dtype=_range_dtype(dtype, start, end), device=device
        ),
        "eye": lambda n, *, dtype=None, device=None, **_: aten.eye.m(n, n, dtype=dtype, device=device),
    },
    wide=False,
)
