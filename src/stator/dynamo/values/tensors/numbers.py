"""Python ints and floats that are known to change from call to call: kept apart from their value as long as can be.

What is computed from them is computed again in each call, before the graph. Where the program decides by one, or a
torch function needs to know it, the value (or the decision) is relied on by a guard. Which numbers change is found out
when a guard on one fails: see dynamic_sources.py.
"""

from __future__ import annotations

import collections
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stator.dynamo.bytecode.arithmetic import ARITHMETIC
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource, Source
from stator.dynamo.host.numpy_scalars import is_number, is_pure_function, is_truth, plain_converter, shown
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext
    from stator.dynamo.interpreter.reconstruction import Reconstructor

_DEEPEST = 16  # operations between a number and what it was computed from
_OFTEN = 4  # changes of a number after which the graph rather breaks than rely on its value

_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)

# Pure functions of numbers. Those marked True give, for numbers of the same types, a number of the same type, always.
_FUNCTIONS: dict[Callable[..., Any], bool] = {
    operator.add: True,
    operator.sub: True,
    operator.mul: True,
    operator.neg: True,
    operator.pos: True,
    abs: True,
    float: True,
    **dict.fromkeys(
        (operator.truediv, operator.floordiv, operator.mod, operator.pow, int, round, min, max, bool, operator.not_),
        False,
    ),
    **dict.fromkeys(_COMPARISONS, False),
    **dict.fromkeys(
        (math.sqrt, math.exp, math.log, math.log2, math.log10, math.pow, math.sin, math.cos, math.tanh), False
    ),
    **dict.fromkeys((math.floor, math.ceil, math.isnan, math.isinf, math.isfinite, math.fabs), False),
}
_NUMBERS = (int, float, bool)
_OPERATORS = frozenset((*ARITHMETIC.values(), *_COMPARISONS))


def _is_number(example: Any) -> bool:
    return type(example) in _NUMBERS or is_number(example)


class NumberValue(ConstantValue):
    """A number that is read, or computed from what is read, in each call anew. Looking at `value` fixes it."""

    __slots__ = ("context", "depth", "fixed", "node", "unsteady")

    def __init__(
        self, value: float, source: Source, context: CaptureContext, depth: int = 0, unsteady: bool = False
    ) -> None:
        """`unsteady`: it has changed so often that nothing is to rely on its value."""
        super().__init__(value, source)
        self.context = context
        self.depth = depth
        self.unsteady = unsteady
        self.fixed = False
        self.node: Any = None

    @property
    def value(self) -> Any:
        if not self.fixed:
            if self.unsteady:
                raise unsupported(
                    "changing-number",
                    f"this needs to know {self.source}, a number that is another one in nearly every call",
                    "keep the number in a tensor",
                )
            self.fixed = True
            self.context.guard(self.plain_source, GuardKind.EQUALS, self.plain_example)
        return self._value

    @property
    def example(self) -> Any:
        """What it is now, without relying on it."""
        return self._value

    @property
    def plain_source(self) -> Source:
        """Where it is found as an int or float: a number of NumPy is converted."""
        convert = plain_converter(type(self._value))
        return self.source if convert is None else CallSource(convert, (self.source,))  # type: ignore[return-value,arg-type]

    @property
    def plain_example(self) -> Any:
        """What it is now as an int or float, without relying on it."""
        convert = plain_converter(type(self._value))
        return self._value if convert is None else convert(self._value)

    def python_type(self, context: CaptureContext) -> type:
        return type(self._value)

    def truth(self, context: CaptureContext) -> bool:
        made = derived(context, bool, [self])
        return bool(self.value) if made is None else bool(made.value)  # type: ignore[attr-defined]

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self._value) if self.fixed else Load(self.source)  # type: ignore[arg-type]


def changing_number(context: CaptureContext, value: float, source: Source) -> NumberValue:
    """The value of a number that was read at a place where it changes; its type is relied on."""
    found = context.numbers.get(source)
    if found is None:
        context.guard(source, GuardKind.TYPE, type(value))
        unsteady = context.changing.get(source, 0) >= _OFTEN
        found = context.numbers[source] = NumberValue(value, source, context, unsteady=unsteady)
    return found


def derived(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    """`function(*args)` as a number that is computed anew in each call, or, for a truth value, as a constant that is
    relied on. None when no argument changes, or when this is not known to be pure arithmetic that succeeds."""
    if not any(type(arg) is NumberValue and not arg.fixed for arg in args):
        return None
    if function in _OPERATORS and any(type(arg) is ConstantValue and arg.value is None for arg in args):
        # what comes of None and a number, mostly a TypeError, depends on the number's type alone
        sides = tuple(one.example if type(one) is NumberValue else one.value for one in args)  # type: ignore[attr-defined]
        return ConstantValue(context.run_real(function, sides))
    closed = _FUNCTIONS.get(function, False if _is_of_numpy(function) else None)
    if closed is None or not all(isinstance(arg, ConstantValue) for arg in args):
        return None
    if max(arg.depth for arg in args if type(arg) is NumberValue) >= _DEEPEST:
        return None
    numbers: list[ConstantValue] = list(args)  # type: ignore[arg-type]
    examples = [one.example if type(one) is NumberValue else one.value for one in numbers]
    if not all(map(_is_number, examples)):
        return None
    # 1, 1.0 and True are equal in Python, and 0.0 equals -0.0: a constant is known by how it is written
    known = (id(one) if _is_open(one) else (type(it), shown(it), it) for one, it in zip(numbers, examples, strict=True))
    key = (function, *known)
    found = context.numbers.get(key)
    if found is None:
        found = _derive(context, function, numbers, examples, closed)
        if found is None:
            return None
        context.numbers[key] = found
    return found


def _is_of_numpy(function: Any) -> bool:
    """Whether it is one of NumPy's types of numbers, or a universal function: pure, and of numbers it makes one."""
    return is_pure_function(function) or plain_converter(function) is not None


def _derive(
    context: CaptureContext, function: Any, numbers: list[ConstantValue], examples: list[Any], closed: bool
) -> Value | None:
    try:
        result = function(*examples)
    except (ArithmeticError, ValueError, TypeError):
        return None  # the program's exception, raised when it is computed for real
    if not _is_number(result) and not is_truth(result):
        return None
    sources = tuple(
        one.source if _is_open(one) else ConstantSource(shown(it), it)
        for one, it in zip(numbers, examples, strict=True)
    )
    source = CallSource(function, sources)  # type: ignore[arg-type]
    if is_truth(result):
        context.guard(CallSource(bool, (source,)), GuardKind.EQUALS, bool(result))
        return ConstantValue(result)
    if type(result) is bool:
        context.guard(source, GuardKind.EQUALS, result)
        return ConstantValue(result)
    to_float = function is float or len({type(example) for example in examples}) > 1
    if not closed or to_float:  # an int may be too large for a float
        context.guard(source, GuardKind.TYPE, type(result))
    depth = 1 + max(one.depth for one in numbers if type(one) is NumberValue)
    unsteady = any(one.unsteady for one in numbers if type(one) is NumberValue)
    return NumberValue(result, source, context, depth, unsteady)


def _is_open(value: Value) -> bool:
    return type(value) is NumberValue and not value.fixed


def is_changing(value: Value) -> bool:
    """Whether it is a number whose value is not relied on so far."""
    return _is_open(value)


def is_member(context: CaptureContext, container: Value, number: NumberValue) -> bool | None:
    """Whether a number that changes is in a dictionary, set or sequence of constants, relying on the answer only. None
    where that cannot be told by equality with constants."""
    kind = container.python_type(context)
    if getattr(kind, "__contains__", None) not in _PLAIN_CONTAINS:
        return None
    members = list(context.iterate(container))
    if not all(isinstance(one, ConstantValue) and not _is_open(one) for one in members):
        return None
    values = tuple(one.value for one in members)  # type: ignore[attr-defined]
    if not all(type(value) in _NUMBERS for value in values):
        return None
    found = number.example in values
    source = CallSource(operator.contains, (ConstantSource(shown(values), values), number.source))  # type: ignore[arg-type]
    context.guard(source, GuardKind.EQUALS, found)
    return found


def looked_up(context: CaptureContext, container: Value, number: NumberValue) -> NumberValue | None:
    """The number at a changing place of a table that was there before and is as it was: looked up in each call anew.
    None where it is no number, or no such table."""
    real = getattr(container, "obj", None)
    if real is None or type(real) not in _TABLES or container.source is None:
        return None
    if any(changed is container for _, changed, _ in context.mutations.entries.values()):
        return None
    key = (operator.getitem, container.source, number.source)
    if key not in context.numbers:
        try:
            found = real[number.example]
        except (LookupError, TypeError):
            return None  # the program's exception
        if type(found) not in (int, float) and not is_number(found):
            return None
        made = CallSource(operator.getitem, (container.source, number.source))  # type: ignore[arg-type]
        context.guard(made, GuardKind.TYPE, type(found))
        context.numbers[key] = NumberValue(found, made, context, number.depth + 1, number.unsteady)
    return context.numbers[key]


# looking something up in them changes nothing
_TABLES = (list, tuple, dict, collections.Counter, collections.OrderedDict)


_PLAIN_CONTAINS = tuple(kind.__contains__ for kind in (dict, set, frozenset, list, tuple))
