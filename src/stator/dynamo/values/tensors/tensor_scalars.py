"""Python floats that are read from tensors inside of the graph, or drawn ahead of it, and what is computed from them:
nodes of the graph.

Nobody knows their values while capturing, so they are good for one thing: as numbers that operators on tensors take.
"""

from __future__ import annotations

import math
import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from stator.dynamo.interpreter.rng_prediction import compared
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Recipe
from stator.dynamo.values.base import Value, cannot_rebuild, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.graph.fake import number_stand_ins
from stator.graph.fake.number_stand_ins import larger, power, smaller
from stator.prims.operators.checks import ASSUMPTION

from .checked_numbers import check
from .numbers import is_changing
from .tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext
    from stator.dynamo.interpreter.reconstruction import Reconstructor

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
    math.pow: power,
    operator.floordiv: number_stand_ins.floored_quotient,
    operator.mod: number_stand_ins.remainder,
    max: larger,
    min: smaller,
    abs: number_stand_ins.magnitude,
    operator.abs: number_stand_ins.magnitude,
    math.fabs: number_stand_ins.magnitude,
    math.sqrt: number_stand_ins.square_root,
    math.exp: number_stand_ins.exponential,
    math.log: number_stand_ins.logarithm,
    math.log2: number_stand_ins.logarithm_of_two,
    math.log10: number_stand_ins.logarithm_of_ten,
    math.log1p: number_stand_ins.logarithm_of_one_more,
    math.tanh: number_stand_ins.hyperbolic_tangent,
    math.sin: number_stand_ins.sine,
    math.cos: number_stand_ins.cosine,
    math.atan: number_stand_ins.arc_tangent,
}
# of one float: where they raise or give infinity is beyond these bounds
_DOMAINS: dict[Any, tuple[tuple[Any, float], ...]] = {
    math.sqrt: ((operator.ge, 0.0),),
    math.exp: ((operator.lt, 709.0),),
    math.log: ((operator.gt, 0.0),),
    math.log2: ((operator.gt, 0.0),),
    math.log10: ((operator.gt, 0.0),),
    math.log1p: ((operator.gt, -1.0),),
    math.sin: ((operator.gt, -1e300), (operator.lt, 1e300)),
    math.cos: ((operator.gt, -1e300), (operator.lt, 1e300)),
}
_OF_TWO = frozenset(
    (
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
        *(operator.pow, math.pow, max, min),
    )
)
# that give whole numbers: the operator on tensors behind each
_ROUNDINGS: dict[Any, str] = {int: "trunc", math.trunc: "trunc", math.floor: "floor", math.ceil: "ceil", round: "round"}
_MOST_WHOLE = 2.0**62


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

    def python_type(self, context: CaptureContext) -> type:
        return float

    def describe(self, context: CaptureContext) -> str:
        return "a number that is read from a tensor" if self.origin is None else "a random number"

    def truth(self, context: CaptureContext) -> bool:
        found = _decided(context, operator.ne, [self, ConstantValue(0)])
        if found is None:
            raise unsupported("data-dependent-jump", f"a branch on {self.describe(context)}")
        return found

    def can_leave(self, context: CaptureContext) -> bool:
        """Whether code behind the graph can have it."""
        return self.origin is not None or self.node.graph is context.recorder.root

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.origin is not None:
            return self.origin
        recorder = reconstructor.context.recorder
        if not self.can_leave(reconstructor.context):
            raise cannot_rebuild("a number that was read from a tensor inside of a part of the graph")
        return CallRecipe(
            ConstantRecipe(torch.Tensor.item), [reconstructor.recipe(recorder.unknown.scalar(self.node, torch.float64))]
        )


def computed(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    """`function(*args)` in the graph, where an argument is a number read there and the others are numbers too."""
    if not any(type(arg) is ReadNumberValue for arg in args) or len(args) > 2:
        return None
    if function is float:
        return args[0]
    if function in _COMPARISONS:
        found = _decided(context, function, args) if len(args) == 2 else None
        if found is not None:
            return ConstantValue(found)
        raise unsupported(
            "data-dependent-value", f"comparing {args[0].describe(context)} and {args[1].describe(context)}"
        )
    if function in _ROUNDINGS and len(args) == 1 and args[0].origin is None:  # type: ignore[attr-defined]
        return _rounded(context, _ROUNDINGS[function], args[0])
    target = _FUNCTIONS.get(function)
    if (function in _OF_TWO) is not (len(args) == 2):  # math.log to another base
        return None
    if function is max and _is_least(context, args):
        return _above_least(context, args)
    if function in _CHOICES and any(arg.python_type(context) is not float for arg in args):
        raise unsupported("data-dependent-value", "min or max of a float and an int", "write the int as a float")
    if target is None or not all(type(arg) is ReadNumberValue or _is_number(context, arg) for arg in args):
        return None
    if not any(type(arg) is ReadNumberValue and arg.origin is not None for arg in args):
        _check_operands(context, function, args)
        return ReadNumberValue(context.recorder.number_call(target, args))
    parts = [_origin(arg) for arg in args]
    if function not in _NEVER_RAISING or any(part is None for part in parts):
        return None
    origin = CallRecipe(ConstantRecipe(function), parts)  # type: ignore[arg-type]
    return ReadNumberValue(context.recorder.number_call(target, args), origin)


def _decided(context: CaptureContext, function: Any, args: list[Value]) -> bool | None:
    """What comparing drawn numbers gives, which their generators know already."""
    one, other = map(_origin, args)
    if one is None or other is None:
        return None
    found = compared(function, one, other)
    if found is None:
        both = CallRecipe(ConstantRecipe(function), [one, other])
        found = context.random.decided(context, both, context.random.generator_of(context, both), 2)
    return found


_OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def _check_operands(context: CaptureContext, function: Any, args: list[Value]) -> None:
    """Python raises where tensors give an infinity, and has complex powers where they give NaN: the graph fails there,
    and the program goes its own way. Optimizers compute with counts of steps, of which there is one at least."""
    if context.place().filename.startswith(_OPTIMIZERS):
        return
    for relation, bound in _DOMAINS.get(function, ()):
        _rely_on(context, args[0], relation, bound)
    if function in (operator.truediv, operator.floordiv, operator.mod):
        _rely_on(context, args[1], operator.ne)
    elif function in (operator.pow, math.pow):
        base, exponent = args
        power_of = exponent.constant() if isinstance(exponent, ConstantValue) else None
        if power_of is None:
            _rely_on(context, base, operator.gt)
        elif power_of % 1 != 0:
            _rely_on(context, base, operator.ge if power_of > 0 else operator.gt)
        elif power_of < 0:
            _rely_on(context, base, operator.ne)


def _rounded(context: CaptureContext, method: str, number: Value) -> Value:
    """The whole number, which is read from a tensor as others are. Infinity and NaN raise in Python."""
    assert type(number) is ReadNumberValue
    _rely_on(context, number, operator.gt, -_MOST_WHOLE, ASSUMPTION)
    _rely_on(context, number, operator.lt, _MOST_WHOLE, ASSUMPTION)
    held = context.recorder.unknown.scalar(number.node, torch.float64)
    whole = context.record_method("to", [context.record_method(method, [held], {}), ConstantValue(torch.int64)], {})
    return context.call_tensor_method(whole, "item", [], {})  # type: ignore[arg-type]


def _is_least(context: CaptureContext, args: list[Value]) -> bool:
    """Whether one of two is a small int, which is to keep the other from being zero: `max(x.item(), 1)`."""
    kinds = [type(arg) is ReadNumberValue and arg.origin is None for arg in args]
    other = args[kinds.index(False)] if kinds.count(True) == 1 else None
    return isinstance(other, ConstantValue) and other.python_type(context) is int and 0 <= other.constant() <= 1


def _above_least(context: CaptureContext, args: list[Value]) -> Value:
    """Relies on the float being the larger one. Where it is not, the result would be an int."""
    least = next(arg.constant() for arg in args if isinstance(arg, ConstantValue))
    number = next(arg for arg in args if type(arg) is ReadNumberValue)
    _rely_on(context, number, operator.gt, least, ASSUMPTION)
    return number


def _rely_on(
    context: CaptureContext, number: Value, relation: Any, bound: float = 0, kind: str = "RuntimeError"
) -> None:
    """That the relation between the number and the bound holds."""
    if type(number) is not ReadNumberValue:
        if not relation(number.constant(), bound):
            raise unsupported(
                "data-dependent-value", "an operation on numbers that always raises, or gives a complex one"
            )
        return
    if number.node.graph is not context.recorder.graph:
        raise unsupported("data-dependent-value", "a number that is read outside of this part of the graph")
    held = context.recorder.unknown.scalar(number.node, torch.float64)
    condition = context.call(context.known(relation), [held, ConstantValue(bound)], {})
    assert isinstance(condition, TensorValue)
    check(context, condition, kind)


# of finite floats
_NEVER_RAISING = frozenset({operator.add, operator.sub, operator.mul, operator.neg})


def _origin(value: Value) -> Recipe | None:
    """How a number is made outside of the graph."""
    if type(value) is ReadNumberValue:
        return value.origin
    if not isinstance(value, ConstantValue) or is_changing(value):
        return None
    number = value.constant()
    known = type(number) is float or (type(number) in (int, bool) and abs(number) <= _EXACT)
    return ConstantRecipe(number) if known else None


_EXACT = 2**53  # whole numbers up to here are floats


def _is_number(context: CaptureContext, value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.python_type(context) in (int, float)
