"""Recipes by which code around the graph computes numbers from the sizes and ints of inputs. The graph's own nodes for
such numbers are in number_nodes.py."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from stator.dynamo.guards.source import Source
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe, call_recipe
from stator.shapes.conditions import Comparison, Conjunction
from stator.shapes.expr import Expr, FloorDiv, Mod, Symbol
from stator.shapes.extrema import Max, Min
from stator.shapes.floats import OPERATIONS, ROUNDINGS, FloatExpr, Rounded

_RELATIONS: dict[str, Any] = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt}


def size_recipe(value: Any, sources: Mapping[Symbol, Source]) -> Recipe:
    """The recipe of a number, an int or float expression, or a condition."""
    made = _SizeRecipes(sources)
    return made.of(value)


class _SizeRecipes:
    def __init__(self, sources: Mapping[Symbol, Source]) -> None:
        self.sources = sources

    def of(self, value: Any) -> Recipe:
        if isinstance(value, Expr):
            return ConstantRecipe(value.constant) if value.constant is not None else self._expression(value)
        if isinstance(value, FloatExpr):
            operands = map(self.of, value.operands)
            return call_recipe(float if value.operation == "int" else OPERATIONS[value.operation], *operands)
        if isinstance(value, Comparison):
            return call_recipe(_RELATIONS[value.relation], self.of(value.expr), ConstantRecipe(0))
        if hasattr(value, "parts"):
            return self._folded(operator.and_ if isinstance(value, Conjunction) else operator.or_, value.parts)
        return ConstantRecipe(value)

    def _expression(self, value: Expr) -> Recipe:
        if isinstance(value, Symbol):
            return Load(self.sources[value])
        if isinstance(value, (FloorDiv, Mod)):
            function = operator.floordiv if isinstance(value, FloorDiv) else operator.mod
            return call_recipe(function, self.of(value.numerator), self.of(value.denominator))
        if isinstance(value, (Min, Max)):
            return call_recipe(min if isinstance(value, Min) else max, *map(self.of, value.args))
        if isinstance(value, Rounded):
            return call_recipe(ROUNDINGS[value.rounding], self.of(value.operand))
        terms = [self._product(monomial, factor) for monomial, factor in value.terms().items()]
        return reduce(lambda sum, term: call_recipe(operator.add, sum, term), terms)

    def _product(self, monomial: tuple[Any, ...], factor: int) -> Recipe:
        parts = [self.of(atom) for atom in monomial]
        if factor != 1 or not parts:
            parts.append(ConstantRecipe(factor))
        return reduce(lambda product, part: call_recipe(operator.mul, product, part), parts)

    def _folded(self, function: Callable[..., object], parts: tuple[Any, ...]) -> Recipe:
        return reduce(lambda one, other: call_recipe(function, one, other), map(self.of, parts))
