"""Lowerings of divisions with integral quotients, and of their remainders."""

from __future__ import annotations

from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.loops.folding import as_dtype
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Tensor
from stator.prims.type_promotion import Kind, common_dtype, is_integral
from stator.shapes.expr import Expr

from .pointwise import Operand, elementwise, vocabulary_operation

aten = torch.ops.aten


def _may_divide_by_zero(builder: LoweringBuilder, x: Operand, y: Operand) -> bool:
    """True for integers with a divisor that may be zero. Eager and the library raise on the CPU; kernels cannot."""
    dtype = common_dtype([x, y])
    unknown = is_integral(dtype) and (isinstance(y, Tensor | Expr) or as_dtype(y, dtype) == 0)
    return unknown and builder.meta.device.type == "cpu"


@lowers(aten.fmod.Tensor, aten.fmod.Scalar, aten.remainder.Tensor, aten.remainder.Scalar)
def _remainder(builder: LoweringBuilder, x: Tensor, y: Operand) -> Any:
    if _may_divide_by_zero(builder, x, y):
        return NotImplemented
    operation = "fmod" if ".fmod." in builder.target else "mod"
    return elementwise(builder, vocabulary_operation(operation), [x, y], heavy=True)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(builder: LoweringBuilder, x: Tensor, y: Operand, *, rounding_mode: str | None) -> Any:
    if rounding_mode is None:
        return elementwise(builder, vocabulary_operation("div"), [x, y], Kind.INT_TO_FLOAT)
    if _may_divide_by_zero(builder, x, y):
        return NotImplemented
    if is_integral(common_dtype([x, y])):
        return elementwise(
            builder, vocabulary_operation("floor_div" if rounding_mode == "floor" else "trunc_div"), [x, y], heavy=True
        )
    if rounding_mode == "trunc":
        if isinstance(y, Tensor) and y.shape:
            dtype = common_dtype([x, y])
            # eager rounds the quotient of half floats before it truncates, unless the divisor is a number
            return elementwise(builder, lambda ops, a, b: ops.trunc(_rounded(ops, ops.div(a, b), dtype)), [x, y])
        return elementwise(builder, lambda ops, a, b: ops.trunc(ops.div(a, b)), [x, y])
    return elementwise(builder, _float_floor_divide, [x, y], heavy=True)


def _rounded(ops: Any, value: Ref, dtype: torch.dtype) -> Ref:
    return ops.to_dtype(ops.to_dtype(value, dtype), ops.dtype(value))


def _float_floor_divide(ops: Any, a: Ref, b: Ref) -> Ref:
    """Python's floor division of floats, by the exact remainder, as in eager."""
    dtype = ops.dtype(a)
    zero, one = ops.constant(0, dtype), ops.constant(1, dtype)
    remainder = ops.fmod(a, b)
    quotient = ops.div(ops.sub(a, remainder), b)
    signs_differ = ops.bitwise_xor(ops.lt(b, zero), ops.lt(remainder, zero))
    adjust = ops.bitwise_and(ops.ne(remainder, zero), signs_differ)
    quotient = ops.where(adjust, ops.sub(quotient, one), quotient)
    floored = ops.floor(quotient)
    floored = ops.where(ops.gt(ops.sub(quotient, floored), ops.constant(0.5, dtype)), ops.add(floored, one), floored)
    plain = ops.div(a, b)
    floored = ops.where(ops.eq(quotient, zero), ops.copysign(zero, plain), floored)
    return ops.where(ops.eq(b, zero), plain, floored)
