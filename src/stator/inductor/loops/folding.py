"""Exact algebra on recorded operations: folds constants, drops neutral operands. Never changes a rounding."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import Any

import torch

from .body import Op

Number = int | float | bool
# ("argument", which) or ("constant", value, dtype)
Folded = tuple[Any, ...]

_INTEGER_BITS = {
    torch.uint8: (0, 8),
    torch.int8: (1, 8),
    torch.int16: (1, 16),
    torch.int32: (1, 32),
    torch.int64: (1, 64),
}

# Half floats have all integers up to these.
LARGEST_INTEGERS: dict[torch.dtype | None, int] = {torch.bfloat16: 1 << 8, torch.float16: 1 << 11}
NARROW_INTEGERS = {torch.bool: (0.0, 1.0), torch.uint8: (0.0, 255.0), torch.int8: (-128.0, 127.0)}


def as_dtype(value: Number, dtype: torch.dtype) -> Number:
    """Convert the number to `dtype` and back to a Python number. Integers wrap around."""
    if dtype is torch.float32:
        return _float32(_with_sticky_bit(value) if isinstance(value, int) else value)
    if dtype.is_floating_point:
        return float(value) if dtype is torch.float64 else torch.tensor(float(value), dtype=dtype, device="cpu").item()
    if dtype is torch.bool:
        return bool(value)
    signed, bits = _INTEGER_BITS[dtype]
    wrapped = int(value) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if signed and wrapped >> (bits - 1) else wrapped


def is_exact_conversion(source: torch.dtype, target: torch.dtype | None) -> bool:
    """True if the conversion keeps every value of `source`."""
    return (source, target) in _EXACT


def fold(name: str, operations: list[Op], dtype: torch.dtype | None) -> Folded | None:
    """A simpler operation that gives equal results, if there is one."""
    rule = _RULES.get(name)
    if rule is not None:
        found = rule(operations, dtype)
        if found is not None:
            return found
    compute = _EXACT_FUNCTIONS.get(name)
    if compute is None or any(operation.name != "constant" for operation in operations):
        return None
    values = [operation.args[0] for operation in operations]
    result_dtype = torch.bool if name in _COMPARISONS else dtype
    try:
        return "constant", as_dtype(compute(*values), result_dtype), result_dtype  # type: ignore[arg-type]
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def arithmetic(name: str, first: Number, second: Number, dtype: torch.dtype) -> Number | None:
    """The result of + - * / on two constants of a floating dtype, rounded to that dtype; else None."""
    compute = _EXACT_FUNCTIONS.get(name) if name in _ARITHMETIC else None
    if compute is None or dtype not in (torch.float32, torch.float64):
        return None
    try:
        return as_dtype(compute(first, second), dtype)
    except (ZeroDivisionError, OverflowError):
        return None


def _with_sticky_bit(value: int) -> float:
    """Round the integer to odd in double precision. Rounding the result once more then equals rounding `value` once."""
    excess = abs(value).bit_length() - 53
    if excess <= 0:
        return float(value)
    return float((value >> excess | (value & ((1 << excess) - 1) != 0)) << excess)


def _float32(value: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _is(operation: Op, value: float) -> bool:
    """True for exactly this constant, with this sign."""
    if operation.name != "constant":
        return False
    number = operation.args[0]
    return number == value and (value != 0 or math.copysign(1, number) == math.copysign(1, value))  # type: ignore


def _add(operations: list[Op], dtype: torch.dtype | None) -> Folded | None:
    # x + -0.0 is x for every x; x + 0.0 turns -0.0 into 0.0
    neutral = -0.0 if dtype.is_floating_point else 0  # type: ignore[union-attr]
    for which in (0, 1):
        if _is(operations[1 - which], neutral):
            return "argument", which
    return None


def _subtract(operations: list[Op], dtype: torch.dtype | None) -> Folded | None:
    return ("argument", 0) if _is(operations[1], 0.0) else None


def _multiply(operations: list[Op], dtype: torch.dtype | None) -> Folded | None:
    for which in (0, 1):
        if _is(operations[1 - which], 1):
            return "argument", which
    return None


def _divide(operations: list[Op], dtype: torch.dtype | None) -> Folded | None:
    return ("argument", 0) if _is(operations[1], 1) else None


def _where(operations: list[Op], dtype: torch.dtype | None) -> Folded | None:
    condition, first, second = operations
    if condition.name == "constant":
        return "argument", 1 if condition.args[0] else 2
    return ("argument", 1) if first is second else None


def _and(operations: list[Op], dtype: torch.dtype | None) -> Folded | None:
    return _boolean(operations, dtype, neutral=True)


def _or(operations: list[Op], dtype: torch.dtype | None) -> Folded | None:
    return _boolean(operations, dtype, neutral=False)


def _boolean(operations: list[Op], dtype: torch.dtype | None, neutral: bool) -> Folded | None:
    if operations[0] is operations[1]:
        return "argument", 0
    if dtype is not torch.bool:
        return None
    for which in (0, 1):
        if operations[1 - which].name == "constant":
            return "argument", which if bool(operations[1 - which].args[0]) is neutral else 1 - which
    return None


_RULES: dict[str, Callable[[list[Op], torch.dtype | None], Folded | None]] = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "div": _divide,
    "trunc_div": _divide,
    "floor_div": _divide,
    "where": _where,
    "bitwise_and": _and,
    "bitwise_or": _or,
}

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "logical_not": operator.not_,
}

# For these, rounding to float64 and then to float32 equals rounding once to float32 (2*24 + 2 <= 53 bits).
_EXACT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_COMPARISONS,
    "neg": operator.neg,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "sqrt": math.sqrt,
}

_ARITHMETIC = frozenset(("add", "sub", "mul", "div"))

_ORDER = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_EXACT = {
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float64),
    (torch.bfloat16, torch.float64),
    (torch.float32, torch.float64),
    *((torch.bool, dtype) for dtype in (*_ORDER, torch.float16, torch.bfloat16, torch.float32, torch.float64)),
    *((small, large) for at, small in enumerate(_ORDER) for large in _ORDER[max(at + 1, 2) :]),
    *((small, large) for small in _ORDER[:3] for large in (torch.float32, torch.float64)),
    *((small, large) for small in _ORDER[:2] for large in (torch.float16, torch.bfloat16)),
    (torch.int32, torch.float64),
}
