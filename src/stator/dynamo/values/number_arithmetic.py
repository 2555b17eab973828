"""Python's functions of numbers with a symbolic number among the arguments: each makes an expression.

Where the result for other inputs has another type, a guard holds the type. Where Python raises for some contents of
tensors and tensors do not, the graph checks the operands.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from stator.dynamo.bytecode.arithmetic import ARITHMETIC
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.host.numpy_boundary import (
    is_numpy_bool,
    is_numpy_number,
    is_pure_function,
    plain_converter,
)
from stator.prims.operators.checks import ASSUMPTION
from stator.shapes.arithmetic import (
    COMPARISONS,
    CONNECTIVES,
    OF_INTS,
    applied,
    as_int,
    is_small_power,
    kind_of_result,
)
from stator.shapes.conditions import Condition, compare, truth_of
from stator.shapes.expr import Expr, as_expr
from stator.shapes.floats import FloatExpr, IntCall, depth_of, float_operation, int_call
from stator.shapes.sym_node import to_expression

from .base import CaptureContext, Value, unsupported
from .constants import ConstantValue
from .optimizer_code import in_optimizers
from .symbolic_numbers import NUMBERS, Origin, SymbolicNumber, example_of, is_open, known_truth
from .tensors.tensor import TensorValue

_OPERATORS = frozenset((*ARITHMETIC.values(), *COMPARISONS))
_EXACT = 2**53  # whole numbers up to here are floats
_DEEPEST = 16  # functions between a number and a symbol
_MOST_WHOLE = 2**62

# torch's functions and Python's that mean the same
_ALIASES: dict[Any, Any] = {
    **{
        torch.sym_min: min,
        torch.sym_max: max,
        torch.sym_int: int,
        torch.sym_float: float,
        torch.sym_not: operator.not_,
    },
    **{operator.abs: abs, operator.truth: bool},
}
_NO_NUMBERS = ("dist", "frexp", "fsum", "modf", "prod", "sumprod")  # take iterables, or give two numbers
# Pure functions of numbers. True: for numbers of one type, the result always has that type.
_PURE: dict[Callable[..., Any], bool] = {
    **dict.fromkeys((operator.add, operator.sub, operator.mul), True),
    **dict.fromkeys((operator.neg, operator.pos, operator.invert, abs, float), True),
    **dict.fromkeys(
        (operator.and_, operator.or_, operator.xor, operator.index, *COMPARISONS, bool, operator.not_), True
    ),
    **dict.fromkeys((operator.truediv, operator.floordiv, operator.mod), True),
    **dict.fromkeys((operator.pow, operator.lshift, operator.rshift, int, round, min, max), False),
    **dict.fromkeys((int.bit_length, int.bit_count, float.is_integer), True),
    **dict.fromkeys(
        (pow, *(one for name, one in vars(math).items() if callable(one) and name not in _NO_NUMBERS)), False
    ),
}
_ROUNDINGS: dict[Any, str] = {int: "trunc", math.trunc: "trunc", math.floor: "floor", math.ceil: "ceil", round: "round"}
_DIVISIONS = frozenset((operator.floordiv, operator.mod, operator.truediv))  # raise where the divisor is zero
_POWERS = frozenset((operator.pow, math.pow))
_CHOICES = frozenset((min, max))
_OF_ONE = frozenset(
    [
        *(operator.neg, operator.pos, operator.index, operator.not_, abs, bool, float),
        *(math.sqrt, math.exp, math.log, *_ROUNDINGS),
    ]
)
_OF_FLOATS = frozenset((math.pow, math.sqrt, math.exp, math.log))
# Functions that the graph computes, too, if the number is known only then
_IN_GRAPHS = frozenset(
    (*OF_INTS, *_OF_FLOATS, operator.pow, *COMPARISONS, *_ROUNDINGS, *CONNECTIVES, operator.xor, bool, operator.not_)
)


def computed(context: CaptureContext, function: Any, args: list[Value]) -> Value | None:
    """`function(*args)` with a symbolic number among the arguments; None for functions unknown here."""
    if not any(map(is_open, args)):
        return None
    if function is divmod and len(args) == 2:
        parts = [computed(context, one, args) for one in (operator.floordiv, operator.mod)]
        return None if None in parts else context.tuple_of(parts)  # type: ignore[arg-type]
    if not all(isinstance(arg, (ConstantValue, SymbolicNumber)) for arg in args):
        return None
    numbers: list[Any] = args
    function = operator.pow if function is pow and len(args) == 2 else _ALIASES.get(function, function)
    if all(one.is_constant() for one in numbers):
        return _of_known(context, function, numbers)
    if not all(one.kind in NUMBERS if is_open(one) else type(one.constant()) in NUMBERS for one in numbers):
        return None
    return _of_unknown(context, function, numbers)


def _operand(value: Any) -> Any:
    return value.expression if is_open(value) else value.constant()


# ---- numbers with a value in this call ----


def _of_known(context: CaptureContext, function: Any, args: list[Any]) -> Value | None:
    examples = [example_of(one) for one in args]
    if function in _OPERATORS and None in examples:
        # the result for None and a number, mostly a TypeError, depends on the number's type alone
        return ConstantValue(context.run_real(function, tuple(examples)))
    is_of_numpy = is_pure_function(function) or plain_converter(function) is not None
    if not (function in _PURE or is_of_numpy) or max(map(depth_of, map(_operand, args))) >= _DEEPEST:
        return None
    if not all(type(one) in NUMBERS or is_numpy_number(one) for one in examples):
        return None
    try:
        result = function(*examples)
    except (ArithmeticError, ValueError, TypeError):
        return None  # the program's exception: the call that follows raises it
    numbers, operands = context.recorder.numbers, [_operand(one) for one in args]
    if is_numpy_bool(result):
        known_truth(numbers.environment, truth_of(int_call(bool, FloatExpr(function, tuple(operands)))))
        return ConstantValue(result)
    kind = type(result)
    if kind not in NUMBERS and not is_numpy_number(result):
        return None
    plain = all(type(one) in NUMBERS for one in examples)
    if plain and function in _DIVISIONS:
        known_truth(numbers.environment, compare("!=", operands[1], 0))
    made = applied(function, operands, kind) if plain else _of_numpy(function, operands, kind)
    expression = numbers.environment.without_floats(made)
    if not plain or not _keeps_its_type(function, set(map(type, examples)), expression, numbers.is_size(expression)):
        context.guard(numbers.source(expression), GuardKind.TYPE, kind)
    return numbers.value(expression, kind)  # type: ignore[no-any-return]


def _of_numpy(function: Any, operands: list[Any], kind: type) -> Any:
    if kind in (int, bool):
        return int_call(function, *operands) if kind is int else truth_of(int_call(function, *operands))
    return FloatExpr(function, tuple(operands))


def _keeps_its_type(function: Any, kinds: set[type], expression: Any, is_size: bool) -> bool:
    """Whether the function gives numbers of one type for all inputs, and never raises."""
    if hasattr(expression, "holds") or (isinstance(expression, Expr) and not isinstance(expression, IntCall)):
        return True
    if is_size and function in _ROUNDINGS:  # of a finite number
        return True
    too_large = isinstance(expression, FloatExpr) and kinds != {float} and not is_size  # an int, for a float
    return _PURE.get(function, False) and (is_size or len(kinds) == 1) and not too_large


# ---- numbers that only the running graph knows ----


def _of_unknown(context: CaptureContext, function: Any, args: list[Any]) -> Value | None:
    kinds = {arg.python_type(context) for arg in args}
    numbers = context.recorder.numbers
    operands = [_operand(one) for one in args]
    if float not in kinds:  # the graph computes with ints of inputs as with sizes
        operands = [to_expression(numbers.size_of(one)) if _is_known_int(one) else _operand(one) for one in args]
    if not _is_in_graphs(function, kinds, operands):
        return None
    function = operator.pow if function is math.pow else function
    if function in _CHOICES and len(kinds) > 1:
        return _chosen(context, function, args)
    mixed = float in kinds and len(kinds) > 1
    if function in COMPARISONS and mixed and not all(_is_exact(context, one) for one in operands):
        return None
    if function in _ROUNDINGS and float in kinds:
        return _rounded(context, function, args)
    _check_operands(context, function, operands)
    kind = kind_of_result(function, kinds)
    expression = applied(function, operands, kind)
    if function in _POWERS and kind is float and not in_optimizers(context):  # Python raises where it overflows
        rely_on(context, compare("!=", float_operation(abs, expression), math.inf))
    if depth_of(expression) > _DEEPEST:
        return numbers.of_tensor(numbers.tensor(numbers.value(expression, kind)))  # type: ignore[no-any-return]
    return numbers.value(expression, kind)  # type: ignore[no-any-return]


def _is_known_int(number: Any) -> bool:
    return is_open(number) and number.is_known and number.kind is int


def _is_in_graphs(function: Any, kinds: set[type], operands: list[Any]) -> bool:
    """Whether the graph computes the function of numbers of these types."""
    if function not in _IN_GRAPHS or len(operands) != (1 if function in _OF_ONE else 2):
        return False  # round() to digits, or an error
    if float in kinds and any(type(one) is int and abs(one) > _EXACT for one in operands):
        return False  # perhaps too large for a float
    if function in CONNECTIVES or function is operator.xor:
        return kinds == {bool}
    if function is operator.pow and float not in kinds:
        return is_small_power(operands[1])
    return bool not in kinds if function in _CHOICES else float in kinds or function not in _OF_FLOATS


def _is_exact(context: CaptureContext, operand: Any) -> bool:
    """Whether a float represents the number: Python compares a float and an int exactly, tensors after converting the
    int."""
    if isinstance(operand, FloatExpr | float):
        return True
    low, high = as_expr(as_int(operand)).bounds(context.recorder.numbers.environment.ranges)
    return low >= -_EXACT and high <= _EXACT


def _check_operands(context: CaptureContext, function: Any, operands: list[Any]) -> None:
    """Python raises where tensors give an infinity, and has complex powers where tensors give NaN. The graph fails
    there, and the frame runs eagerly. Optimizers need no check: they compute with step counts of at least one."""
    if in_optimizers(context):
        return
    for relation, operand, bound in _domain(function, operands):
        rely_on(context, compare(relation, operand, bound))


def _domain(function: Any, operands: list[Any]) -> list[tuple[str, Any, float]]:
    """Where the function neither raises nor has a complex result."""
    if function in _DIVISIONS:
        return [("!=", operands[1], 0)]
    if function in _DOMAINS:
        relation, bound = _DOMAINS[function]
        return [(relation, operands[0], bound)]
    if function not in _POWERS:
        return []
    base, exponent = operands
    if not isinstance(exponent, int | float):
        return [(">", base, 0)]
    if exponent % 1 != 0:
        return [(">=" if exponent > 0 else ">", base, 0)]
    return [("!=", base, 0)] if exponent < 0 else []


_DOMAINS: dict[Any, tuple[str, float]] = {math.sqrt: (">=", 0.0), math.exp: ("<", 709.0), math.log: (">", 0.0)}


def rely_on(context: CaptureContext, condition: Condition, kind: str = "RuntimeError") -> None:
    """Let the graph check a condition."""
    numbers = context.recorder.numbers
    known = known_truth(numbers.environment, condition)
    if known is None and numbers.may_be_checked(condition):
        numbers.expect(condition, kind)
    elif not known:
        raise unsupported("data-dependent-value", "an operation that raises or gives a complex number")


def may_be_checked(context: CaptureContext, condition: Value) -> bool:
    """Whether the graph can check this: a single number of the captured call that capture does not know."""
    if isinstance(condition, TensorValue):
        return condition.is_number_of_the_run(context)
    if type(condition) is not SymbolicNumber:
        return False
    numbers = context.recorder.numbers
    known = known_truth(numbers.environment, condition.condition)
    return known is None and numbers.may_be_checked(condition.condition)  # type: ignore[no-any-return]


def _rounded(context: CaptureContext, function: Any, args: list[Any]) -> Value:
    """An expression of sizes, or an int that is read from a rounded tensor. Infinity and NaN raise in Python."""
    numbers, operand = context.recorder.numbers, _operand(args[0])
    origins = {numbers.origin(symbol) for symbol in operand.symbols}
    if function is not round and origins <= {Origin.INPUT, Origin.SIZE}:
        whole = numbers.environment.without_floats(int_call(function, operand))
        return numbers.value(whole, int)  # type: ignore[no-any-return]
    rely_on(context, compare(">", operand, float(-_MOST_WHOLE)), ASSUMPTION)
    rely_on(context, compare("<", operand, float(_MOST_WHOLE)), ASSUMPTION)
    held = context.record_method(_ROUNDINGS[function], [numbers.tensor(args[0])], {})
    whole = context.record_method("to", [held, ConstantValue(torch.int64)], {})
    return context.call_tensor_method(whole, "item", [], {})  # type: ignore[arg-type]


def _chosen(context: CaptureContext, function: Any, args: list[Any]) -> Value:
    """max or min of a float and an int, of which the type depends on data. `max(x.item(), 1)`, which keeps a divisor
    from being zero, relies on the float being the larger number."""
    number = next(arg for arg in args if arg.python_type(context) is float)
    least = next(arg for arg in args if arg is not number)
    if function is not max or not isinstance(least, ConstantValue) or not 0 <= least.value <= 1:
        raise unsupported("data-dependent-value", "min or max of a float and an int", "write the int as a float")
    rely_on(context, compare(">", _operand(number), least.value), ASSUMPTION)
    return number  # type: ignore[no-any-return]
