"""The walk that writes expressions over symbols as calls of functions: as sources for guards and for code around the
graph, or as nodes of the graph (number_nodes.py)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from stator.dynamo.guards.source import CallSource, ConstantSource, Source
from stator.shapes.conditions import Comparison, Conjunction, Disjunction
from stator.shapes.expr import Expr, FloorDiv, Mod, Symbol
from stator.shapes.extrema import Max, Min
from stator.shapes.floats import OPERATIONS, ROUNDINGS, FloatExpr, Rounded

_RELATIONS: dict[str, Any] = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt}
_OF_TWO: dict[type, Any] = {FloorDiv: operator.floordiv, Mod: operator.mod}
_OF_MANY: dict[type, Any] = {Min: min, Max: max, Conjunction: operator.and_, Disjunction: operator.or_}


def size_source(value: Any, sources: Mapping[Symbol, Source]) -> Source:
    """The source of a number, an int or float expression, or a condition over symbols at these sources."""
    return SizeExpressions(  # type: ignore[no-any-return]
        sources.__getitem__,
        lambda function, *args: CallSource(function, args),
        lambda number: ConstantSource(repr(number), number),
    ).written(value)


class SizeExpressions:
    """Writes expressions and conditions. `symbol`, `call` and `number` write their parts; parts that are equal are
    written once. `known`: the parts so far."""

    def __init__(
        self, symbol: Callable[[Symbol], Any], call: Callable[..., Any], number: Callable[[Any], Any] = lambda one: one
    ) -> None:
        self.symbol, self.call, self.number = symbol, call, number
        self.known: dict[Any, Any] = {}

    def written(self, value: Any) -> Any:
        if isinstance(value, Expr) and value.constant is not None:
            return self.number(value.constant)
        if not isinstance(value, (Expr, FloatExpr, Comparison, Conjunction, Disjunction)):
            return self.number(value)
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._write(value)
        return found

    def _write(self, value: Any) -> Any:
        match value:
            case Symbol():
                return self.symbol(value)
            case FloorDiv() | Mod():
                return self._called(_OF_TWO[type(value)], value.numerator, value.denominator)
            case Min() | Max():
                return self._folded(_OF_MANY[type(value)], map(self.written, value.args))
            case Conjunction() | Disjunction():
                return self._folded(_OF_MANY[type(value)], map(self.written, value.parts))
            case Rounded():
                return self._called(ROUNDINGS[value.rounding], value.operand)
            case FloatExpr() if value.operation == "symbol":
                return self.written(value.operands[0])
            case FloatExpr():
                return self._called(float if value.operation == "int" else OPERATIONS[value.operation], *value.operands)
            case Comparison():
                return self._called(_RELATIONS[value.relation], value.expr, 0)
        terms = (self._product(monomial, factor) for monomial, factor in value.terms().items())
        return self._folded(operator.add, terms)

    def _product(self, monomial: tuple[Any, ...], factor: int) -> Any:
        parts = [self.written(atom) for atom in monomial]
        if factor != 1 or not parts:
            parts.append(self.number(factor))
        return self._folded(operator.mul, parts)

    def _called(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.call(function, *map(self.written, args))

    def _folded(self, function: Callable[..., Any], parts: Iterable[Any]) -> Any:
        return reduce(lambda one, other: self.call(function, one, other), parts)
