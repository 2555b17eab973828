"""Range checks for Python numbers that become elements of a dtype, as eager makes them. Nothing is converted here."""

from __future__ import annotations

from typing import Any

import torch

from .type_promotion import INTEGRAL, REAL_OF_COMPLEX, is_integral


def check_range(dtype: torch.dtype, *numbers: Any) -> None:
    """Raise eager's RuntimeError for a number beyond the range of `dtype`. Symbols and tensors pass."""
    for number in numbers:
        if type(number) in (int, float) and not _fits(number, dtype):
            raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")


def _fits(number: float, dtype: torch.dtype) -> bool:
    """Negative integers may wrap around in unsigned dtypes. Floats take every integer and infinity, except that narrow
    ones refuse large integers."""
    if dtype is torch.bool:
        return True
    if dtype in INTEGRAL:
        limits = torch.iinfo(dtype)
        if isinstance(number, float):  # NaN is not between the bounds
            return float(limits.min) <= number <= float(limits.max)
        return (limits.min or -limits.max) <= number <= limits.max
    limit = torch.finfo(REAL_OF_COMPLEX.get(dtype, dtype)).max
    return number != number or abs(number) in (0, float("inf")) or abs(number) <= limit


def check_factor(dtype: torch.dtype, factor: Any) -> None:
    """Raise eager's error for a number that multiplies tensors of `dtype`, by its range or its type."""
    if isinstance(factor, bool) and dtype is not torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if is_integral(dtype) and isinstance(factor, float):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    check_range(dtype, factor)
