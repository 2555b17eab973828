"""Sources by which guards, and code around the graph, compute numbers from the sizes and ints of inputs. The graph's
own nodes for such numbers are in number_nodes.py."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from stator.dynamo.guards.source import CallSource, ConstantSource, Source
from stator.shapes.conditions import Comparison, Conjunction
from stator.shapes.expr import Expr, FloorDiv, Mod, Symbol
from stator.shapes.extrema import Max, Min
from stator.shapes.floats import OPERATIONS, ROUNDINGS, FloatExpr, Rounded

_RELATIONS: dict[str, Any] = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt}


def size_source(value: Any, sources: Mapping[Symbol, Source]) -> Source:
    """The source of a number, an int or float expression, or a condition."""
    return _SizeSources(sources).of(value)


class _SizeSources:
    def __init__(self, sources: Mapping[Symbol, Source]) -> None:
        self.sources = sources

    def of(self, value: Any) -> Source:
        if isinstance(value, Expr):
            return _constant(value.constant) if value.constant is not None else self._expression(value)
        if isinstance(value, FloatExpr):
            operands = map(self.of, value.operands)
            return _call(float if value.operation == "int" else OPERATIONS[value.operation], *operands)
        if isinstance(value, Comparison):
            return _call(_RELATIONS[value.relation], self.of(value.expr), _constant(0))
        if hasattr(value, "parts"):
            return self._folded(operator.and_ if isinstance(value, Conjunction) else operator.or_, value.parts)
        return _constant(value)

    def _expression(self, value: Expr) -> Source:
        if isinstance(value, Symbol):
            return self.sources[value]
        if isinstance(value, (FloorDiv, Mod)):
            function = operator.floordiv if isinstance(value, FloorDiv) else operator.mod
            return _call(function, self.of(value.numerator), self.of(value.denominator))
        if isinstance(value, (Min, Max)):
            return _call(min if isinstance(value, Min) else max, *map(self.of, value.args))
        if isinstance(value, Rounded):
            return _call(ROUNDINGS[value.rounding], self.of(value.operand))
        terms = [self._product(monomial, factor) for monomial, factor in value.terms().items()]
        return reduce(lambda sum, term: _call(operator.add, sum, term), terms)

    def _product(self, monomial: tuple[Any, ...], factor: int) -> Source:
        parts = [self.of(atom) for atom in monomial]
        if factor != 1 or not parts:
            parts.append(_constant(factor))
        return reduce(lambda product, part: _call(operator.mul, product, part), parts)

    def _folded(self, function: Callable[..., object], parts: tuple[Any, ...]) -> Source:
        return reduce(lambda one, other: _call(function, one, other), map(self.of, parts))


def _call(function: Callable[..., object], *args: Source) -> Source:
    return CallSource(function, args)


def _constant(number: Any) -> Source:
    return ConstantSource(repr(number), number)
