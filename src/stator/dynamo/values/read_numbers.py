"""Python floats that are read from tensors inside of the graph, or drawn ahead of it, and what is computed from them:
nodes of the graph.

Nobody knows their values while capturing, so they are good for one thing: as numbers that operators on tensors take.
"""

from __future__ import annotations

import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from stator.graph.numbers import larger, power, smaller

from ..recipe import CallRecipe, Constant, Recipe
from .base import Value, cannot_rebuild, unsupported
from .checked_numbers import check
from .constants import ConstantValue
from .numbers import is_changing
from .tensors import TensorValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

# what is called in the graph for what the program calls
_FUNCTIONS: dict[Any, Any] = {
    **{
        function: function
        for function in (
            operator.add,
            operator.sub,
            operator.mul,
            operator.truediv,
            operator.neg,
        )
    },
    operator.pow: power,
    max: larger,
    min: smaller,
}


# they give one of their arguments: an int among them would make the type of the result depend on data
_CHOICES = frozenset({max, min})
_COMPARISONS = frozenset(
    {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge},
)


class ReadNumberValue(Value):
    """A float that only the running graph knows. `origin`: how it is made outside of the graph, if it can be."""

    __slots__ = ("node", "origin")

    def __init__(self, node: fx.Node, origin: Recipe | None = None) -> None:
        super().__init__(None)
        self.node = node
        self.origin = origin
        node.meta["gives_float"] = True

    def python_type(self, tracer: Tracer) -> type:
        return float

    def describe(self, tracer: Tracer) -> str:
        return "a number that is read from a tensor" if self.origin is None else "a random number"

    def truth(self, tracer: Tracer) -> bool:
        raise unsupported("data-dependent-jump", f"a branch on {self.describe(tracer)}")

    def can_leave(self, tracer: Tracer) -> bool:
        """Whether code behind the graph can have it."""
        return self.origin is not None or self.node.graph is tracer.recorder.root

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.origin is not None:
            return self.origin
        recorder = exits.tracer.recorder
        if not self.can_leave(exits.tracer):
            raise cannot_rebuild("a number that was read from a tensor inside of a part of the graph")
        return CallRecipe(
            Constant(torch.Tensor.item), [exits.recipe(recorder.unknown.scalar(self.node, torch.float64))]
        )


def computed(tracer: Tracer, function: Any, args: list[Value]) -> Value | None:
    """`function(*args)` in the graph, where an argument is a number read there and the others are numbers too."""
    if not any(type(arg) is ReadNumberValue for arg in args) or len(args) > 2:
        return None
    if function is float:
        return args[0]
    if function in _COMPARISONS:
        raise unsupported(
            "data-dependent-value", f"comparing {args[0].describe(tracer)} and {args[1].describe(tracer)}"
        )
    target = _FUNCTIONS.get(function)
    if function in _CHOICES and any(arg.python_type(tracer) is not float for arg in args):
        raise unsupported("data-dependent-value", "min or max of a float and an int", "write the int as a float")
    if target is None or not all(type(arg) is ReadNumberValue or _is_number(tracer, arg) for arg in args):
        return None
    if not any(type(arg) is ReadNumberValue and arg.origin is not None for arg in args):
        _check_operands(tracer, function, args)
        return ReadNumberValue(tracer.recorder.number_call(target, args))
    parts = [_origin(arg) for arg in args]
    if function not in _NEVER_RAISING or any(part is None for part in parts):
        return None
    origin = CallRecipe(Constant(function), parts)  # type: ignore[arg-type]
    return ReadNumberValue(tracer.recorder.number_call(target, args), origin)


_OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def _check_operands(tracer: Tracer, function: Any, args: list[Value]) -> None:
    """Python raises where tensors give an infinity, and has complex powers where they give NaN: the graph fails there,
    and the program goes its own way. Optimizers compute with counts of steps, of which there is one at least."""
    if tracer.place().filename.startswith(_OPTIMIZERS):
        return
    if function is operator.truediv:
        _rely_on(tracer, args[1], operator.ne)
    elif function is operator.pow:
        base, exponent = args
        power_of = exponent.constant() if isinstance(exponent, ConstantValue) else None
        if power_of is None:
            _rely_on(tracer, base, operator.gt)
        elif power_of % 1 != 0:
            _rely_on(tracer, base, operator.ge if power_of > 0 else operator.gt)
        elif power_of < 0:
            _rely_on(tracer, base, operator.ne)


def _rely_on(tracer: Tracer, number: Value, relation: Any) -> None:
    """That the relation between the number and zero holds."""
    if type(number) is not ReadNumberValue:
        if not relation(number.constant(), 0):
            raise unsupported(
                "data-dependent-value", "an operation on numbers that always raises, or gives a complex one"
            )
        return
    if number.node.graph is not tracer.recorder.graph:
        raise unsupported("data-dependent-value", "a number that is read outside of this part of the graph")
    held = tracer.recorder.unknown.scalar(number.node, torch.float64)
    condition = tracer.call(tracer.known(relation), [held, ConstantValue(0)], {})
    assert isinstance(condition, TensorValue)
    check(tracer, condition)


# of finite floats
_NEVER_RAISING = frozenset({operator.add, operator.sub, operator.mul, operator.neg})


def _origin(value: Value) -> Recipe | None:
    """How a number is made outside of the graph."""
    if type(value) is ReadNumberValue:
        return value.origin
    return Constant(value.constant()) if isinstance(value, ConstantValue) and not is_changing(value) else None


def _is_number(tracer: Tracer, value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.python_type(tracer) in (int, float)
