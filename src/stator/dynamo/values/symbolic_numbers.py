"""Python ints, floats and bools that are not constants of a capture.

A number is an expression over symbols. Each symbol has an origin: inputs, sizes, the contents of tensors, or random
generators. Never here: how expressions are made (number_arithmetic.py), and their nodes (graph/number_nodes.py).
"""

from __future__ import annotations

import collections
import enum
import operator
from types import BuiltinMethodType
from typing import Any, Protocol, TypeGuard

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource, Source
from stator.dynamo.host.naming import safe_repr
from stator.dynamo.host.numpy_boundary import is_numpy_number
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, GetAttr, Recipe
from stator.shapes.conditions import Condition, compare, truth_of
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr, Symbol
from stator.shapes.floats import FloatExpr, int_call
from stator.shapes.sym_node import SymbolicNode, to_symbolic

from .base import CaptureContext, NotConstant, Reconstructor, Value, unsupported
from .constants import ConstantValue

NUMBERS = (int, float, bool)


class Origin(enum.Enum):
    """Where the number behind a symbol becomes known. The text describes such numbers."""

    INPUT = "a number that changes from call to call"
    SIZE = "a number that is known when the graph runs"
    TENSOR = "a number that is read from a tensor"
    RANDOM = "a random number"


class Symbols(Protocol):
    """The symbols of a capture, as numbers see them."""

    fixed: dict[Any, Any]  # the values of expressions that guards hold

    @property
    def environment(self) -> Environment: ...
    def origin(self, symbol: Symbol) -> Origin: ...
    def source(self, expression: Any) -> Source: ...
    def fix(self, number: SymbolicNumber) -> None: ...
    def ahead(self, expression: Any) -> Recipe | None: ...
    def tensor(self, number: SymbolicNumber) -> Value: ...


class SymbolicNumber(Value):
    """A Python number, by its expression: an Expr, a FloatExpr or a Condition. `constant` of a number that is known in
    this call lays a guard on the value. `kind`: the type of the number, which may be one of NumPy's."""

    __slots__ = ("expression", "kind", "symbols")

    def __init__(
        self, symbols: Symbols, expression: Any, kind: type | None = None, source: Source | None = None
    ) -> None:
        super().__init__(source)
        self.symbols = symbols
        self.expression = expression
        self.kind: type = kind or (int if isinstance(expression, Expr) else float if _is_float(expression) else bool)

    def python_type(self, context: CaptureContext) -> type:
        return self.kind

    def describe(self, context: CaptureContext) -> str:
        origins = {self.symbols.origin(symbol) for symbol in self.expression.symbols}
        if Origin.TENSOR in origins:
            return Origin.TENSOR.value
        if Origin.RANDOM in origins:
            return Origin.RANDOM.value
        if not self.is_known:
            return f"{Origin.SIZE.value} ({self.expression})"
        return f"{Origin.INPUT.value} ({self.symbols.source(self.expression)})"

    @property
    def number(self) -> Any:
        """The number as torch's."""
        return to_symbolic(self.symbols.environment, self.expression)

    @property
    def condition(self) -> Condition:
        """Whether the number is true."""
        if self.kind is bool:
            return self.expression  # type: ignore[no-any-return]
        if self.kind in NUMBERS:
            return compare("!=", self.expression, 0)
        return truth_of(int_call(bool, self.expression))

    # -- the value in this call --
    @property
    def is_known(self) -> bool:
        """Whether inputs alone decide it, so that its value in this call answers questions."""
        return bool(self.expression.symbols <= self.symbols.environment.hints.keys())

    @property
    def is_fixed(self) -> bool:
        """Whether guards or facts leave one value."""
        return self._fixed() is not None

    def _fixed(self) -> Any:
        found = self.symbols.fixed.get(self.expression)
        if found is not None or self.kind not in (int, bool):
            return found
        environment = self.symbols.environment
        if self.kind is bool:
            return environment.evaluate_static(self.expression)
        return environment.simplify(self.expression).constant

    @property
    def example(self) -> Any:
        """The value in this call, without a guard; None if only the running graph knows it."""
        if not self.is_known:
            return None
        hints = self.symbols.environment.hints
        return self.expression.holds(hints) if self.kind is bool else self.expression.evaluate(hints)

    @property
    def input_object(self) -> Any:
        """The object at the number's source in this call."""
        (symbol,) = self.expression.symbols
        return self.symbols.environment.hints[symbol]

    def constant(self) -> Any:
        found = self._fixed()
        if found is not None:
            return found
        if not self.is_known:
            raise NotConstant
        self.symbols.fix(self)
        return self.example

    real = constant

    def is_constant(self) -> bool:
        return self.is_known or self.is_fixed

    def key(self, context: CaptureContext) -> Any:
        return self._as_constant(context, "as a key, or a member of a set").value

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if not hasattr(self.kind, name):  # an AttributeError, whatever the value
            return ConstantValue(self.kind()).get_attr(context, name)
        if name in _PURE_METHODS:
            return _NumberMethod(self, name)
        if self.kind is int and name in _OF_INTS:
            return self if _OF_INTS[name] is None else ConstantValue(_OF_INTS[name])
        return self._as_constant(context, f"and its attribute {name!r}").get_attr(context, name)

    def call_method(self, context: CaptureContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self._as_constant(context, f"and its method {name!r}").call_method(context, name, args, kwargs)

    def _as_constant(self, context: CaptureContext, what: str) -> ConstantValue:
        if not self.is_constant():
            raise unsupported("data-dependent-value", f"{self.describe(context)} {what}")
        return ConstantValue(self.constant())

    def truth(self, context: CaptureContext) -> bool:
        found = known_truth(self.symbols.environment, self.condition)
        if found is None:
            raise unsupported(
                "data-dependent-jump",
                f"a branch on {self.describe(context)}",
                "use torch.where, or move the decision out of the compiled function",
            )
        return found

    # -- leaving the frame --
    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        fixed = self._fixed()
        if fixed is not None:
            return ConstantRecipe(fixed)
        made = self.symbols.ahead(self.expression)
        if made is not None:
            return made
        return CallRecipe(ConstantRecipe(torch.Tensor.item), [reconstructor.recipe(self.symbols.tensor(self))])


class _NumberMethod(Value):
    """A method of a number that is a pure function."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: SymbolicNumber, name: str) -> None:
        super().__init__(None)
        self.owner, self.name = owner, name

    def python_type(self, context: CaptureContext) -> type:
        return BuiltinMethodType

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return context.call(context.known(getattr(self.owner.kind, self.name)), [self.owner, *args], kwargs)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return GetAttr(reconstructor.recipe(self.owner), self.name)


def _is_float(expression: Any) -> bool:
    return isinstance(expression, FloatExpr)


def is_open(value: Value) -> TypeGuard[SymbolicNumber]:
    """Whether this is a number of which guards and facts leave several values."""
    return type(value) is SymbolicNumber and not value.is_fixed


def is_known_when_the_graph_runs(value: Value) -> bool:
    """Whether this is a number that no guard can read."""
    return type(value) is SymbolicNumber and not value.is_constant()


def example_of(value: SymbolicNumber | ConstantValue) -> Any:
    """The value in this call, without a guard."""
    return value.example if type(value) is SymbolicNumber else value.value  # type: ignore[union-attr]


def known_truth(environment: Environment, condition: Condition) -> bool | None:
    """The truth of a condition if it is known. The examples of inputs decide, and become facts."""
    if isinstance(condition, bool) or condition.symbols <= environment.hints.keys():
        return environment.decide(condition)
    return environment.evaluate_static(condition)


def truth_for_all_sizes(number: SymbolicNumber) -> bool | None:
    """The truth of a number that ranges and facts tell, without a new fact; else None."""
    return number.symbols.environment.evaluate_static(number.condition)


def example_of_number(number: Any) -> Any:
    """The value of a number of torch in this call, without a fact; None if only the running graph knows it."""
    if not is_symbolic(number):
        return number
    return number.node.hint if number.node.has_hint() else None


def is_symbolic(number: Any) -> bool:
    return type(number) in (torch.SymInt, torch.SymFloat, torch.SymBool) and isinstance(number.node, SymbolicNode)


def is_member(context: CaptureContext, container: Value, number: SymbolicNumber) -> bool | None:
    """Whether a number that is known in this call is in a dictionary, set or sequence of numbers. A guard holds the
    answer alone. None for other containers."""
    kind = container.python_type(context)
    if getattr(kind, "__contains__", None) not in _PLAIN_CONTAINS:
        return None
    members = list(context.iterate(container))
    if not all(isinstance(one, ConstantValue) for one in members):
        return None
    values = tuple(one.value for one in members)  # type: ignore[attr-defined]
    if not all(type(value) in NUMBERS for value in values):
        return None
    found = number.example in values
    read = number.symbols.source(number.expression)
    source = CallSource(operator.contains, (ConstantSource(safe_repr(values), values), read))
    context.guard(source, GuardKind.EQUALS, found)
    return found


def looked_up(context: CaptureContext, container: Value, number: SymbolicNumber) -> SymbolicNumber | None:
    """The number at a changing place of an unchanged table from outside, which each call looks up. None if the item is
    no number, or the container no such table."""
    real = getattr(container, "obj", None)
    if real is None or type(real) not in _TABLES or container.source is None:
        return None
    if any(changed is container for _, changed, _ in context.mutations.entries.values()):
        return None
    try:
        found = real[number.example]
    except (LookupError, TypeError):
        return None  # the program's exception
    if type(found) not in (int, float) and not is_numpy_number(found):
        return None
    place = number.symbols.source(number.expression)
    source = CallSource(operator.getitem, (container.source, place))
    return context.recorder.numbers.of_input(source, found, number)  # type: ignore[no-any-return]


# lookups in these tables have no effects
_TABLES = (list, tuple, dict, collections.Counter, collections.OrderedDict)
_OF_INTS = {"real": None, "numerator": None, "imag": 0, "denominator": 1}  # None: the int
_PURE_METHODS = frozenset({"bit_length", "bit_count", "is_integer"})  # number_arithmetic.py makes expressions of them
_PLAIN_CONTAINS = tuple(kind.__contains__ for kind in (dict, set, frozenset, list, tuple))
