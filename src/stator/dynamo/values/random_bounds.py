"""Bounds of random numbers, which decide some comparisons during capture: `random.random() < 0.0` is always false."""

from __future__ import annotations

import math
import operator
import random
from typing import Any

from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Recipe

_EXACT = 2**53  # whole numbers up to here are floats


def bounds(recipe: Recipe) -> tuple[float, float] | None:
    """Inclusive bounds of an expression of `random()`, or None. Rounding keeps their order. Infinite bounds are None,
    for infinity times zero has no order."""
    if isinstance(recipe, ConstantRecipe):
        number = recipe.value
        known = type(number) is float or (type(number) is int and abs(number) <= _EXACT)
        return (number, number) if known and math.isfinite(number) else None
    if not isinstance(recipe, CallRecipe) or not isinstance(recipe.function, ConstantRecipe):
        return None
    function = recipe.function.value
    if function is random.Random.random:
        return 0.0, 1.0 - 2.0**-53
    parts = [bounds(part) for part in recipe.args]
    if any(part is None for part in parts):
        return None
    if function is operator.neg:
        low, high = parts[0]  # type: ignore[misc]
        return -high, -low
    if function in (operator.add, operator.sub, operator.mul):
        found = [function(one, other) for one in parts[0] for other in parts[1]]  # type: ignore[union-attr]
        return (min(found), max(found)) if all(map(math.isfinite, found)) else None
    return None


def compared(function: Any, left: Recipe, right: Recipe) -> bool | None:
    """The constant result of a comparison, or None."""
    one, other = bounds(left), bounds(right)
    if one is None or other is None:
        return None
    if function in (operator.gt, operator.ge):
        one, other = other, one
        function = operator.lt if function is operator.gt else operator.le
    if function in (operator.lt, operator.le):
        always, never = function(one[1], other[0]), not function(one[0], other[1])
        return True if always else False if never else None
    apart = one[1] < other[0] or other[1] < one[0]
    return (function is operator.ne) if apart else None
