"""Lowerings of scalar elementwise operators: arithmetic, comparisons, selections, activations.

float16 and bfloat16 are computed in float32 and rounded where the result is stored (or cast). Eager rounds each
operator's result; a fused chain rounds once, at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.loops.vocabulary import HEAVY
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.registry import lowerings, lowers
from stator.inductor.lower.tensor import Tensor
from stator.prims.type_promotion import Kind, apply_kind, common_dtype, computation_dtype, is_integral
from stator.shapes.expr import Expr
from stator.shapes.floats import FloatExpr

aten = torch.ops.aten
Number = int | float | bool
Operand = Tensor | Number | Expr


def elementwise(
    builder: LoweringBuilder,
    function: Callable[..., Ref],
    operands: Sequence[Operand],
    kind: Kind = Kind.DEFAULT,
    *,
    heavy: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Apply `function(ops, *values)` to operands promoted to their common dtype.

    Values arrive in the computation dtype (float32 for half floats). The result has the dtype from promotion, or
    `dtype`. `function` returns a value of the computation dtype, or bool for kind ALWAYS_BOOL.
    """
    common = common_dtype(operands)
    result = dtype or apply_kind(common, kind)
    working = computation_dtype(apply_kind(common, kind) if kind is not Kind.ALWAYS_BOOL else common)
    device = next(operand.device for operand in operands if isinstance(operand, Tensor))
    operands = [builder.stored_float(one, device) if isinstance(one, FloatExpr) else one for one in operands]
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    is_tensor = [isinstance(operand, Tensor) for operand in operands]
    if all(is_tensor):

        def wrapped(ops: Any, *values: Ref) -> Ref:
            return ops.to_dtype(function(ops, *[ops.to_dtype(value, working) for value in values]), result)

    else:

        def wrapped(ops: Any, *values: Ref) -> Ref:
            given = iter(values)
            promoted = [
                ops.to_dtype(next(given), working) if flag else ops.constant(operand, working)
                for operand, flag in zip(operands, is_tensor, strict=True)
            ]
            return ops.to_dtype(function(ops, *promoted), result)

    return builder.pointwise(wrapped, tensors, result, heavy=heavy)


def cast(builder: LoweringBuilder, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype is dtype:
        return tensor
    return builder.pointwise(lambda ops, x: ops.to_dtype(x, dtype), [tensor], dtype)


def vocabulary_operation(name: str) -> Callable[..., Ref]:
    return lambda ops, *values: ops.elementwise(name, *values)


def _register(overloads: str, function: Callable[..., Ref], kind: Kind, heavy: bool) -> None:
    for path in overloads.split():
        packet, overload = path.split(".")
        target = getattr(getattr(aten, packet), overload)
        arity = sum(1 for argument in target._schema.arguments if not argument.kwarg_only)

        def lowering(builder: LoweringBuilder, *operands: Operand, _arity: int = arity) -> Any:
            if len(operands) != _arity:
                return NotImplemented
            return elementwise(builder, function, operands, kind, heavy=heavy)

        lowerings.add(target, lowering)


# ---- one operation of the vocabulary

_UNARY_FLOAT = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc sigmoid lgamma"
)
for _name in _UNARY_FLOAT.split():
    _register(f"{_name}.default", vocabulary_operation(_name), Kind.INT_TO_FLOAT, _name in HEAVY)

for _name in ("isnan", "isinf"):

    def _float_test(builder: LoweringBuilder, x: Tensor, _operation: str = _name) -> Tensor:
        if is_integral(x.dtype):
            return elementwise(builder, lambda ops, v: ops.constant(False, torch.bool), [x], Kind.ALWAYS_BOOL)
        return elementwise(builder, vocabulary_operation(_operation), [x], Kind.ALWAYS_BOOL)

    lowerings.add(getattr(aten, _name).default, _float_test)


@lowers(aten.signbit.default)
def _signbit(builder: LoweringBuilder, x: Tensor) -> Tensor:
    if is_integral(x.dtype):
        return elementwise(builder, lambda ops, v: ops.lt(v, ops.constant(0, ops.dtype(v))), [x], Kind.ALWAYS_BOOL)

    def sign_bit(ops: Any, value: Ref) -> Ref:
        bits = torch.int32 if ops.dtype(value) is torch.float32 else torch.int64
        return ops.lt(ops.bitcast(value, bits), ops.constant(0, bits))

    return elementwise(builder, sign_bit, [x], Kind.ALWAYS_BOOL)


@lowers(aten.angle.default)
def _angle(builder: LoweringBuilder, x: Tensor) -> Tensor:
    """The angle of a real number: 0, or pi below 0."""

    def angle(ops: Any, value: Ref) -> Ref:
        dtype = ops.dtype(value)
        zero = ops.constant(0, dtype)
        turned = ops.where(ops.lt(value, zero), ops.constant(math.pi, dtype), zero)
        return ops.where(ops.isnan(value), value, turned)

    return elementwise(builder, angle, [x], Kind.INT_TO_FLOAT)


@lowers(aten.nextafter.default)
def _nextafter(builder: LoweringBuilder, x: Operand, y: Operand) -> Any:
    dtype = common_dtype([x, y])
    if computation_dtype(dtype) is not dtype:
        return NotImplemented  # the next half float is not the next float32
    return elementwise(builder, vocabulary_operation("nextafter"), [x, y])


@lowers(aten.frexp.Tensor)
def _frexp(builder: LoweringBuilder, x: Tensor) -> list[Tensor]:
    """The mantissa of size [0.5, 1) and the exponent, cut out of the bits. Subnormal numbers are scaled up first."""
    working = computation_dtype(x.dtype)
    wide = working is torch.float64
    bits, width, exponents, bias = (torch.int64, 52, 2047, 1022) if wide else (torch.int32, 23, 255, 126)
    scale = width + 1

    def parts(ops: Any, value: Ref) -> tuple[Ref, Ref]:
        value = ops.to_dtype(value, working)
        tiny = ops.lt(ops.abs(value), ops.constant(torch.finfo(working).tiny, working))
        scaled = ops.where(tiny, ops.mul(value, ops.constant(2.0**scale, working)), value)
        word = ops.bitcast(scaled, bits)
        field = ops.bitwise_and(ops.rshift(word, ops.constant(width, bits)), ops.constant(exponents, bits))
        rest = ops.bitwise_and(word, ops.constant(~(exponents << width), bits))
        mantissa = ops.bitcast(ops.bitwise_or(rest, ops.constant(bias << width, bits)), working)
        exponent = ops.sub(field, ops.constant(bias, bits))
        exponent = ops.where(tiny, ops.sub(exponent, ops.constant(scale, bits)), exponent)
        infinite = ops.eq(field, ops.constant(exponents, bits))
        special = ops.bitwise_or(infinite, ops.eq(value, ops.constant(0, working)))
        return ops.where(special, value, mantissa), ops.where(special, ops.constant(0, bits), exponent)

    return [
        builder.pointwise(lambda ops, v: ops.to_dtype(parts(ops, v)[0], x.dtype), [x], x.dtype),
        builder.pointwise(lambda ops, v: ops.to_dtype(parts(ops, v)[1], torch.int32), [x], torch.int32),
    ]


_register("neg.default", vocabulary_operation("neg"), Kind.DEFAULT, False)
_register("logical_not.default", vocabulary_operation("logical_not"), Kind.ALWAYS_BOOL, False)
_register("bitwise_not.default", vocabulary_operation("bitwise_not"), Kind.DEFAULT, False)
_register("mul.Tensor mul.Scalar", vocabulary_operation("mul"), Kind.DEFAULT, False)
_register("maximum.default", vocabulary_operation("maximum"), Kind.DEFAULT, False)
_register("minimum.default", vocabulary_operation("minimum"), Kind.DEFAULT, False)
_register("fmax.default", lambda ops, x, y: _ignoring_nan(ops, "fmax", "maximum", x, y), Kind.DEFAULT, False)
_register("fmin.default", lambda ops, x, y: _ignoring_nan(ops, "fmin", "minimum", x, y), Kind.DEFAULT, False)
_register("atan2.default", vocabulary_operation("atan2"), Kind.INT_TO_FLOAT, True)
_register("hypot.default", vocabulary_operation("hypot"), Kind.DEFAULT, True)
_register("copysign.Tensor copysign.Scalar", vocabulary_operation("copysign"), Kind.INT_TO_FLOAT, False)
_register("div.Tensor div.Scalar", vocabulary_operation("div"), Kind.INT_TO_FLOAT, False)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register(f"{_name}.Tensor {_name}.Scalar", vocabulary_operation(_name), Kind.ALWAYS_BOOL, False)
for _name in ("and", "or", "xor"):
    _register(
        f"bitwise_{_name}.Tensor bitwise_{_name}.Scalar",
        vocabulary_operation(f"bitwise_{_name}"),
        Kind.DEFAULT,
        False,
    )
for _name, _operation in (("left", "lshift"), ("right", "rshift")):
    _register(
        f"bitwise_{_name}_shift.Tensor bitwise_{_name}_shift.Tensor_Scalar "
        f"__{_operation}__.Tensor __{_operation}__.Scalar",
        vocabulary_operation(_operation),
        Kind.DEFAULT,
        False,
    )


def _ignoring_nan(ops: Any, floating: str, integral: str, x: Ref, y: Ref) -> Ref:
    return ops.elementwise(floating if ops.dtype(x).is_floating_point else integral, x, y)


def _truth(ops: Any, value: Ref) -> Ref:
    return ops.to_dtype(value, torch.bool)


for _name in ("and", "or", "xor"):

    def _logical(ops: Any, x: Ref, y: Ref, _operation: str = f"bitwise_{_name}") -> Ref:
        return ops.elementwise(_operation, _truth(ops, x), _truth(ops, y))

    _register(f"logical_{_name}.default", _logical, Kind.ALWAYS_BOOL, False)


def _rounding(name: str) -> Callable[..., Ref]:
    return lambda ops, x: ops.elementwise(name, x) if ops.dtype(x).is_floating_point else x


for _name in ("floor", "ceil", "trunc", "round"):
    _register(f"{_name}.default", _rounding(_name), Kind.DEFAULT, False)


@lowers(aten.abs.default, aten.sign.default, aten.sgn.default)
def _abs_or_sign(builder: LoweringBuilder, x: Tensor) -> Any:
    if x.dtype is torch.bool:
        return _unchanged(builder, x)
    return elementwise(builder, vocabulary_operation("abs" if "abs" in builder.target else "sign"), [x])


def _unchanged(builder: LoweringBuilder, x: Tensor) -> Tensor:
    """Equal numbers, in memory of their own."""
    return elementwise(builder, lambda ops, value: value, [x])


# ---- arithmetic with a factor


def _plus_scaled(ops: Any, x: Ref, y: Ref, factor: Number) -> Ref:
    """x + factor * y. For floats rounded once, as in eager's vector code."""
    if factor == 1:
        return ops.add(x, y)
    return product_plus(ops, y, ops.constant(factor, ops.dtype(y)), x)


def _minus_scaled(ops: Any, x: Ref, y: Ref, factor: Number) -> Ref:
    if factor == 1 or not ops.dtype(y).is_floating_point:
        return ops.sub(x, _scaled(ops, y, factor))
    return _plus_scaled(ops, x, y, -factor)


def product_plus(ops: Any, x: Ref, y: Ref, z: Ref) -> Ref:
    """x * y + z. For floats rounded once."""
    return ops.fma(x, y, z) if ops.dtype(z).is_floating_point else ops.add(ops.mul(x, y), z)


def _scaled(ops: Any, value: Ref, factor: Number) -> Ref:
    return value if factor == 1 else ops.mul(value, ops.constant(factor, ops.dtype(value)))


@lowers(aten.addcdiv.default)
def _addcdiv(builder: LoweringBuilder, x: Tensor, y: Tensor, z: Tensor, value: Number = 1) -> Any:
    if is_integral(common_dtype([x, y, z])):
        return NotImplemented
    return elementwise(builder, lambda ops, a, b, c: ops.add(a, ops.div(_scaled(ops, b, value), c)), [x, y, z])


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(builder: LoweringBuilder, start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    def function(ops: Any, a: Ref, b: Ref, w: Ref) -> Ref:
        dtype = ops.dtype(a)
        difference = ops.sub(b, a)
        near = ops.lt(ops.abs(w), ops.constant(0.5, dtype))
        factor = ops.where(near, w, ops.sub(w, ops.constant(1, dtype)))
        return product_plus(ops, factor, difference, ops.where(near, a, b))

    return elementwise(builder, function, [start, end, weight])


# ---- powers


@lowers(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(builder: LoweringBuilder, base: Operand, exponent: Operand) -> Any:
    if isinstance(exponent, Expr):
        return NotImplemented
    if isinstance(exponent, Tensor):
        common = common_dtype([base, exponent])
        if common is torch.bool:
            return NotImplemented
        if is_integral(common):
            return elementwise(builder, _integer_power, [base, exponent], heavy=True)
        return elementwise(builder, vocabulary_operation("pow"), [base, exponent], heavy=True)
    simple = _POWERS.get(float(exponent))
    if is_integral(common_dtype([base, exponent])):
        if exponent < 0 or common_dtype([base, exponent]) is torch.bool:
            return NotImplemented
        if exponent in (1, 2, 3):
            return elementwise(builder, lambda ops, x, _: simple(ops, x), [base, exponent])  # type: ignore[misc]
        return elementwise(builder, vocabulary_operation("pow"), [base, exponent], heavy=True)
    if simple is not None:
        return elementwise(builder, lambda ops, x, _: simple(ops, x), [base, exponent])
    return elementwise(builder, vocabulary_operation("pow"), [base, exponent], heavy=True)


def _integer_power(ops: Any, base: Ref, exponent: Ref) -> Ref:
    """An integer power. For a negative exponent: 1 or -1 where the base is 1 or -1, else 0."""
    dtype = ops.dtype(base)
    zero, one, minus = ops.constant(0, dtype), ops.constant(1, dtype), ops.constant(-1, dtype)
    power = ops.pow(base, ops.maximum(exponent, zero))
    odd = ops.ne(ops.bitwise_and(exponent, one), zero)
    unit = ops.where(ops.eq(base, one), one, ops.where(ops.eq(base, minus), ops.where(odd, minus, one), zero))
    return ops.where(ops.lt(exponent, zero), unit, power)


# the special cases of eager's kernel, with equal roundings in each step
_POWERS: dict[float, Callable[..., Ref]] = {
    0.0: lambda ops, x: ops.constant(1, ops.dtype(x)),
    1.0: lambda ops, x: x,
    2.0: lambda ops, x: ops.mul(x, x),
    3.0: lambda ops, x: ops.mul(ops.mul(x, x), x),
    0.5: lambda ops, x: ops.sqrt(x),
    -0.5: lambda ops, x: ops.rsqrt(x),
    -1.0: lambda ops, x: ops.reciprocal(x),
    -2.0: lambda ops, x: ops.reciprocal(ops.mul(x, x)),
}


# ---- selections


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def _where(builder: LoweringBuilder, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    dtype = common_dtype([x, y])
    tensors = [condition, *(operand for operand in (x, y) if isinstance(operand, Tensor))]

    def function(ops: Any, test: Ref, *values: Ref) -> Ref:
        given = iter(values)
        first, second = (
            ops.to_dtype(next(given), dtype) if isinstance(operand, Tensor) else typed_constant(ops, operand, dtype)
            for operand in (x, y)
        )
        return ops.where(ops.to_dtype(test, torch.bool), first, second)

    return builder.pointwise(function, tensors, dtype)


def typed_constant(ops: Any, value: Number | Expr, dtype: torch.dtype) -> Ref:
    return ops.to_dtype(ops.constant(value, computation_dtype(dtype)), dtype)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(builder: LoweringBuilder, x: Tensor, mask: Tensor, value: Operand) -> Any:
    tensors = [x, mask, *([value] if isinstance(value, Tensor) else [])]

    def function(ops: Any, old: Ref, test: Ref, *new: Ref) -> Ref:
        fill = ops.to_dtype(new[0], x.dtype) if new else typed_constant(ops, value, x.dtype)  # type: ignore[arg-type]
        return ops.where(ops.to_dtype(test, torch.bool), fill, old)

    return builder.pointwise(function, tensors, x.dtype)


@lowers(aten.clamp.default, aten.clamp.Tensor)
def _clamp(builder: LoweringBuilder, x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    bounds = [bound for bound in (low, high) if bound is not None]

    def function(ops: Any, value: Ref, *limits: Ref) -> Ref:
        given = iter(limits)
        if low is not None:
            value = ops.maximum(next(given), value)
        if high is not None:
            value = ops.minimum(next(given), value)
        return value

    return elementwise(builder, function, [x, *bounds])


# ---- activations


def constant_like(ops: Any, like: Ref, value: Number) -> Ref:
    return ops.constant(value, ops.dtype(like))


@lowers(aten.relu.default)
def _relu(builder: LoweringBuilder, x: Tensor) -> Any:
    if x.dtype is torch.bool:
        return NotImplemented
    return elementwise(builder, lambda ops, v: ops.maximum(constant_like(ops, v, 0), v), [x])


lowers(aten.add.Tensor, aten.add.Scalar)(
    lambda builder, x, y, alpha=1: elementwise(builder, lambda ops, a, b: _plus_scaled(ops, a, b, alpha), [x, y])
)
lowers(aten.sub.Tensor, aten.sub.Scalar)(
    lambda builder, x, y, alpha=1: elementwise(builder, lambda ops, a, b: _minus_scaled(ops, a, b, alpha), [x, y])
)
lowers(aten.rsub.Tensor, aten.rsub.Scalar)(
    lambda builder, x, y, alpha=1: elementwise(builder, lambda ops, a, b: _minus_scaled(ops, b, a, alpha), [x, y])
)
lowers(aten.addcmul.default)(
    lambda builder, x, y, z, value=1: elementwise(
        builder, lambda ops, a, b, c: product_plus(ops, _scaled(ops, b, value), c, a), [x, y, z]
    )
)
lowers(aten.clamp_min.default, aten.clamp_min.Tensor)(lambda builder, x, low: _clamp(builder, x, low))
lowers(aten.clamp_max.default, aten.clamp_max.Tensor)(lambda builder, x, high: _clamp(builder, x, None, high))
