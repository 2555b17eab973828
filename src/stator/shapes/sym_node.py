"""The node behind `torch.SymInt`, `SymFloat` and `SymBool`: an expression in an environment.

torch calls the methods of such a node by the names in `torch/csrc/utils/python_symnode.h`. Arithmetic gives canonical
expressions. The environment answers, and records, questions for a value or for the truth of a comparison. Never here:
knowledge about symbols.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from .arithmetic import COMPARISONS, OF_INTS, applied, kind_of_result
from .conditions import Condition, compare, conjunction, disjunction, negate
from .environment import Environment, asking
from .expr import Expr, as_expr
from .floats import ROUNDINGS, FloatExpr, Function, quotient
from .layouts import channels_last_order, densely_ordered, in_stride_order, row_major_order, suggests_channels_last

_SIMPLIFIED = frozenset((operator.mod, operator.floordiv, min, max, *ROUNDINGS))  # under ranges and facts


_OF_INTS = {one: OF_INTS[one] for one in (operator.add, operator.sub, operator.mul, operator.neg)}


def _of_one(function: Function) -> Callable[[SymbolicNode], SymbolicNode]:
    return lambda node: node.combined(function, (node,))


def _of_two(function: Function) -> Callable[[SymbolicNode, SymbolicNode], SymbolicNode]:
    return lambda node, other: (node if type(other) is SymbolicNode else other).combined(function, (node, other))


class SymbolicNode:
    """`value` is an Expr or int (kind int), a FloatExpr or float (kind float), or a Condition (kind bool)."""

    __slots__ = ("__weakref__", "environment", "is_int", "kind", "value")
    # torch reads this attribute of its own nodes; constant nodes here answer by is_constant instead
    constant = None

    def __init__(self, environment: Environment, value: Any, kind: type) -> None:
        self.environment = environment
        self.value = value
        self.kind = kind
        # A method in C. torch asks it while it parses arguments, and makes a TypeError of any exception: no handler of
        # signals must run then, as one may whenever a function in Python begins.
        self.is_int = (kind is int).__bool__

    # -- kind -----------------------------------------------------------------------------------------------------

    @property
    def expr(self) -> Any:
        return self.value

    @property
    def hint(self) -> Any:
        if self.kind is bool:
            return self.value if isinstance(self.value, bool) else self.value.holds(self.environment.hints)
        return self.environment.hint(self.value)

    def is_float(self) -> bool:
        return self.kind is float

    def is_bool(self) -> bool:
        return self.kind is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_constant(self) -> bool:
        return self._number() is not None

    def is_symbolic(self) -> bool:
        return self._number() is None

    def has_hint(self) -> bool:
        if self.kind is bool:
            return isinstance(self.value, bool) or self.value.symbols <= self.environment.hints.keys()
        return self.environment.has_hint(self.value)

    def maybe_as_int(self) -> int | None:
        return self._number() if self.kind is int else None

    def maybe_as_float(self) -> float | None:
        return self._number() if self.kind is float else None

    def maybe_as_bool(self) -> bool | None:
        return self._number() if self.kind is bool else None

    def clone(self) -> SymbolicNode:
        return self

    def __str__(self) -> str:
        return str(self.value)

    _graph_repr = __repr__ = __str__

    def _number(self) -> Any:
        """The value if it depends on no symbol, else None. Records nothing."""
        value = self.value
        if isinstance(value, Expr):
            return value.constant
        return value if isinstance(value, (int, float)) else None

    # -- values, recorded as facts --------------------------------------------------------------------------------

    def int_(self) -> int:
        return int(self.environment.specialize(self.value))

    def bool_(self) -> bool:
        if self.kind is bool:
            return self.environment.decide(self.value)
        return self.environment.decide(compare("!=", self.value, 0))

    def guard_int(self, file: Any, line: Any) -> int:
        return self.int_()

    def guard_float(self, file: Any, line: Any) -> float:
        return float(self.environment.specialize(self.value))

    def guard_bool(self, file: Any, line: Any) -> bool:
        return self.bool_()

    def expect_true(self, file: Any, line: Any) -> bool:
        """Answers a check of C++ or of a shape rule that raises when the condition is false."""
        return self.environment.expect(self._truth())

    def guard_size_oblivious(self, file: Any, line: Any) -> bool:
        return self.bool_()

    def guard_or_false(self, file: Any, line: Any) -> bool:
        return self._guard_or(False, file)

    def guard_or_true(self, file: Any, line: Any) -> bool:
        return self._guard_or(True, file)

    def _guard_or(self, otherwise: bool, file: str) -> bool:
        """`file`: of torch's C++, empty where a shape rule asks."""
        if file and getattr(asking, "general", False):
            known = self.environment.evaluate_static(self.value)
            return otherwise if known is None else known
        return self.environment.decide_or(self.value, otherwise)

    def statically_known_true(self, file: Any, line: Any) -> bool:
        return self.environment.evaluate_static(self.value) is True

    # -- new nodes ------------------------------------------------------------------------------------------------

    def wrap_int(self, number: int) -> SymbolicNode:
        return SymbolicNode(self.environment, as_expr(number), int)

    def wrap_float(self, number: float) -> SymbolicNode:
        return SymbolicNode(self.environment, number, float)

    def wrap_bool(self, truth: bool) -> SymbolicNode:
        return SymbolicNode(self.environment, truth, bool)

    def combined(self, function: Function, nodes: Sequence[SymbolicNode]) -> SymbolicNode:
        """The node of `function(*nodes)`."""
        kinds = [node.kind for node in nodes]
        if bool not in kinds and float not in kinds:  # most calls
            if function in COMPARISONS:
                return self._condition(compare(COMPARISONS[function], nodes[0].value, nodes[1].value))
            if function in _OF_INTS:
                value = _OF_INTS[function](*[as_expr(node.value) for node in nodes])
                return SymbolicNode(self.environment, value, int)
        kind = kind_of_result(function, kinds)
        of_truths = kind is bool or kinds[0] is not bool
        operands = [node.value if of_truths or node.kind is not bool else node.bool_() for node in nodes]
        value = applied(function, operands, kind)
        if kind is bool:
            return self._condition(value)
        if kind is int and function in _SIMPLIFIED:
            value = self.environment.simplify(self.environment.without_floats(value))
        return SymbolicNode(self.environment, value, kind)

    # -- arithmetic -----------------------------------------------------------------------------------------------

    add, sub, mul, mod = (_of_two(one) for one in (operator.add, operator.sub, operator.mul, operator.mod))
    floordiv = int_floordiv = _of_two(operator.floordiv)
    int_truediv = float_truediv = _of_two(operator.truediv)
    truediv = _of_two(quotient)  # of floats, by code in C++
    neg, abs, sqrt, sym_float = _of_one(operator.neg), _of_one(abs), _of_one(math.sqrt), _of_one(float)
    floor, ceil = _of_one(math.floor), _of_one(math.ceil)
    trunc = sym_int = _of_one(math.trunc)
    sym_min, sym_max = _of_two(min), _of_two(max)

    def pos(self) -> SymbolicNode:
        return self

    def float_pow(self, other: SymbolicNode) -> SymbolicNode:
        return SymbolicNode(self.environment, applied(operator.pow, (self.value, other.value), float), float)

    def pow_by_natural(self, other: SymbolicNode) -> SymbolicNode:
        """Specializes the exponent."""
        result = self.wrap_int(1)
        for _ in range(other.int_()):
            result = result.mul(self)
        return result

    def pow(self, other: SymbolicNode) -> SymbolicNode:
        if self.kind is float or other.kind is float or not other.ge(other.wrap_int(0)).bool_():
            return self.float_pow(other)
        return self.pow_by_natural(other)

    def sym_sum(self, terms: Sequence[SymbolicNode]) -> SymbolicNode:
        return reduce(SymbolicNode.add, terms, self.wrap_int(0))

    def is_integer(self) -> SymbolicNode:
        if self.kind is int:
            return self.wrap_bool(True)
        return self.wrap_bool(float(self.environment.specialize(self.value)).is_integer())

    # -- comparisons and logic ------------------------------------------------------------------------------------

    eq, ne, lt, le, gt, ge = (_of_two(one) for one in COMPARISONS)

    def _condition(self, condition: Condition) -> SymbolicNode:
        known = self.environment.truth(condition)
        return SymbolicNode(self.environment, condition if known is None else known, bool)

    def sym_and(self, other: SymbolicNode) -> SymbolicNode:
        return self._condition(conjunction(self._truth(), other._truth()))

    def sym_or(self, other: SymbolicNode) -> SymbolicNode:
        return self._condition(disjunction(self._truth(), other._truth()))

    and_ = sym_and
    or_ = sym_or

    def sym_not(self) -> SymbolicNode:
        return self._condition(negate(self._truth()))

    def _truth(self) -> Condition:
        return self.value if self.kind is bool else compare("!=", self.value, 0)

    def sym_ite(self, then: SymbolicNode, otherwise: SymbolicNode) -> SymbolicNode:
        return then if self.bool_() else otherwise

    # -- layouts: (sizes, strides) of a tensor, as nodes ------------------------------------------------------------

    def is_contiguous(self, sizes: Any, strides: Any) -> SymbolicNode:
        return self._layout(densely_ordered, row_major_order, sizes, strides)

    def is_channels_last_contiguous_2d(self, sizes: Any, strides: Any) -> SymbolicNode:
        return self._layout(densely_ordered, channels_last_order(4), sizes, strides)

    def is_channels_last_contiguous_3d(self, sizes: Any, strides: Any) -> SymbolicNode:
        return self._layout(densely_ordered, channels_last_order(5), sizes, strides)

    def is_channels_last_strides_2d(self, sizes: Any, strides: Any) -> SymbolicNode:
        return self._layout(suggests_channels_last, channels_last_order(4), sizes, strides)

    def is_channels_last_strides_3d(self, sizes: Any, strides: Any) -> SymbolicNode:
        return self._layout(suggests_channels_last, channels_last_order(5), sizes, strides)

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> SymbolicNode:
        return self._layout(densely_ordered, in_stride_order, sizes, strides)

    def _layout(self, question: Any, order: Any, sizes: Any, strides: Any) -> SymbolicNode:
        shape, steps = [as_expr(node.value) for node in sizes], [as_expr(node.value) for node in strides]
        return self.wrap_bool(question(self.environment, shape, steps, order))


# torch calls `str`. As a method in the class, the name would hide the type `str` from the annotations there.
SymbolicNode.str = SymbolicNode.__str__  # type: ignore[attr-defined]


def rely_on_elements(sizes: Sequence[Any]) -> None:
    """Rely on which sizes of a tensor are zero, as far as they are symbolic."""
    for size in sizes:
        node = size.node if type(size) is torch.SymInt else None
        if type(node) is SymbolicNode:
            node.environment.rely_on_elements(node.value)


def remember_of_sizes(function: Callable[..., Any], args: Sequence[Any], compute: Callable[[], Any]) -> Any:
    """The result of `compute`, which tells `function(*args)` of ints, symbolic ints, and sequences of them, and asks
    nothing but their environment: it remembers the result."""
    key: list[Any] = [function]
    environments: list[Environment] = []
    if not _describe_sizes(args, key, environments) or not environments:
        return compute()
    return environments[0].remember(tuple(key), compute)


def _describe_sizes(values: Sequence[Any], key: list[Any], environments: list[Environment]) -> bool:
    """Append what distinguishes these values, and the environments of their symbols. False for other values."""
    for value in values:
        kind = type(value)
        if kind is int:
            key.append(value)
        elif kind is torch.SymInt and type(value.node) is SymbolicNode:
            key.append(value.node.value)
            environments.append(value.node.environment)
        elif kind is tuple or kind is list:
            key += (kind, len(value))
            if not _describe_sizes(value, key, environments):
                return False
        else:
            return False
    return True


def storage_bytes(sizes: Sequence[Any], strides: Sequence[Any], offset: Any, itemsize: int) -> Any:
    """The bytes up to the end of a tensor's last element; None if all sizes and strides are ints. torch computes these
    bytes itself, but of symbolic sizes by many calls of nodes."""
    numbers = (*sizes, *strides, offset)
    node = next((number.node for number in numbers if type(number) is torch.SymInt), None)
    if type(node) is not SymbolicNode:
        return None
    steps = [to_expression(number) for number in numbers]
    shape, places = steps[: len(sizes)], steps[len(sizes) : -1]
    if 0 in shape:
        return 0

    def compute() -> Any:
        last = sum([(size - 1) * place for size, place in zip(shape, places, strict=True)])
        return to_sym_int(node.environment, (steps[-1] + last + 1) * itemsize)

    return node.environment.remember((storage_bytes, len(sizes), *steps, itemsize), compute)


def to_sym_int(environment: Environment, value: Any) -> Any:
    """A `torch.SymInt` for an integer expression, or an int if the expression is constant."""
    if isinstance(value, Expr) and value.constant is not None:
        return value.constant
    return torch.SymInt(SymbolicNode(environment, value, int)) if isinstance(value, Expr) else value


def to_sym_float(environment: Environment, value: Any) -> Any:
    """A `torch.SymFloat` for a floating-point expression. A number stays a number."""
    return torch.SymFloat(SymbolicNode(environment, value, float)) if isinstance(value, FloatExpr) else value


def to_sym_bool(environment: Environment, condition: Condition) -> Any:
    """A `torch.SymBool` for a condition. A bool stays a bool."""
    return condition if isinstance(condition, bool) else torch.SymBool(SymbolicNode(environment, condition, bool))


def to_expression(value: Any) -> Any:
    """The expression behind stator's SymInt, SymFloat or SymBool. Any other value stays as it is."""
    node = getattr(value, "node", None)
    return node.value if isinstance(node, SymbolicNode) else value


def to_symbolic(environment: Environment, value: Any) -> Any:
    """A number of torch for an expression or a condition. A number stays a number."""
    if isinstance(value, Expr):
        return to_sym_int(environment, value)
    return to_sym_float(environment, value) if isinstance(value, FloatExpr | float) else to_sym_bool(environment, value)
