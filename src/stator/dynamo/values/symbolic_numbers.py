"""Python ints, floats and bools that are not constants of a capture: one class, whatever their origin.

The origin holds the number's expression. Code ahead of the graph computes expressions of inputs and of random numbers;
the graph computes expressions of sizes and of tensors. See number_arithmetic.py for what makes new expressions.
"""

from __future__ import annotations

import collections
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import fx

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource, Source
from stator.dynamo.host.numpy_scalars import is_numpy_number, plain_converter, safe_repr
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, Recipe
from stator.shapes.expr import Expr
from stator.shapes.sym_node import SymbolicNode

from .base import NotConstant, Value, unsupported
from .constants import ConstantValue
from .random_bounds import compared

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor

_OFTEN = 4  # changes of a number after which the graph rather breaks than rely on its value
_KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
NUMBERS = (int, float, bool)


@dataclass(slots=True, eq=False)
class FromInput:
    """Read, or computed from what is read, in each call anew. `example`: its value in this call. `depth`: how many
    operations led to it. `unsteady`: it changed so often that no guard may rely on its value. `fixed`: a guard does."""

    context: CaptureContext
    source: Source
    example: Any
    depth: int = 0
    unsteady: bool = False
    fixed: bool = False

    @property
    def plain_source(self) -> Source:
        """Where it is found as an int or float: a number of NumPy is converted."""
        convert = plain_converter(type(self.example))
        return self.source if convert is None else CallSource(convert, (self.source,))

    @property
    def plain_example(self) -> Any:
        convert = plain_converter(type(self.example))
        return self.example if convert is None else convert(self.example)


@dataclass(slots=True, eq=False)
class FromRandom:
    """A float that a generator gives ahead of the graph, or one computed from such floats. `recipe` makes it."""

    recipe: Recipe


@dataclass(slots=True, eq=False)
class FromSizes:
    """Computed from sizes that depend on data, and from ints that the graph reads from tensors. `number`: a SymInt,
    SymFloat or SymBool over symbols of the capture."""

    number: Any


@dataclass(slots=True, eq=False)
class FromTensor:
    """A float or a truth in a tensor. `tensor`: a copy of it, of no dimension, as float64 or bool."""

    tensor: Value
    kind: type = float


Origin = FromInput | FromRandom | FromSizes | FromTensor
_DESCRIPTIONS: dict[type, str] = {
    FromInput: "a number that changes from call to call",
    FromRandom: "a random number",
    FromSizes: "a number that is known when the graph runs",
    FromTensor: "a number that is read from a tensor",
}


class SymbolicNumber(Value):
    """A Python number with an expression. Asking an input for its constant fixes it by a guard."""

    __slots__ = ("node", "origin")

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin.source if type(origin) is FromInput else None)
        self.origin = origin
        self.node: fx.Node | None = None  # that gives it to operators

    def python_type(self, context: CaptureContext) -> type:
        return self.kind

    @property
    def kind(self) -> type:
        origin = self.origin
        if type(origin) is FromInput:
            return type(origin.example)
        if type(origin) is FromSizes:
            return _KINDS[type(origin.number)]
        return origin.kind if type(origin) is FromTensor else float

    @property
    def is_fixed(self) -> bool:
        """Whether a guard relies on its value."""
        return type(self.origin) is FromInput and self.origin.fixed

    def describe(self, context: CaptureContext) -> str:
        what = _DESCRIPTIONS[type(self.origin)]
        if type(self.origin) is FromInput:
            return f"{what} ({self.source})"
        return f"{what} ({self.origin.number})" if type(self.origin) is FromSizes else what

    # -- the value of an input --
    def constant(self) -> Any:
        origin = self.origin
        if type(origin) is not FromInput:
            raise NotConstant
        if not origin.fixed:
            if origin.unsteady:
                raise unsupported(
                    "changing-number",
                    f"this needs to know {origin.source}, a number that is another one in nearly every call",
                    "keep the number in a tensor",
                )
            origin.fixed = True
            origin.context.guard(origin.plain_source, GuardKind.EQUALS, origin.plain_example)
        return origin.example

    real = constant

    def is_constant(self) -> bool:
        return type(self.origin) is FromInput

    def key(self, context: CaptureContext) -> Any:
        return self._as_constant(context, "as a key, or a member of a set").value

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        return self._as_constant(context, f"and its attribute {name!r}").get_attr(context, name)

    def _as_constant(self, context: CaptureContext, what: str) -> ConstantValue:
        if type(self.origin) is not FromInput:
            raise unsupported("data-dependent-value", f"{self.describe(context)} {what}")
        return ConstantValue(self.constant())

    # -- decisions --
    def truth(self, context: CaptureContext) -> bool:
        origin = self.origin
        found: bool | None = None
        if type(origin) is FromInput:
            made = None if origin.fixed else context.call(context.known(bool), [self], {})
            return bool(self.constant() if made is None else made.constant())
        if type(origin) is FromRandom:
            found = compared(operator.ne, origin.recipe, ConstantRecipe(0))
        elif type(origin) is FromSizes:
            found = known_truth(self.condition())
        if found is None:
            raise unsupported(
                "data-dependent-jump",
                f"a branch on {self.describe(context)}",
                "use torch.where, or move the decision out of the compiled function",
            )
        return found

    def condition(self) -> Any:
        """Of a number over symbols: its truth as a torch.SymBool, or a bool."""
        assert type(self.origin) is FromSizes
        number = self.origin.number
        return number if type(number) is torch.SymBool else number != 0

    # -- leaving the frame --
    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        origin = self.origin
        if type(origin) is FromInput:
            return ConstantRecipe(origin.example) if origin.fixed else Load(origin.source)
        if type(origin) is FromRandom:
            return origin.recipe
        held = origin.tensor if type(origin) is FromTensor else reconstructor.context.recorder.numbers.tensor(self)
        return CallRecipe(ConstantRecipe(torch.Tensor.item), [reconstructor.recipe(held)])


def is_open(value: Value) -> TypeGuard[SymbolicNumber]:
    """Whether it is a number on whose value no guard relies."""
    return type(value) is SymbolicNumber and not value.is_fixed


def is_open_input(value: Value) -> bool:
    """Whether it is a number that changes from call to call, on whose value no guard relies."""
    return is_open(value) and type(value.origin) is FromInput


def is_known_when_the_graph_runs(value: Value) -> bool:
    """Whether it is a number that no guard can look at."""
    return type(value) is SymbolicNumber and type(value.origin) is not FromInput


def example_of(value: SymbolicNumber | ConstantValue) -> Any:
    """The value in this call, without relying on that of an input."""
    return value.origin.example if type(value) is SymbolicNumber else value.value  # type: ignore[union-attr]


# ---- numbers over symbols ----


def known_truth(condition: Any) -> bool | None:
    """What a torch.SymBool always is, if that is known; a bool as it is."""
    return condition if type(condition) is bool else condition.node.environment.evaluate_static(condition.node.value)


def is_symbolic(number: Any) -> bool:
    return type(number) in _KINDS and isinstance(number.node, SymbolicNode)


def number_value(number: Any) -> Value:
    """A symbolic number of torch as a value: a constant where it is known."""
    node = number.node
    value = node.environment.simplify(node.value) if isinstance(node.value, Expr) else node.value
    known = value.constant if isinstance(value, Expr) else value if isinstance(value, NUMBERS) else None
    return SymbolicNumber(FromSizes(number)) if known is None else ConstantValue(known)


# ---- inputs ----


def changing_number(context: CaptureContext, value: float, source: Source) -> SymbolicNumber:
    """The number that was read at a place where it changes; its type is relied on."""
    found = context.numbers.get(source)
    if found is None:
        context.guard(source, GuardKind.TYPE, type(value))
        unsteady = context.changing.get(source, 0) >= _OFTEN
        found = context.numbers[source] = SymbolicNumber(FromInput(context, source, value, unsteady=unsteady))
    return found


def is_member(context: CaptureContext, container: Value, number: SymbolicNumber) -> bool | None:
    """Whether a number that changes is in a dictionary, set or sequence of constants, relying on the answer only. None
    where equality with constants does not tell."""
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
    """The number at a changing place of a table that was there before and is as it was: looked up in each call anew.
    None where it is no number, or no such table."""
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


# looking something up in them changes nothing
_TABLES = (list, tuple, dict, collections.Counter, collections.OrderedDict)
_PLAIN_CONTAINS = tuple(kind.__contains__ for kind in (dict, set, frozenset, list, tuple))
