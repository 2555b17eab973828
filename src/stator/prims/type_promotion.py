"""Result dtypes of elementwise operators: tensors of any rank, zero-dim tensors and Python numbers, in that priority;
and range checks of Python numbers that become elements of a dtype, as eager makes them.

Pure functions of dtypes; nothing here knows a particular operator.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

import torch

from stator.shapes.expr import Expr
from stator.shapes.floats import FloatExpr


class Kind(enum.Enum):
    """How an operator turns the common dtype of its operands into the dtype of its result."""

    DEFAULT = "default"
    INT_TO_FLOAT = "int_to_float"
    ALWAYS_BOOL = "always_bool"
    COMPLEX_TO_FLOAT = "complex_to_float"
    KEEP = "keep"
    BOOL_TO_LONG = "bool_to_long"


INTEGRAL = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
)
REAL_OF_COMPLEX = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
COMPLEX_OF_REAL = {real: complex_ for complex_, real in REAL_OF_COMPLEX.items()} | {torch.bfloat16: torch.complex64}

_promoted: dict[tuple[torch.dtype, torch.dtype], torch.dtype] = {}


def promote(first: torch.dtype | None, second: torch.dtype | None) -> torch.dtype | None:
    """Return the smallest dtype that both convert to; None stands for no operand."""
    if first is second or second is None:
        return first
    if first is None:
        return second
    found = _promoted.get((first, second))
    if found is None:
        found = _promoted[first, second] = torch.promote_types(first, second)
    return found


def is_integral(dtype: torch.dtype) -> bool:
    """Whether the dtype is an integer or bool."""
    return dtype is torch.bool or dtype in INTEGRAL


def number_dtype(value: Any) -> torch.dtype:
    """Return the dtype of a Python (or symbolic) number among tensors."""
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(value, (int, torch.SymInt, Expr)):
        return torch.int64
    if isinstance(value, (float, torch.SymFloat, FloatExpr)):
        return torch.get_default_dtype()
    if isinstance(value, complex):
        return COMPLEX_OF_REAL[torch.get_default_dtype()]
    raise TypeError(f"expected a tensor or a number, got {type(value).__name__}")


def combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Combine a dtype of higher priority with one of lower: the lower one counts only if its category is larger."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return COMPLEX_OF_REAL[higher] if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return promote(higher, lower)
    return higher


def common_dtype(operands: Iterable[Any]) -> torch.dtype:
    """Return the dtype that operands are converted to before an elementwise computation. Operands may be numbers or
    None."""
    dimensioned: torch.dtype | None = None
    zero_dim: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for operand in operands:
        if operand is None:
            continue
        dtype = getattr(operand, "dtype", None)
        if dtype is None:
            numbers = promote(numbers, number_dtype(operand))
        elif len(operand.shape):
            if dimensioned is not dtype:
                dimensioned = promote(dimensioned, dtype)
        else:
            zero_dim = promote(zero_dim, dtype)
    if zero_dim is None and numbers is None and dimensioned is not None:
        return dimensioned
    result = combine(dimensioned, combine(zero_dim, numbers))
    if result is None:
        raise TypeError("an elementwise operator needs at least one operand")
    return result


def apply_kind(dtype: torch.dtype, kind: Kind) -> torch.dtype:
    """Return the result's dtype for an operator of this kind and the operands' common dtype."""
    if kind is Kind.DEFAULT or kind is Kind.KEEP:
        return dtype
    if kind is Kind.ALWAYS_BOOL:
        return torch.bool
    if kind is Kind.INT_TO_FLOAT:
        return torch.get_default_dtype() if is_integral(dtype) else dtype
    if kind is Kind.COMPLEX_TO_FLOAT:
        return REAL_OF_COMPLEX.get(dtype, dtype)
    return torch.int64 if is_integral(dtype) else dtype


def result_dtype(*operands: Any, kind: Kind = Kind.DEFAULT) -> torch.dtype:
    """Return the dtype of an elementwise operator's result. KEEP gives the first tensor's dtype."""
    if kind is Kind.KEEP:
        return next(operand.dtype for operand in operands if hasattr(operand, "dtype"))
    return apply_kind(common_dtype(operands), kind)


def computation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which eager accumulates: float32 for the half-width floats, complex64 for complex32."""
    if dtype is torch.float16 or dtype is torch.bfloat16:
        return torch.float32
    return torch.complex64 if dtype is torch.complex32 else dtype


def can_cast(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether an in-place operator may store a result of dtype `source` in a tensor of dtype `target`."""
    return torch.can_cast(source, target)


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
