"""NumPy's universal functions on arrays as operators on tensors, by NumPy's own rules for dtypes.

NumPy itself says in which dtypes a function computes (`resolve_dtypes`); operands are cast to these, so that torch has
nothing to promote; the dtype of the result is checked against NumPy's. Functions for which torch may differ break.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator.dynamo.host.numpy_boundary import BOOL, FOLLOWED, NUMPY_OF, TORCH_OF, is_numpy_number, numpy
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import SequenceValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, example_of, is_open
from stator.dynamo.values.tensors.arrays import ArrayValue, array_of_tensor
from stator.dynamo.values.tensors.tensor import TensorValue


@dataclass(frozen=True, slots=True)
class Elementwise:
    """The operator on tensors for a universal function, and the kinds of dtypes (NumPy's letters) that it is used for.

    takes_numbers: the operator takes Python numbers beside tensors.
    """

    function: Callable[..., Any]
    kinds: str
    takes_numbers: bool = False


# functions of one floating-point array that have one name in NumPy and torch
_FLOAT_FUNCTIONS = """
    sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh exp exp2 expm1 log log2 log10 log1p sqrt
    reciprocal ceil floor trunc isnan isinf isfinite
"""
_UNARY: dict[str, tuple[Any, str]] = {
    **{name: (getattr(torch, name), "f") for name in _FLOAT_FUNCTIONS.split()},
    "rint": (torch.round, "f"),
    "absolute": (torch.abs, "fiu"),
    "negative": (torch.neg, "fiu"),
    "square": (torch.square, "fiu"),
    "sign": (torch.sign, "iu"),  # torch's sign of nan is 0
    **dict.fromkeys(("degrees", "rad2deg"), (torch.rad2deg, "f")),
    **dict.fromkeys(("radians", "deg2rad"), (torch.deg2rad, "f")),
    "logical_not": (torch.logical_not, "b"),
    "invert": (torch.bitwise_not, "biu"),
}
_BINARY: dict[str, tuple[Any, str, bool]] = {
    "add": (operator.add, "fiub", True),
    "subtract": (operator.sub, "fiu", True),
    "multiply": (operator.mul, "fiub", True),
    "divide": (operator.truediv, "f", True),
    "power": (torch.pow, "f", False),
    "maximum": (torch.maximum, "fiub", False),
    "minimum": (torch.minimum, "fiub", False),
    "fmax": (torch.fmax, "fiub", False),
    "fmin": (torch.fmin, "fiub", False),
    "floor_divide": (torch.floor_divide, "fi", True),
    "remainder": (torch.remainder, "fi", True),
    "copysign": (torch.copysign, "f", False),
    "logaddexp": (torch.logaddexp, "f", False),
    "arctan2": (torch.atan2, "f", False),
    "hypot": (torch.hypot, "f", False),
    "equal": (operator.eq, "fiub", True),
    "not_equal": (operator.ne, "fiub", True),
    "less": (operator.lt, "fiub", True),
    "less_equal": (operator.le, "fiub", True),
    "greater": (operator.gt, "fiub", True),
    "greater_equal": (operator.ge, "fiub", True),
    "logical_and": (torch.logical_and, "b", False),
    "logical_or": (torch.logical_or, "b", False),
    "logical_xor": (torch.logical_xor, "b", False),
    "bitwise_and": (torch.bitwise_and, "biu", False),
    "bitwise_or": (torch.bitwise_or, "biu", False),
    "bitwise_xor": (torch.bitwise_xor, "biu", False),
}


def _table() -> dict[Any, Elementwise]:
    if not FOLLOWED:
        return {}
    unary = {getattr(numpy, name): Elementwise(*entry) for name, entry in _UNARY.items()}
    return {**unary, **{getattr(numpy, name): Elementwise(*entry) for name, entry in _BINARY.items()}}


ELEMENTWISE = _table()
_OPERATORS: dict[Any, str] = {
    operator.add: "add",
    operator.sub: "subtract",
    operator.mul: "multiply",
    operator.truediv: "divide",
    operator.floordiv: "floor_divide",
    operator.mod: "remainder",
    operator.pow: "power",
    operator.and_: "bitwise_and",
    operator.or_: "bitwise_or",
    operator.xor: "bitwise_xor",
    operator.eq: "equal",
    operator.ne: "not_equal",
    operator.lt: "less",
    operator.le: "less_equal",
    operator.gt: "greater",
    operator.ge: "greater_equal",
    operator.neg: "negative",
    operator.invert: "invert",
    abs: "absolute",
}


def holds_array(value: Value) -> bool:
    """Whether a value is an array, or a list or tuple that holds one."""
    if isinstance(value, SequenceValue):
        return any(map(holds_array, value.items))
    return isinstance(value, ArrayValue)


def refused(context: CaptureContext, what: str, args: list[Value]) -> Exception:
    described = ", ".join(arg.describe(context) for arg in args)
    return unsupported("call-builtin", f"{what} of {described}", "use torch's function on tensors, or call it outside")


def apply_operator(context: CaptureContext, function: Any, args: list[Value]) -> Value:
    """A Python operator with an array, or with a NumPy number of the graph, as an operand."""
    if any(isinstance(arg, TensorValue) for arg in args):
        return _number_beside_tensor(context, function, args)
    if function is operator.matmul:
        return matrix_product(context, *args)
    name = _OPERATORS.get(function)
    if name is None:
        raise refused(context, f"operator {function.__name__}", args)
    return apply_elementwise(context, getattr(numpy, name), args)


def _number_beside_tensor(context: CaptureContext, function: Any, args: list[Value]) -> Value:
    """A NumPy number beside a tensor. The tensor decides the dtype, unless the number is of a higher kind."""
    number, tensor = sorted(args, key=lambda arg: isinstance(arg, TensorValue))
    if isinstance(number, ArrayValue) and number.scalar and function in _WITH_TENSORS:
        assert isinstance(tensor, TensorValue)
        dtype = tensor.fake.dtype
        kind = "f" if dtype.is_floating_point else "" if dtype.is_complex or dtype is torch.bool else "i"
        if tensor.fake.dim() and number.dtype.kind == kind:
            pair = [arg.tensor if isinstance(arg, ArrayValue) else arg for arg in args]
            return context.record_function(function, pair, {})
    raise refused(context, f"operator {function.__name__}", args)


_WITH_TENSORS = frozenset({operator.add, operator.sub, operator.mul, operator.truediv})


def apply_elementwise(context: CaptureContext, ufunc: Any, args: list[Value]) -> ArrayValue:
    """A universal function. The result is a number if no operand has dimensions."""
    name = ufunc.__name__
    known = ELEMENTWISE.get(ufunc)
    allowed = _LIMITED.get(name)
    if known is None or len(args) != ufunc.nin or (allowed is not None and not allowed(context, args[1])):
        raise refused(context, f"numpy.{name}", args)
    *loop, result = resolved_dtypes(context, ufunc, args)
    if not all(dtype in TORCH_OF and dtype.kind in known.kinds for dtype in loop) or result not in TORCH_OF:
        raise refused(context, f"numpy.{name}", args)
    operands = [cast_operand(context, arg, dtype, known.takes_numbers) for arg, dtype in zip(args, loop, strict=True)]
    tensor = context.record_function(known.function, operands, {})
    check_layout(context, tensor, args, name, each=True)
    return checked(context, tensor, result, name)


def _is_plain_exponent(context: CaptureContext, exponent: Value) -> bool:
    """Whether NumPy computes this power by pow(). For one half, also in an array, it takes the square root, which
    differs for -0.0 and -inf."""
    return not isinstance(exponent, ArrayValue) and context.constant_of(exponent, "an exponent") != 0.5


def _is_plain_divisor(context: CaptureContext, divisor: Value) -> bool:
    """Whether NumPy and torch divide alike. They differ for zero and, in the sign of zeros, for infinity."""
    if isinstance(divisor, ArrayValue):
        return False
    number = context.constant_of(divisor, "a divisor")
    return bool(number != 0 and math.isfinite(number))


# what the second operand may be, of functions that torch computes alike only for some
_LIMITED: dict[str, Callable[[CaptureContext, Value], bool]] = {
    "power": _is_plain_exponent,
    "floor_divide": _is_plain_divisor,
    "remainder": _is_plain_divisor,
}


def checked(context: CaptureContext, tensor: Value, dtype: Any, name: str, is_array: bool = False) -> ArrayValue:
    """The result of a function as an array of NumPy's dtype, or as a number if it has no dimensions."""
    assert isinstance(tensor, TensorValue)
    if NUMPY_OF.get(tensor.fake.dtype) != dtype:
        raise unsupported("torch-result", f"numpy.{name}, which gives {dtype} where torch gives {tensor.fake.dtype}")
    return array_of_tensor(context, tensor, scalar=not is_array and not tensor.fake.dim())


def check_layout(
    context: CaptureContext, result: Value, given: Sequence[Value], name: str, *, each: bool = False
) -> None:
    """Refuses a result that NumPy may lay out in another way than torch. Arrays in C order give a result in C order.

    each: the function computes each element of the result from one element of each array.
    """
    assert isinstance(result, TensorValue)
    arrays = [one.tensor.fake for one in given if isinstance(one, ArrayValue)]
    if all(map(_lies_in_order, arrays)) or sum(size > 1 for size in result.fake.shape) < 2:
        return
    parts = [array for array in arrays if array.dim()]
    alike = all(one.shape == result.fake.shape and one.stride() == parts[0].stride() for one in parts)
    if not (each and alike and 0 not in parts[0].stride()):
        raise refused(context, f"numpy.{name}", list(given))


def _lies_in_order(fake: torch.Tensor) -> bool:
    return fake.dim() < 2 or fake.is_contiguous()


def resolved_dtypes(context: CaptureContext, ufunc: Any, args: list[Value]) -> tuple[Any, ...]:
    """The dtypes in which NumPy computes: of the operands, then of the result."""
    kinds = tuple(operand_kind(context, arg) for arg in args)
    try:
        return ufunc.resolve_dtypes((*kinds, None))
    except TypeError:
        raise refused(context, f"numpy.{ufunc.__name__}", args) from None  # NumPy itself raises behind the break


def operand_kind(context: CaptureContext, value: Value) -> Any:
    """The operand's part in the choice of dtypes: a dtype, or int or float for Python's numbers, which adapt."""
    if isinstance(value, ArrayValue):
        return value.dtype
    if value.is_constant() and isinstance(value, (ConstantValue, SymbolicNumber)):
        kind = value.python_type(context)
        if kind in (int, float):
            return kind
        if kind in (bool, BOOL):
            return numpy.dtype(bool)
        if is_numpy_number(example_of(value)):
            return numpy.dtype(kind)
    raise refused(context, "a function of NumPy", [value])


def cast_operand(context: CaptureContext, value: Value, dtype: Any, as_number: bool = False) -> Value:
    """An operand in the dtype that NumPy computes in."""
    if isinstance(value, ArrayValue):
        if value.dtype == dtype:
            return value.tensor
        return context.record_method("to", [value.tensor, ConstantValue(TORCH_OF[dtype])], {})
    changes = is_open(value) and issubclass(value.python_type(context), (float, numpy.floating))
    if as_number and changes and dtype.kind == "f":
        return value
    number = _in_dtype(context, context.constant_of(value, "an operand"), dtype)
    return ConstantValue(number) if as_number else full(context, (), number, dtype)


def _in_dtype(context: CaptureContext, number: Any, dtype: Any) -> Any:
    """A number rounded as NumPy rounds it. A number that the dtype cannot hold breaks the graph."""
    if dtype.kind == "b":
        return bool(number)
    if dtype.kind == "f":
        with numpy.errstate(all="ignore"):
            rounded = float(dtype.type(number))
        if math.isfinite(rounded) == math.isfinite(number):
            return rounded
    else:
        bounds = numpy.iinfo(dtype)
        if number == int(number) and bounds.min <= number <= bounds.max:
            return int(number)
    raise unsupported("call-builtin", f"the number {number!r} as an operand of an array of {dtype}")


def full(context: CaptureContext, shape: tuple[int, ...], number: Any, dtype: Any) -> Value:
    """A new tensor filled with one number."""
    named: dict[str, Value] = {"dtype": ConstantValue(TORCH_OF[dtype]), "device": ConstantValue(torch.device("cpu"))}
    return context.record_function(torch.full, [context.known(shape), ConstantValue(number)], named)


def matrix_product(context: CaptureContext, left: Value, right: Value) -> ArrayValue:
    """`left @ right`."""
    if not (isinstance(left, ArrayValue) and isinstance(right, ArrayValue) and left.shape and right.shape):
        raise refused(context, "numpy.matmul", [left, right])
    *loop, result = resolved_dtypes(context, numpy.matmul, [left, right])
    if result not in TORCH_OF or result.kind not in "fi" or torch.is_autocast_enabled("cpu"):
        raise refused(context, "numpy.matmul", [left, right])
    operands = [cast_operand(context, arg, dtype) for arg, dtype in zip((left, right), loop, strict=True)]
    product = context.record_function(torch.matmul, operands, {})
    if max(len(left.shape), len(right.shape)) > 3:  # products of stacked matrices may come in another layout
        check_layout(context, product, [left, right], "matmul")
    return checked(context, product, result, "matmul")


def write(
    context: CaptureContext, array: ArrayValue, part: TensorValue, value: Value, mask: TensorValue | None = None
) -> None:
    """Assigns to an array or a part of it, or one number where a mask holds, with a cast to its dtype. Copies an
    assigned array first, which may share the memory, because NumPy reads everything before it writes."""
    held = {array.dtype, value.dtype if isinstance(value, ArrayValue) else array.dtype}
    if len(held) > 1 and not held <= TORCH_OF.keys():
        raise refused(context, f"writing to {array.dtype}", [value])
    if isinstance(value, ArrayValue):
        operand: Value = value.tensor
        if mask is not None and value.shape:
            raise refused(context, "writing by a mask", [value])
        if value.dtype.kind == "f" and array.dtype.kind in "iu":
            raise refused(context, f"writing to {array.dtype}", [value])
        if not _fits(value.shape, tuple(part.fake.shape)):
            raise refused(context, f"writing to a part of shape {tuple(part.fake.shape)}", [value])
        operand = context.record_method("clone", [operand], {})
    else:
        kind = operand_kind(context, value)
        if kind is float and array.dtype.kind in "iu":
            raise refused(context, f"writing to {array.dtype}", [value])
        if array.dtype not in TORCH_OF:
            raise refused(context, f"writing to {array.dtype}", [value])
        operand = cast_operand(context, value, array.dtype)
    if mask is not None:
        operand = context.record_function(torch.where, [mask, operand, part], {})
    context.record_method("copy_", [part, operand], {})


def _fits(shape: tuple[int, ...], place: tuple[int, ...]) -> bool:
    """Whether `shape` broadcasts to the shape `place`."""
    behind = place[len(place) - len(shape) :]
    return len(shape) <= len(place) and all(one in (1, size) for one, size in zip(shape, behind, strict=True))


def apply_in_place(context: CaptureContext, function: Any, array: ArrayValue, other: Value) -> Value:
    """`array += other` and other operators in place; `function` is the operator that makes a new array."""
    result = apply_operator(context, function, [array, other])
    assert isinstance(result, ArrayValue)
    if result.shape != array.shape or not numpy.can_cast(result.dtype, array.dtype, "same_kind"):
        raise refused(context, f"{function.__name__} in place", [array, other])
    context.record_method("copy_", [array.tensor, result.tensor], {})
    return array
