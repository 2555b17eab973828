"""What inductor knows about the sizes of one graph: numbers, or expressions over the symbols of an `Environment`.

The only place where inductor asks about sizes. `known` is for legality: it never guesses. `hint` is for decisions about
speed alone: it looks at the example values and relies on nothing. `decide` relies on its answer. Never here: loops.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stator.base.errors import Unsupported
from stator.graph.ir.size_bindings import unknown_symbols
from stator.prims import layout
from stator.prims.record import TensorMeta
from stator.shapes.conditions import Comparison, Conjunction, Disjunction, compare
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr, ExprLike, Symbol, as_expr, modulo
from stator.shapes.floats import FloatExpr
from stator.shapes.simplify import Simplified, SymbolicRanges, loop_ranges
from stator.shapes.sym_node import to_expression, to_sym_float, to_sym_int

Sizes = tuple[Any, ...]  # ints and expressions
UNKNOWN = "data-dependent"  # the kind of Unsupported for questions that only the running program can answer
# The stand-in for a size without an example value, for decisions about speed
_TYPICAL = 1024
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class SizeKnowledge:
    """Answers questions about the sizes of a graph. Without an environment, all sizes are numbers."""

    def __init__(self, environment: Environment | None = None) -> None:
        self.environment = environment
        self._known = _Known()

    # ---- conversions

    def expression(self, value: Any) -> Any:
        """A torch.SymInt or SymFloat as an expression in simplest form, or as a number; other values as themselves."""
        if value.__class__ is int:
            return value
        value = to_expression(value)
        if isinstance(value, FloatExpr):
            assert self.environment is not None
            return value.substitute(self.environment.replacements)
        if isinstance(value, Comparison | Conjunction | Disjunction):
            return self.with_sizes_of_inputs(value)
        if not isinstance(value, Expr):
            return value
        if self.environment is not None:
            value = self._simplest(self.environment, value)
        return value if value.constant is None else value.constant

    def _simplest(self, environment: Environment, value: Expr) -> Expr:
        """As `Environment.simplify`; and 0 or 1 where a fact such as `rows // 2 == 1` says so: shape rules have
        broadcast these."""
        if value in environment.ranges:
            return environment.simplify(value)
        known = self._results(environment).simplest
        found = known.get(value)
        if found is None:
            found = environment.simplify(value)
            if found.constant is None:
                small = [end for end in (0, 1) if environment.evaluate_static(compare("==", value, end))]
                found = as_expr(small[0]) if small else found
            known[value] = found
        return found

    def with_sizes_of_inputs(self, value: Any) -> Any:
        """An expression, or a condition to check, without the sizes of inputs that facts have replaced. Facts about
        unknown sizes replace nothing: the condition may be one of them."""
        environment = self.environment
        if environment is None or not isinstance(value, Expr | FloatExpr | Comparison | Conjunction | Disjunction):
            return value
        value = value.substitute(self._results(environment).replaced)
        return value.constant if isinstance(value, Expr) and value.constant is not None else value

    def promised(self, meta: Any, own: Collection[Symbol]) -> list[tuple[Sizes, Sizes] | None]:
        """Shapes and strides of the results of a node that binds the symbols `own`, which facts do not replace."""
        assert self.environment is not None
        known = {one: by for one, by in self.environment.replacements.items() if one not in own}

        def raw(sizes: Iterable[Any]) -> Sizes:
            values = [to_expression(size) for size in sizes]
            return tuple([one.substitute(known) if isinstance(one, Expr) else one for one in values])

        parts = meta if isinstance(meta, tuple | list) else (meta,)
        return [(raw(one.shape), raw(one.stride)) if isinstance(one, TensorMeta) else None for one in parts]

    def is_unknown(self, *values: ExprLike | FloatExpr) -> bool:
        """True if a number depends on data, so that it changes from call to call and has no example."""
        environment = self.environment
        return environment is not None and any(
            symbol in environment.ranges and symbol not in environment.hints
            for value in values
            if isinstance(value, Expr | FloatExpr)
            for symbol in value.symbols
        )

    def described(self, meta: Any) -> Any:
        """`meta["val"]` of a node with expressions for symbolic numbers."""
        if isinstance(meta, TensorMeta):
            shape, stride = (tuple([self.expression(one) for one in part]) for part in (meta.shape, meta.stride))
            return replace(meta, shape=shape, stride=stride, offset=self.expression(meta.offset))
        if isinstance(meta, tuple | list):
            return type(meta)([self.described(part) for part in meta])
        return self.expression(meta)

    def symbolic(self, value: Any) -> Any:
        """The inverse of `expression` and `described`, for tracing."""
        if self.environment is None:
            return value
        if isinstance(value, TensorMeta):
            shape, stride = (tuple([self.symbolic(one) for one in part]) for part in (value.shape, value.stride))
            return replace(value, shape=shape, stride=stride, offset=self.symbolic(value.offset))
        if isinstance(value, tuple | list):
            return type(value)([self.symbolic(part) for part in value])
        return to_sym_float(self.environment, to_sym_int(self.environment, value))

    # ---- questions

    def hint(self, value: ExprLike) -> int:
        """The size in the example."""
        if not isinstance(value, Expr):
            return value
        assert self.environment is not None
        known = self._results(self.environment)
        found = known.hints.get(value)
        if found is None:
            found = known.hints[value] = value.evaluate(known.symbols)
        return found

    def hints(self, values: Iterable[ExprLike]) -> tuple[int, ...]:
        return tuple([self.hint(value) for value in values])

    def known(self, relation: str, left: ExprLike, right: ExprLike) -> bool:
        """True if `left relation right` holds for all sizes."""
        if isinstance(left, Expr) or isinstance(right, Expr):
            assert self.environment is not None
            return self.environment.evaluate_static(compare(relation, left, right)) is True
        return _RELATIONS[relation](left, right)

    def decide(self, relation: str, left: ExprLike, right: ExprLike) -> bool:
        """True if `left relation right` holds in the example. The compiled code then relies on the answer.

        Raises Unsupported for sizes that depend on data, where facts do not tell: a lowering then leaves the operator
        to the library.
        """
        if isinstance(left, Expr) or isinstance(right, Expr):
            assert self.environment is not None
            condition = compare(relation, left, right)
            answer = self.environment.evaluate_static(condition)
            if answer is None and unknown_symbols(condition.symbols, self.environment):  # type: ignore[union-attr]
                raise Unsupported(UNKNOWN, f"the truth of {condition} is known only when the program runs")
            return self.environment.decide(condition) if answer is None else answer
        return _RELATIONS[relation](left, right)

    def divides(self, divisor: ExprLike, size: ExprLike) -> bool:
        """True if `size` is a multiple of `divisor` for all sizes."""
        if isinstance(divisor, Expr) or isinstance(size, Expr):
            return self.known("==", modulo(size, divisor), 0)
        return size % divisor == 0

    def simplify(self, value: ExprLike) -> ExprLike:
        return self.expression(value) if isinstance(value, Expr) else value

    def bounded(self, value: ExprLike) -> tuple[float, float]:
        """Inclusive bounds of a size."""
        if not isinstance(value, Expr):
            return value, value
        assert self.environment is not None
        return value.bounds(self.environment.ranges)

    # ---- loops

    def loops_in(self, index: Expr) -> frozenset[Symbol]:
        """The symbols of an index that are no sizes."""
        return index.symbols if self.environment is None else index.symbols - self.environment.ranges.keys()

    def ranges(self, variables: Iterable[Symbol], sizes: Iterable[ExprLike]) -> dict[Symbol, Any]:
        """The ranges of loop variables, for `simplify` and bounds."""
        environment = self.environment
        if environment is None:
            return loop_ranges(variables, sizes)  # type: ignore[arg-type]
        known = self._results(environment)
        key = tuple(variables), tuple(sizes)
        found = known.ranges.get(key)
        if found is None:
            found = known.ranges[key] = SymbolicRanges(environment.ranges, self._is_nonnegative, known.of_sizes)
            for variable, size in zip(*key, strict=True):
                found.add_loop(variable, size)
        return found.copy()

    def _results(self, environment: Environment) -> _Known:
        """What has been computed with the present symbols and facts."""
        at = len(environment.hints), len(environment.ranges), len(environment.facts)
        if self._known.at != at:
            replaced = {one: by for one, by in environment.replacements.items() if one in environment.hints}
            self._known = _Known(at, _Hints(environment.hints), replaced)
        return self._known

    def _is_nonnegative(self, expr: Expr) -> bool:
        return self.known(">=", expr, 0)

    # ---- layouts: as in prims/layout.py. Examples decide the order of dimensions, for which any choice is right

    def preserved_strides(self, shape: Sizes, strides: Sizes) -> Sizes:
        """The strides of a copy that preserves the format: unchanged if dense, else dense in the original order."""
        if self.environment is None:
            return layout.preserved_strides(shape, strides)
        return strides if self.is_dense(shape, strides) else self._dense_as(layout.preserved_strides, shape, strides)

    def elementwise_strides(self, shape: Sizes, operands: Sequence[tuple[Sizes, Sizes]]) -> Sizes:
        """The strides that eager gives the result of operands (shape, strides) broadcast to `shape`."""
        if self.environment is None:
            return layout.elementwise_strides(shape, operands)
        given = [(self.hints(own), self.hints(strides)) for own, strides in operands]
        return self._dense_as(layout.elementwise_strides, shape, given)

    def _dense_as(self, function: Callable[..., Any], shape: Sizes, argument: Any) -> Sizes:
        """Dense strides with dimensions in the order of the result of a function of the example's sizes."""
        numbers = argument if isinstance(argument, list) else self.hints(argument)
        return self.dense_strides(shape, function(self.hints(shape), numbers))

    def dense_strides(self, shape: Sizes, order: Sequence[int]) -> Sizes:
        """Dense strides with dimensions in the order of these numbers, the largest outermost."""
        made: list[ExprLike] = [1] * len(shape)
        running: ExprLike = 1
        for dim in sorted(range(len(shape)), key=lambda dim: (order[dim], -dim)):
            made[dim] = running
            running = running * shape[dim]
        return tuple(made)

    def is_dense(self, shape: Sizes, strides: Sizes) -> bool:
        """True if the elements surely fill their memory without overlap or gaps, in some order of the dimensions."""
        if self.environment is None:
            return layout.is_dense(shape, strides)
        numbers = self.hints(strides)
        dims = sorted((dim for dim, size in enumerate(shape) if size != 1), key=lambda dim: (numbers[dim], -dim))
        running: ExprLike = 1
        for dim in dims:
            if strides[dim] != running:
                return False
            running = running * shape[dim]
        return True

    def may_overlap(self, shape: Sizes, strides: Sizes) -> bool:
        """False if no two elements share memory, for all sizes."""
        if self.environment is None:
            return layout.may_overlap(shape, strides)
        numbers = self.hints(strides)
        reach: ExprLike = 0
        for dim in sorted((dim for dim, size in enumerate(shape) if size != 1), key=numbers.__getitem__):
            if not self.known(">", strides[dim], reach):
                return True
            reach = reach + strides[dim] * (shape[dim] - 1)
        return False


class _Hints(dict[Symbol, int]):
    def __missing__(self, symbol: Symbol) -> int:
        return _TYPICAL


@dataclass(slots=True)
class _Known:
    """Results that stay right until there are more symbols or facts: their numbers are `at`."""

    at: tuple[int, ...] = (0, 0, 0)
    symbols: _Hints = field(default_factory=lambda: _Hints())
    replaced: dict[Symbol, Expr] = field(default_factory=dict)  # sizes of inputs that facts have replaced
    hints: dict[Expr, int] = field(default_factory=dict)
    simplest: dict[Expr, Expr] = field(default_factory=dict)
    of_sizes: Simplified = field(default_factory=dict)
    ranges: dict[tuple[Any, ...], SymbolicRanges] = field(default_factory=dict)


NUMBERS_ONLY = SizeKnowledge()


def has_symbols(value: ExprLike) -> bool:
    return isinstance(value, Expr) and value.constant is None


def product(sizes: Iterable[ExprLike]) -> Any:
    total: Any = 1
    for size in sizes:
        total = total * size
    return total


def ceil_div(size: ExprLike, divisor: int) -> Any:
    return (size + (divisor - 1)) // divisor
