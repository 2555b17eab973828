"""Python floats that are read from tensors inside of the graph, and what is computed from them: nodes of the graph.

Nobody knows their values while capturing, so they are good for one thing: as numbers that operators on tensors take.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import fx

from stator.graph.numbers import larger, power, smaller

from .base import Value, cannot_rebuild, unsupported
from .constants import ConstantValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..recipe import Recipe
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


class ReadNumberValue(Value):
    """A float that only the running graph knows."""

    __slots__ = ("node",)

    def __init__(self, node: fx.Node) -> None:
        super().__init__(None)
        self.node = node

    def python_type(self, tracer: Tracer) -> type:
        return float

    def describe(self, tracer: Tracer) -> str:
        return "a number that is read from a tensor"

    def truth(self, tracer: Tracer) -> bool:
        raise unsupported("data-dependent-jump", "a branch on a number that is read from a tensor")

    def recipe(self, exits: ExitBuilder) -> Recipe:
        raise cannot_rebuild("a number that was read from a tensor inside of the graph")


def computed(tracer: Tracer, function: Any, args: list[Value]) -> Value | None:
    """`function(*args)` in the graph, where an argument is a number read there and the others are numbers too."""
    if not any(type(arg) is ReadNumberValue for arg in args) or len(args) > 2:
        return None
    target = _FUNCTIONS.get(function)
    if target is None or not all(type(arg) is ReadNumberValue or _is_number(tracer, arg) for arg in args):
        return None
    return ReadNumberValue(tracer.recorder.number_call(target, args))


def _is_number(tracer: Tracer, value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.python_type(tracer) in (int, float)
