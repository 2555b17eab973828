"""The walk that writes expressions over symbols as calls of functions: as sources for guards and for code around the
graph, or as nodes and tensors of the graph (graph/number_nodes.py, graph/number_tensors.py)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from stator.dynamo.guards.source import CallSource, ConstantSource, Source
from stator.dynamo.host.naming import safe_repr
from stator.shapes.conditions import Comparison, Conjunction, Disjunction
from stator.shapes.expr import Expr, FloorDiv, Mod, Symbol
from stator.shapes.extrema import Max, Min
from stator.shapes.floats import FloatExpr, IntCall

_RELATIONS: dict[str, Any] = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}
_OF_TWO: dict[type, Any] = {FloorDiv: operator.floordiv, Mod: operator.mod}
_OF_MANY: dict[type, Any] = {Min: min, Max: max, Conjunction: operator.and_, Disjunction: operator.or_}


def size_source(value: Any, sources: Mapping[Symbol, Source]) -> Source:
    """The source of a number, an int or float expression, or a condition over symbols at these sources."""
    return SizeExpressions(  # type: ignore[no-any-return]
        sources.__getitem__,
        lambda function, *args: CallSource(function, args),
        lambda number: ConstantSource(safe_repr(number), number),
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
            case FloatExpr() | IntCall():
                written = map(self.written, value.operands)
                return next(written) if value.function is None else self.call(value.function, *written)
            case Comparison() if self.is_truth(value.expr) and value.relation != ">=":
                truth = self.truth(value.expr)
                return truth if value.relation == "!=" else self.call(operator.not_, truth)
            case Comparison():
                return self._called(_RELATIONS[value.relation], value.expr, 0)
        terms = (self._product(monomial, factor) for monomial, factor in value.terms().items())
        return self._folded(operator.add, terms)

    def is_truth(self, value: Expr) -> bool:
        """Whether `truth` writes this int, which is 0 or 1."""
        return isinstance(value, IntCall) and value.is_truth

    def truth(self, value: Any) -> Any:
        """A 0 or 1 as a bool."""
        if value.is_of_condition:
            return self.written(value.operands[0])
        return self._called(value.function, *value.operands)

    def _product(self, monomial: tuple[Any, ...], factor: int) -> Any:
        parts = [self.written(atom) for atom in monomial]
        if factor != 1 or not parts:
            parts.append(self.number(factor))
        return self._folded(operator.mul, parts)

    def _called(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.call(function, *map(self.written, args))

    def _folded(self, function: Callable[..., Any], parts: Iterable[Any]) -> Any:
        return reduce(lambda one, other: self.call(function, one, other), parts)
