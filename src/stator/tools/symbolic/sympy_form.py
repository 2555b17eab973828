"""Expressions of sizes as sympy expressions, for solving and printing. sympy is imported on demand."""

from __future__ import annotations

import importlib
from typing import Any

from stator.base.errors import UsageError
from stator.shapes.expr import Expr, ExprLike, FloorDiv, Mod, Symbol
from stator.shapes.extrema import Max, Min


def to_sympy(value: ExprLike) -> Any:
    """The sympy expression; symbols are positive integers. Raises UsageError for sizes that are rounded floats."""
    sympy: Any = importlib.import_module("sympy")
    if not isinstance(value, Expr):
        return sympy.Integer(value)

    def atom(one: Any) -> Any:
        if isinstance(one, Symbol):
            return sympy.Symbol(one.name, integer=True, positive=True)
        if isinstance(one, FloorDiv):
            return sympy.floor(to_sympy(one.numerator) / to_sympy(one.denominator))
        if isinstance(one, Mod):
            return sympy.Mod(to_sympy(one.numerator), to_sympy(one.denominator))
        if isinstance(one, (Max, Min)):
            return (sympy.Max if isinstance(one, Max) else sympy.Min)(*map(to_sympy, one.args))
        raise UsageError(f"{one} has no sympy form")

    return sympy.Add(*(sympy.Mul(factor, *map(atom, monomial)) for monomial, factor in value.terms().items()))
