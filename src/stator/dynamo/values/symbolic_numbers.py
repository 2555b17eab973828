"""Python ints, floats and bools that are not constants of a capture.

The origin holds the number's expression. Code ahead of the graph computes expressions of inputs and of random numbers;
the graph computes expressions of sizes and of tensors. number_arithmetic.py makes new expressions.
"""

from __future__ import annotations

import collections
import operator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import fx

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource, Source
from stator.dynamo.host.naming import safe_repr
from stator.dynamo.host.numpy_boundary import is_numpy_number, plain_converter
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, Recipe
from stator.shapes.expr import Expr
from stator.shapes.sym_node import SymbolicNode

from .base import CaptureContext, NotConstant, Reconstructor, Value, unsupported
from .constants import ConstantValue

_OFTEN = 4  # changes of a number after which no guard may hold its value
_KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
NUMBERS = (int, float, bool)


@dataclass(slots=True, eq=False)
class FromInput:
    """A number that each call reads, or computes from such numbers. `example`: the value in this call. `depth`: the
    number of operations. `unsteady`: the value changed so often that no guard may hold it. `fixed`: a guard does."""

    context: CaptureContext
    source: Source
    example: Any
    depth: int = 0
    unsteady: bool = False
    fixed: bool = False

    @property
    def kind(self) -> type:
        return type(self.example)

    @property
    def plain_source(self) -> Source:
        """The source of the number as a Python int or float; converts numbers of NumPy."""
        convert = plain_converter(type(self.example))
        return self.source if convert is None else CallSource(convert, (self.source,))

    @property
    def plain_example(self) -> Any:
        convert = plain_converter(type(self.example))
        return self.example if convert is None else convert(self.example)


@dataclass(slots=True, eq=False)
class FromSizes:
    """A number computed from sizes, from ints in tensors, from ints of the program and from random floats. `number`: a
    SymInt, SymFloat or SymBool over symbols of the capture."""

    number: Any

    @property
    def kind(self) -> type:
        return _KINDS[type(self.number)]

    @property
    def has_example(self) -> bool:
        """Whether it depends on inputs alone, so that its value in this call answers questions about it."""
        return bool(self.number.node.has_hint())


@dataclass(slots=True, eq=False)
class FromTensor:
    """A float or bool in a tensor. `tensor`: a copy without dimensions, as float64 or bool."""

    tensor: Value
    kind: type = float


Origin = FromInput | FromSizes | FromTensor
_DESCRIPTIONS: dict[type, str] = {
    FromInput: "a number that changes from call to call",
    FromSizes: "a number that is known when the graph runs",
    FromTensor: "a number that is read from a tensor",
}


class SymbolicNumber(Value):
    """A Python number with an expression. `constant` of an input lays a guard on the value."""

    __slots__ = ("node", "origin")

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin.source if type(origin) is FromInput else None)
        self.origin = origin
        self.node: fx.Node | None = None  # the node that operators take

    def python_type(self, context: CaptureContext) -> type:
        return self.kind

    @property
    def kind(self) -> type:
        return self.origin.kind

    @property
    def is_fixed(self) -> bool:
        """Whether a guard holds the value."""
        return type(self.origin) is FromInput and self.origin.fixed

    def describe(self, context: CaptureContext) -> str:
        what = _DESCRIPTIONS[type(self.origin)]
        if type(self.origin) is FromInput:
            return f"{what} ({self.source})"
        if type(self.origin) is not FromSizes:
            return what
        return "a random number" if context.recorder.numbers.is_random(self) else f"{what} ({self.origin.number})"

    # -- the value of an input --
    def constant(self) -> Any:
        origin = self.origin
        if type(origin) is FromSizes and origin.has_example:
            return _KINDS[type(origin.number)](origin.number)  # records a fact
        if type(origin) is not FromInput:
            raise NotConstant
        if not origin.fixed:
            if origin.unsteady:
                raise unsupported(
                    "changing-number",
                    f"a use of the value of {origin.source}, which changes in nearly every call",
                    "keep the number in a tensor",
                )
            origin.fixed = True
            origin.context.guard(origin.plain_source, GuardKind.EQUALS, origin.plain_example)
        return origin.example

    real = constant

    def is_constant(self) -> bool:
        return not is_known_when_the_graph_runs(self)

    def key(self, context: CaptureContext) -> Any:
        return self._as_constant(context, "as a key, or a member of a set").value

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        return self._as_constant(context, f"and its attribute {name!r}").get_attr(context, name)

    def _as_constant(self, context: CaptureContext, what: str) -> ConstantValue:
        if is_known_when_the_graph_runs(self):
            raise unsupported("data-dependent-value", f"{self.describe(context)} {what}")
        return ConstantValue(self.constant())

    # -- decisions --
    def truth(self, context: CaptureContext) -> bool:
        origin = self.origin
        found: bool | None = None
        if type(origin) is FromInput:
            made = None if origin.fixed else context.call(context.known(bool), [self], {})
            return bool(self.constant() if made is None else made.constant())
        if type(origin) is FromSizes:
            found = known_truth(self.condition())
        if found is None:
            raise unsupported(
                "data-dependent-jump",
                f"a branch on {self.describe(context)}",
                "use torch.where, or move the decision out of the compiled function",
            )
        return found

    def condition(self) -> Any:
        """The truth of a number over symbols, as a torch.SymBool or bool."""
        assert type(self.origin) is FromSizes
        number = self.origin.number
        return number if type(number) is torch.SymBool else number != 0

    # -- leaving the frame --
    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        origin = self.origin
        if type(origin) is FromInput:
            if origin.fixed:
                return ConstantRecipe(origin.example)
            if not reconstructor.context.recorder.numbers.is_changed(origin.source):
                return Load(origin.source)
        if type(origin) is FromSizes:
            made = reconstructor.context.recorder.numbers.ahead(origin.number)
            if made is not None:
                return made
        held = origin.tensor if type(origin) is FromTensor else reconstructor.context.recorder.numbers.tensor(self)
        return CallRecipe(ConstantRecipe(torch.Tensor.item), [reconstructor.recipe(held)])


def is_open(value: Value) -> TypeGuard[SymbolicNumber]:
    """Whether this is a number whose value no guard holds."""
    return type(value) is SymbolicNumber and not value.is_fixed


def is_open_input(value: Value) -> bool:
    """Whether this is an input number whose value no guard holds."""
    return is_open(value) and type(value.origin) is FromInput


def is_known_when_the_graph_runs(value: Value) -> bool:
    """Whether this is a number that no guard can read."""
    if type(value) is not SymbolicNumber or type(value.origin) is FromInput:
        return False
    return type(value.origin) is not FromSizes or not value.origin.has_example


def is_computed_by_the_graph(value: Value) -> bool:
    """Whether operators of the graph take this number as a node that computes it."""
    return type(value) is SymbolicNumber and type(value.origin) is not FromInput


def example_of(value: SymbolicNumber | ConstantValue) -> Any:
    """The value in this call, without a guard."""
    if type(value) is not SymbolicNumber:
        return value.value  # type: ignore[union-attr]
    if type(value.origin) is FromSizes:
        return example_of_number(value.origin.number)
    return value.origin.example  # type: ignore[union-attr]


# ---- numbers over symbols ----


def known_truth(condition: Any) -> bool | None:
    """The value of a bool, or of a torch.SymBool if it is known. The examples of inputs decide, and become facts."""
    if type(condition) is bool or condition.node.has_hint():
        return bool(condition)
    return condition.node.environment.evaluate_static(condition.node.value)  # type: ignore[no-any-return]


def truth_for_all_sizes(number: SymbolicNumber) -> bool | None:
    """The truth of a number over symbols that ranges and facts tell, without a new fact; else None."""
    condition = number.condition() if type(number.origin) is FromSizes else None
    if condition is None or type(condition) is bool:
        return condition
    return condition.node.environment.evaluate_static(condition.node.value)  # type: ignore[no-any-return]


def example_of_number(number: Any) -> Any:
    """The value of a number of torch in this call, without a fact; None if only the running graph knows it."""
    if not is_symbolic(number):
        return number
    return number.node.hint if number.node.has_hint() else None


def is_symbolic(number: Any) -> bool:
    return type(number) in _KINDS and isinstance(number.node, SymbolicNode)


def number_value(number: Any) -> Value:
    """The value of a symbolic number of torch; a constant if the number is known."""
    node = number.node
    if not isinstance(node, SymbolicNode):
        raise unsupported("tensor-layout", "the size of a nested tensor that stands for its lengths")
    value = node.environment.simplify(node.value) if isinstance(node.value, Expr) else node.value
    known = value.constant if isinstance(value, Expr) else value if isinstance(value, NUMBERS) else None
    return SymbolicNumber(FromSizes(number)) if known is None else ConstantValue(known)


# ---- inputs ----


def changing_number(context: CaptureContext, value: float, source: Source) -> SymbolicNumber:
    """The number at a source whose number changes. A guard holds its type."""
    found = context.numbers.get(source)
    if found is None:
        context.guard(source, GuardKind.TYPE, type(value))
        unsteady = context.changing.get(source, 0) >= _OFTEN
        found = context.numbers[source] = SymbolicNumber(FromInput(context, source, value, unsteady=unsteady))
    return found


def is_member(context: CaptureContext, container: Value, number: SymbolicNumber) -> bool | None:
    """Whether a changing number is in a dictionary, set or sequence of numbers. A guard holds the answer alone. None
    for other containers."""
    kind = container.python_type(context)
    if getattr(kind, "__contains__", None) not in _PLAIN_CONTAINS:
        return None
    members = list(context.iterate(container))
    if not all(isinstance(one, ConstantValue) for one in members):
        return None
    values = tuple(one.value for one in members)  # type: ignore[attr-defined]
    if not all(type(value) in NUMBERS for value in values):
        return None
    found = example_of(number) in values
    source = CallSource(operator.contains, (ConstantSource(safe_repr(values), values), number.source))  # type: ignore[arg-type]
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
    key = (operator.getitem, container.source, number.source)
    if key not in context.numbers:
        place = number.origin
        assert type(place) is FromInput
        try:
            found = real[place.example]
        except (LookupError, TypeError):
            return None  # the program's exception
        if type(found) not in (int, float) and not is_numpy_number(found):
            return None
        made = CallSource(operator.getitem, (container.source, place.source))
        context.guard(made, GuardKind.TYPE, type(found))
        context.numbers[key] = SymbolicNumber(FromInput(context, made, found, place.depth + 1, place.unsteady))
    return context.numbers[key]


# lookups in these tables have no effects
_TABLES = (list, tuple, dict, collections.Counter, collections.OrderedDict)
_PLAIN_CONTAINS = tuple(kind.__contains__ for kind in (dict, set, frozenset, list, tuple))
