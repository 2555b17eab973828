"""Python numbers that only the run can tell: sizes of tensors whose size depends on data, ints read from tensors, and
what is computed from them. Symbols of the capture stand for them.

What is known of them (they are no negative sizes, say) answers the program's questions; where it does not, the graph
ends. How they become nodes of the graph is the recorder's business (symbolic_numbers.py).
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Recipe
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.shapes.expr import Expr
from stator.shapes.sym_node import SymbolicNode

from .numbers import is_changing

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext
    from stator.dynamo.interpreter.reconstruction import Reconstructor

_KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_PLAIN = (int, float, bool)

# what is done with the symbols for what the program calls
_FUNCTIONS: dict[Any, Any] = {
    **{
        function: function
        for function in (
            operator.add,
            operator.sub,
            operator.mul,
            operator.neg,
            operator.pos,
            operator.eq,
            operator.ne,
            operator.lt,
            operator.le,
            operator.gt,
            operator.ge,
            operator.index,
            math.floor,
            math.ceil,
        )
    },
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    min: torch.sym_min,
    max: torch.sym_max,
    int: torch.sym_int,
    float: torch.sym_float,
    torch.sym_min: torch.sym_min,
    torch.sym_max: torch.sym_max,
    torch.sym_int: torch.sym_int,
    torch.sym_float: torch.sym_float,
}


def _power(base: Any, exponent: Any) -> Any:
    """A small constant power; None for any other."""
    if type(exponent) is not int or not 0 <= exponent <= _MOST_FACTORS:
        return None
    return math.prod([base] * exponent)


def _shifted_left(number: Any, by: Any) -> Any:
    return number * 2**by if type(by) is int and 0 <= by < _MOST_SHIFTED else None


def _shifted_right(number: Any, by: Any) -> Any:
    return number // 2**by if type(by) is int and 0 <= by < _MOST_SHIFTED else None


def _magnitude(number: Any) -> Any:
    return torch.sym_max(number, -number)


_MOST_FACTORS = 4
_MOST_SHIFTED = 31
# of ints only
_OF_WHOLE: dict[Any, Any] = {
    abs: _magnitude,
    operator.abs: _magnitude,
    operator.pow: _power,
    operator.lshift: _shifted_left,
    operator.rshift: _shifted_right,
    round: lambda number: number,
    math.trunc: lambda number: number,
}
_FUNCTIONS.update(_OF_WHOLE)
_OF_ONE: frozenset[Any] = frozenset(
    [
        *(operator.neg, operator.pos, operator.index, operator.abs, abs, round),
        *(math.floor, math.ceil, math.trunc, int, float, torch.sym_int, torch.sym_float),
    ]
)
# those that raise where the second number is zero
_DIVISIONS: dict[Any, Any] = {
    operator.floordiv: operator.floordiv,
    operator.mod: operator.mod,
    operator.truediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.itruediv: operator.truediv,
}


class UnknownNumberValue(Value):
    """`number`: a torch.SymInt, SymFloat or SymBool over symbols of this capture."""

    __slots__ = ("number",)

    def __init__(self, number: Any) -> None:
        super().__init__(None)
        self.number = number

    def python_type(self, context: CaptureContext) -> type:
        return _KINDS[type(self.number)]

    def describe(self, context: CaptureContext) -> str:
        return f"a number that is known when the graph runs ({self.number})"

    def key(self, context: CaptureContext) -> Any:
        raise unsupported("data-dependent-value", f"{self.describe(context)} as a key, or a member of a set")

    def truth(self, context: CaptureContext) -> bool:
        number = self.condition()
        known = number if type(number) is bool else number.node.environment.known(number.node.value)
        if known is None:
            raise unsupported(
                "data-dependent-jump",
                f"a branch on {self.describe(context)}",
                "use torch.where, or move the decision out of the compiled function",
            )
        return known

    def condition(self) -> Any:
        """What it is as a truth: a torch.SymBool, or a bool."""
        return self.number if type(self.number) is torch.SymBool else self.number != 0

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        """The graph gives it as a tensor, which is read behind it."""
        return CallRecipe(
            ConstantRecipe(torch.Tensor.item),
            [reconstructor.recipe(reconstructor.context.recorder.unknown.tensor(self))],
        )


def is_symbolic(number: Any) -> bool:
    return type(number) in _KINDS and isinstance(number.node, SymbolicNode)


def number_value(number: Any) -> Value:
    """A symbolic number as a value: a constant where it is known."""
    node = number.node
    value = node.environment.simplified(node.value) if isinstance(node.value, Expr) else node.value
    known = value.constant if isinstance(value, Expr) else value if isinstance(value, _PLAIN) else None
    return UnknownNumberValue(number) if known is None else ConstantValue(known)


def computed_from_unknown(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    """`function(*args)`, where an argument is a number that only the run can tell and the others are numbers too."""
    if not any(type(arg) is UnknownNumberValue for arg in args):
        return None
    if function is divmod and len(args) == 2:
        parts = [computed_from_unknown(context, one, args) for one in (operator.floordiv, operator.mod)]
        return None if parts[0] is None or parts[1] is None else context.pair(parts[0], parts[1])
    divides = function in _DIVISIONS
    target = _DIVISIONS[function] if divides else _FUNCTIONS.get(function)
    if target is None or not all(_is_number(context, arg) for arg in args):
        return None
    if len(args) != (1 if function in _OF_ONE else 2):  # round() to digits, or what raises
        return None
    numbers = [arg.number if type(arg) is UnknownNumberValue else arg.constant() for arg in args]
    if any(type(number) is torch.SymBool for number in numbers):
        return None
    if function in (min, max) and len({arg.python_type(context) for arg in args}) > 1:
        raise unsupported("data-dependent-value", "min or max of a float and an int", "write the int as a float")
    if divides and not _is_not_zero(numbers[1]):
        raise unsupported("data-dependent-value", "a division by a number that is known when the graph runs")
    if function in _OF_WHOLE and any(type(number) not in (torch.SymInt, int) for number in numbers):
        return None
    result = target(*numbers)
    if result is None:
        return None
    return number_value(result) if is_symbolic(result) else ConstantValue(result)


def _is_not_zero(number: Any) -> bool:
    """Relied on, unless it is known."""
    return number != 0 if type(number) in _PLAIN else bool(number != 0)


def _is_number(context: CaptureContext, value: Value) -> bool:
    if type(value) is UnknownNumberValue:
        return True
    return isinstance(value, ConstantValue) and (is_changing(value) or value.python_type(context) in _PLAIN)
