"""Arithmetic on inclusive bounds: ints, or infinities for unknown bounds."""

from __future__ import annotations

import math
from typing import Union

Bound = Union[int, float]  # noqa: UP007 - an int, or +-math.inf where nothing is known
UNBOUNDED: tuple[Bound, Bound] = (-math.inf, math.inf)


def floor_by(bound: Bound, divisor: int) -> Bound:
    if isinstance(bound, int):
        return bound // divisor
    return bound if divisor > 0 else -bound


def floor_quotient(bound: Bound, divisor: Bound) -> Bound:
    """floor(bound / divisor) for a divisor >= 1. Both arguments may be infinite."""
    if isinstance(bound, int) and isinstance(divisor, int):
        return bound // divisor
    if isinstance(bound, int):
        return 0 if bound >= 0 else -1
    return bound


def times(factor: Bound, bound: Bound) -> Bound:
    """An infinity may stand beside an int that no float can hold."""
    if factor.__class__ is int and bound.__class__ is int:
        return factor * bound
    if factor == 0 or bound == 0:
        return 0
    if _is_infinite(factor) or _is_infinite(bound):
        return math.inf if (factor > 0) == (bound > 0) else -math.inf
    return factor * bound


def plus(one: Bound, other: Bound) -> Bound:
    """An infinity may stand beside an int that no float can hold."""
    if one.__class__ is int and other.__class__ is int:
        return one + other
    return other if _is_infinite(other) else one if _is_infinite(one) else one + other


def _is_infinite(bound: Bound) -> bool:
    return isinstance(bound, float) and math.isinf(bound)


def product_of(a: Bound, b: Bound, c: Bound, d: Bound) -> tuple[Bound, Bound]:
    corners = (times(a, c), times(a, d), times(b, c), times(b, d))
    return min(corners), max(corners)
