"""Python's functions of numbers with a symbolic number among the arguments: a new expression, or a decision.

Python itself computes inputs and random numbers, ahead of the graph. Sizes are expressions over symbols. Floats read
from tensors are tensors of float64; where Python raises and tensors do not, the graph checks the operands.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from stator.dynamo.bytecode.arithmetic import ARITHMETIC
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource
from stator.dynamo.host.naming import safe_repr
from stator.dynamo.host.numpy_boundary import (
    is_numpy_bool,
    is_numpy_number,
    is_pure_function,
    plain_converter,
)
from stator.prims.operators.checks import ASSUMPTION

from .base import CaptureContext, Value, unsupported
from .constants import ConstantValue
from .optimizer_code import in_optimizers
from .symbolic_numbers import (
    NUMBERS,
    FromInput,
    FromSizes,
    FromTensor,
    SymbolicNumber,
    example_of,
    is_open,
    is_symbolic,
    known_truth,
    number_value,
)
from .tensors.tensor import TensorValue

_COMPARISONS = frozenset((operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge))
_ORDER = _COMPARISONS - {operator.eq, operator.ne}  # the answer leaves many values
_OPERATORS = frozenset((*ARITHMETIC.values(), *_COMPARISONS))
_EXACT = 2**53  # whole numbers up to here are floats


def computed(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    """`function(*args)` with a symbolic number among the arguments; None for functions unknown here."""
    origins = {type(arg.origin) for arg in args if is_open(arg)}
    if not origins:
        return None
    if origins == {FromInput}:
        symbols = function in _ORDER and all(_may_be_size(context, arg) for arg in args)
        return (_of_sizes if symbols else _of_inputs)(context, function, args)
    if function is divmod and len(args) == 2:
        parts = [computed(context, one, args) for one in (operator.floordiv, operator.mod)]
        return None if None in parts else context.tuple_of(parts)  # type: ignore[arg-type]
    if not all(map(_is_number, args)):
        return None
    if any(is_open(arg) and arg.kind is bool for arg in args):
        return _of_truths(context, function, args)
    if FromTensor in origins:
        return _of_tensors(context, function, args)
    if any(map(context.recorder.numbers.is_random, args)):
        return _of_random_numbers(context, function, args)
    made = _of_sizes(context, function, args)
    if made is None:
        inputs = [context.recorder.numbers.as_input(arg) if is_open(arg) else arg for arg in args]
        made = None if None in inputs else _of_inputs(context, function, inputs)
    return made


def _is_number(value: Value) -> bool:
    return type(value) is SymbolicNumber or (isinstance(value, ConstantValue) and type(value.value) in NUMBERS)


def _may_be_size(context: CaptureContext, value: Value) -> bool:
    """Whether this is an int that a symbol may stand for, so that answers about it become facts about sizes."""
    if type(value) is not SymbolicNumber:
        return isinstance(value, ConstantValue) and type(value.value) is int
    origin = value.origin
    if type(origin) is not FromInput or origin.unsteady or origin.fixed:
        return False
    return type(origin.example) is int and context.recorder.numbers.may_be_symbol(origin)


# ---- inputs ----

_DEEPEST = 16  # operations between a number and what it was computed from
# Pure functions of numbers. True: for numbers of one type, the result always has that type.
_OF_INPUTS: dict[Callable[..., Any], bool] = {
    **dict.fromkeys((operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs, float), True),
    **dict.fromkeys((operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.not_), False),
    **dict.fromkeys((operator.and_, operator.or_, operator.xor), True),
    **dict.fromkeys((int, round, min, max, bool, operator.rshift, *_COMPARISONS), False),
    **dict.fromkeys((math.gcd, math.lcm, math.isqrt), False),
    **dict.fromkeys((math.sqrt, math.exp, math.log, math.log2, math.log10, math.pow), False),
    **dict.fromkeys((math.sin, math.cos, math.tanh), False),
    **dict.fromkeys((math.floor, math.ceil, math.isnan, math.isinf, math.isfinite, math.fabs), False),
}


def _of_inputs(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    """A number that each call computes anew, or a bool that a guard holds."""
    if not all(isinstance(arg, (ConstantValue, SymbolicNumber)) for arg in args):
        return None
    numbers: list[Any] = args
    examples = [example_of(one) for one in numbers]
    if function in _OPERATORS and None in examples:
        # the result for None and a number, mostly a TypeError, depends on the number's type alone
        return ConstantValue(context.run_real(function, tuple(examples)))
    is_of_numpy = is_pure_function(function) or plain_converter(function) is not None
    closed = _OF_INPUTS.get(function, False if is_of_numpy else None)
    if closed is None or max(_input(one).depth for one in numbers if is_open(one)) >= _DEEPEST:
        return None
    if not all(type(one) in NUMBERS or is_numpy_number(one) for one in examples):
        return None
    # 1, 1.0 and True are equal in Python, and 0.0 equals -0.0: the key holds the repr
    known = (
        id(one) if is_open(one) else (type(it), safe_repr(it), it) for one, it in zip(numbers, examples, strict=True)
    )
    key = (function, *known)
    if key not in context.numbers:
        found = _computed_ahead(context, function, numbers, examples, closed)
        if found is None:
            return None
        context.numbers[key] = found
    return context.numbers[key]


def _input(number: SymbolicNumber) -> FromInput:
    assert type(number.origin) is FromInput
    return number.origin


def _computed_ahead(
    context: CaptureContext, function: Any, numbers: list[Any], examples: list[Any], closed: bool
) -> Value | None:
    try:
        result = function(*examples)
    except (ArithmeticError, ValueError, TypeError):
        return None  # the program's exception: the call that follows raises it
    sources = tuple(
        _input(one).source if is_open(one) else ConstantSource(safe_repr(it), it)
        for one, it in zip(numbers, examples, strict=True)
    )
    source = CallSource(function, sources)
    if is_numpy_bool(result):
        context.guard(CallSource(bool, (source,)), GuardKind.EQUALS, bool(result))
        return ConstantValue(result)
    if type(result) is bool:
        context.guard(source, GuardKind.EQUALS, result)
        return ConstantValue(result)
    if type(result) not in NUMBERS and not is_numpy_number(result):
        return None
    to_float = function is float or len({type(example) for example in examples}) > 1
    if not closed or to_float:  # an int may be too large for a float
        context.guard(source, GuardKind.TYPE, type(result))
    origins = [_input(one) for one in numbers if is_open(one)]
    depth, unsteady = 1 + max(one.depth for one in origins), any(one.unsteady for one in origins)
    return SymbolicNumber(FromInput(context, source, result, depth, unsteady))


# ---- sizes, and whole numbers that are read from tensors ----


def _power(base: Any, exponent: Any) -> Any:
    """A small constant power; None for any other."""
    small = type(exponent) is int and 0 <= exponent <= _MOST_FACTORS
    return math.prod([base] * exponent) if small else None


def _magnitude(number: Any) -> Any:
    return torch.sym_max(number, -number)


_MOST_FACTORS = 4
_OF_INTS: dict[Any, Any] = {
    abs: _magnitude,
    operator.abs: _magnitude,
    operator.pow: _power,
    round: operator.pos,
    math.trunc: operator.pos,
}
_OF_SYMBOLS: dict[Any, Any] = {
    **_OF_INTS,
    **{one: one for one in (operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.index)},
    **{one: one for one in (operator.floordiv, operator.mod, operator.truediv, math.floor, math.ceil, *_COMPARISONS)},
    min: torch.sym_min,
    max: torch.sym_max,
    int: torch.sym_int,
    float: torch.sym_float,
    **{one: one for one in (torch.sym_min, torch.sym_max, torch.sym_int, torch.sym_float)},
}
_DIVISIONS = frozenset((operator.floordiv, operator.mod, operator.truediv))  # raise where the divisor is zero
_OF_ONE: frozenset[Any] = frozenset(
    [
        *(operator.neg, operator.pos, operator.index, operator.abs, abs, round),
        *(math.floor, math.ceil, math.trunc, int, float, torch.sym_int, torch.sym_float),
    ]
)


def _of_sizes(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    target = _OF_SYMBOLS.get(function)
    if target is None or len(args) != (1 if function in _OF_ONE else 2):  # round() to digits, or an error
        return None
    numbers = [_over_symbols(context, arg) for arg in args]
    if function in _CHOICES and len({arg.python_type(context) for arg in args}) > 1:
        if any(context.recorder.numbers.as_input(arg) is None for arg in args if is_open(arg)):
            raise unsupported("data-dependent-value", "min or max of a float and an int", "write the int as a float")
        return None
    if target in _DIVISIONS and not bool(numbers[1] != 0):  # a condition of the graph, unless the divisor is known
        raise unsupported("data-dependent-value", "a division by a number that is known when the graph runs")
    if function in _OF_INTS and any(type(number) not in (torch.SymInt, int) for number in numbers):
        return None
    result = target(*numbers)
    if result is None:
        return None
    return number_value(result) if is_symbolic(result) else ConstantValue(result)


def _over_symbols(context: CaptureContext, value: Value) -> Any:
    if not is_open(value):
        return value.constant()
    origin = value.origin
    return origin.number if type(origin) is FromSizes else context.recorder.numbers.symbol_of(value)


# Functions of finite floats that never raise
_OF_RANDOM_NUMBERS = frozenset((operator.add, operator.sub, operator.mul, operator.neg, float, *_COMPARISONS))


def _of_random_numbers(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    """Sums, products and comparisons with random floats, which code ahead of the graph computes."""
    if function not in _OF_RANDOM_NUMBERS or any(_is_inexact(arg) for arg in args):
        return None
    numbers = context.recorder.numbers
    result = _OF_SYMBOLS[function](*[_over_symbols(context, numbers.beside_random(arg)) for arg in args])
    if function in _COMPARISONS:
        known = known_truth(result)
        return None if known is None else ConstantValue(known)
    made = number_value(result)
    return made if numbers.is_random(made) else _of_tensors(context, function, args)


def _is_inexact(value: Value) -> bool:
    """Whether this is an int that a float does not represent."""
    return isinstance(value, ConstantValue) and type(value.value) is int and abs(value.value) > _EXACT


# ---- floats and truths in tensors ----


# the result is one of the arguments: with an int among them its type would depend on data
_CHOICES: dict[Any, Any] = {max: operator.gt, min: operator.lt}
_OF_TENSOR: dict[Any, Any] = {
    **{abs: torch.abs, operator.abs: torch.abs, operator.neg: operator.neg},
    **{math.sqrt: torch.sqrt, math.exp: torch.exp, math.log: torch.log},
}
_OF_TWO_TENSORS: dict[Any, Any] = {
    **{one: one for one in (operator.add, operator.sub, operator.mul, *_DIVISIONS, operator.pow, *_COMPARISONS)},
    math.pow: operator.pow,
}
# Functions of one float, and the bounds beyond which they raise or give infinity.
_DOMAINS: dict[Any, tuple[Any, float]] = {
    math.sqrt: (operator.ge, 0.0),
    math.exp: (operator.lt, 709.0),
    math.log: (operator.gt, 0.0),
}
# Functions with whole results, and the tensor method of each.
_ROUNDINGS: dict[Any, str] = {int: "trunc", math.trunc: "trunc", math.floor: "floor", math.ceil: "ceil", round: "round"}
_MOST_WHOLE = 2.0**62
_OF_BITS = frozenset((operator.and_, operator.or_, operator.xor))
_WITH_NUMBERS: tuple[dict[Any, Any], ...] = (_OF_SYMBOLS, _OF_TENSOR, _OF_TWO_TENSORS, _ROUNDINGS)


def _of_tensors(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    if len(args) == 1:
        if function is float:
            return args[0]
        if function is bool:
            return computed(context, operator.ne, [args[0], ConstantValue(0)])
        if function in _ROUNDINGS:
            return _rounded(context, _ROUNDINGS[function], args[0])
    elif function in _CHOICES and len(args) == 2:
        return _chosen(context, function, args)
    target = (_OF_TENSOR if len(args) == 1 else _OF_TWO_TENSORS).get(function)
    if target is None or (function in _COMPARISONS and not all(map(_is_float_in_comparisons, args))):
        return None
    _check_operands(context, function, args)
    return _in_tensor(context, target, args)


def _of_truths(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    """Compute with bools as with ints, as Python does; the operators of bits have bools as results."""
    kinds = {arg.python_type(context) for arg in args}
    if function is bool:
        return args[0]
    if function in _OF_BITS and kinds == {bool}:
        made = context.call(context.known(function), [_operand(context, arg) for arg in args], {})
        return SymbolicNumber(FromTensor(made, bool))
    if function in _CHOICES or not any(function in table for table in _WITH_NUMBERS):
        return None
    as_float = float in kinds or function in (float, torch.sym_float) or function in _DOMAINS
    return computed(context, function, [_truth_as_number(context, arg, as_float) for arg in args])


def _truth_as_number(context: CaptureContext, value: Value, as_float: bool) -> Value:
    """A bool as the float or int that equals it; other numbers unchanged."""
    if value.python_type(context) is not bool:
        return value
    if not is_open(value):
        return ConstantValue(int(value.constant()))
    dtype = torch.float64 if as_float else torch.int64
    held = context.record_method("to", [_operand(context, value), ConstantValue(dtype)], {})
    return SymbolicNumber(FromTensor(held)) if as_float else context.call_tensor_method(held, "item", [], {})


def _is_float_in_comparisons(value: Value) -> bool:
    """Python compares a float and an int exactly, tensors after converting the int."""
    if isinstance(value, ConstantValue):
        return abs(value.value) <= _EXACT or type(value.value) is float
    return type(value) is SymbolicNumber and value.kind is float


def _in_tensor(context: CaptureContext, target: Any, args: list[Value]) -> SymbolicNumber:
    made = context.call(context.known(target), [_operand(context, arg) for arg in args], {})
    return SymbolicNumber(FromTensor(made, bool if target in _COMPARISONS else float))


def _operand(context: CaptureContext, value: Value) -> Value:
    """A number as torch takes it beside a tensor of float64."""
    return context.recorder.numbers.tensor(value) if is_open(value) else value


def _check_operands(context: CaptureContext, function: Any, args: list[Value]) -> None:
    """Python raises where tensors give an infinity, and has complex powers where tensors give NaN. The graph fails
    there, and the frame runs eagerly. Optimizers need no check: they compute with step counts of at least one."""
    if in_optimizers(context):
        return
    if function in _DOMAINS:
        _rely_on(context, args[0], *_DOMAINS[function])
    elif function in _DIVISIONS:
        _rely_on(context, args[1], operator.ne)
    elif function in (operator.pow, math.pow):
        base, exponent = args
        power_of = None if is_open(exponent) else exponent.constant()
        if power_of is None:
            _rely_on(context, base, operator.gt)
        elif power_of % 1 != 0:
            _rely_on(context, base, operator.ge if power_of > 0 else operator.gt)
        elif power_of < 0:
            _rely_on(context, base, operator.ne)


def _rely_on(
    context: CaptureContext, number: Value, relation: Any, bound: float = 0, kind: str = "RuntimeError"
) -> None:
    """Check in the graph that the relation between the number and the bound holds."""
    holds = context.call(context.known(relation), [number, ConstantValue(bound)], {})
    if may_be_checked(context, holds):
        context.recorder.numbers.rely_on(holds, kind=kind)
    elif not context.truth(holds):
        raise unsupported("data-dependent-value", "an operation that always raises or gives a complex number")


def may_be_checked(context: CaptureContext, condition: Value) -> bool:
    """Whether the graph can check this: a single number of the captured call that capture does not know."""
    if isinstance(condition, TensorValue):
        return condition.is_number_of_the_run(context)
    if type(condition) is not SymbolicNumber or not context.in_the_call:
        return False
    if type(condition.origin) is FromSizes:
        return known_truth(condition.condition()) is None and not context.recorder.numbers.is_random(condition)
    return type(condition.origin) is FromTensor


def _rounded(context: CaptureContext, method: str, number: Value) -> Value:
    """Round in the graph and read the int from a tensor. Infinity and NaN raise in Python."""
    _rely_on(context, number, operator.gt, -_MOST_WHOLE, ASSUMPTION)
    _rely_on(context, number, operator.lt, _MOST_WHOLE, ASSUMPTION)
    held = context.record_method(method, [_operand(context, number)], {})
    whole = context.record_method("to", [held, ConstantValue(torch.int64)], {})
    return context.call_tensor_method(whole, "item", [], {})  # type: ignore[arg-type]


def _chosen(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    """max or min of two floats. `max(x.item(), 1)`, which keeps a divisor from being zero, relies on the float being
    the larger number."""
    floats = [arg for arg in args if arg.python_type(context) is float]
    if len(floats) == 2:
        second, first = _operand(context, args[1]), _operand(context, args[0])
        better = context.call(context.known(_CHOICES[function]), [second, first], {})
        return SymbolicNumber(FromTensor(context.record_function(torch.where, [better, second, first], {})))
    least = next(arg for arg in args if arg not in floats)
    if function is not max or not floats or not isinstance(least, ConstantValue) or not 0 <= least.value <= 1:
        raise unsupported("data-dependent-value", "min or max of a float and an int", "write the int as a float")
    _rely_on(context, floats[0], operator.gt, least.value, ASSUMPTION)
    return floats[0]
