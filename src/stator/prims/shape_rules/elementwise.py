"""Shape rules of elementwise operators: broadcast, promote, and keep the operands' memory layout.

The tables group overloads by the choice of the result's dtype; in-place twins are registered along with them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from stator.prims.layout import Sizes, broadcast_shapes, elementwise_strides, preserved_strides
from stator.prims.record import ShapeRule, TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.type_promotion import (
    REAL_OF_COMPLEX,
    Kind,
    apply_kind,
    check_factor,
    check_range,
    common_dtype,
    computation_dtype,
    is_integral,
    number_dtype,
)

from .like_arguments import preserved
from .operands import (
    common_device,
    elementwise,
    fresh,
    in_place_rule,
    overloads,
    shape_table,
    unchanged_argument,
    with_in_place,
)

aten = torch.ops.aten

# One tensor; further arguments are numbers that do not take part in type promotion.
UNARY = {
    Kind.DEFAULT: """
        sgn sign floor ceil round round.decimals trunc bitwise_not relu
    """,
    Kind.INT_TO_FLOAT: """
        exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh
        atanh sigmoid erf erfc erfinv lgamma digamma deg2rad rad2deg logit i0 sinc special_i0e special_i1
        special_i1e special_entr special_erfcx special_log_ndtr special_ndtri special_bessel_j0 special_bessel_j1
        special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 special_modified_bessel_i1
        special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_airy_ai
    """,
    Kind.ALWAYS_BOOL: "isnan isinf isposinf isneginf signbit logical_not",
}

# One floating-point tensor; eager has no kernel for integers.
UNARY_FLOAT = """
    silu mish hardswish hardsigmoid softplus frac leaky_relu elu celu selu
"""

# Operators without eager kernels for bool, although compiled code could compute them.
NOT_OF_BOOL = frozenset(["floor", "ceil", "round", "trunc"])
NOT_OF_INTEGERS = frozenset(["logaddexp", "logaddexp2"])
NOT_OF_COMPLEX = frozenset(["deg2rad", "rad2deg", "logit", "isposinf", "isneginf"])

# Two operands that broadcast and promote, each a tensor or a number.
BINARY = {
    Kind.DEFAULT: """
        mul.Tensor mul.Scalar maximum minimum fmax fmin fmod.Tensor fmod.Scalar remainder.Tensor remainder.Scalar
        remainder.Scalar_Tensor
        floor_divide floor_divide.Scalar pow.Tensor_Tensor
        bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor
        bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor
        bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor
        bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor
        bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor
        __lshift__.Tensor __lshift__.Scalar __rshift__.Tensor __rshift__.Scalar
        hypot nextafter gcd lcm heaviside logaddexp logaddexp2 clamp_min.Tensor clamp_max.Tensor
        igamma igammac
    """,
    Kind.INT_TO_FLOAT: """
        div.Tensor div.Scalar atan2 copysign.Tensor copysign.Scalar xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other
        special_xlog1py special_xlog1py.self_scalar special_xlog1py.other_scalar special_zeta special_zeta.self_scalar
        special_zeta.other_scalar
    """,
    Kind.ALWAYS_BOOL: """
        eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar
        ge.Tensor ge.Scalar logical_and logical_or logical_xor
    """,
}

# Gradients of elementwise operators: floating-point tensors of one dtype first, then numbers that do not affect shapes.
GRADIENTS = """
    gelu_backward silu_backward mish_backward tanh_backward sigmoid_backward hardswish_backward
    hardsigmoid_backward hardtanh_backward elu_backward softplus_backward softshrink_backward
    hardshrink_backward logit_backward
"""


def name_of(target: Any) -> str:
    return str(target.overloadpacket.__name__)


def unary(kind: Kind, name: str = "") -> ShapeRule:
    def rule(self: Any, *_args: Any, **_options: Any) -> TensorMeta:
        refuse_if(
            (name in NOT_OF_BOOL and self.dtype is torch.bool) or (name in NOT_OF_COMPLEX and self.dtype.is_complex)
        )
        return unary_meta(self, apply_kind(self.dtype, kind))

    return rule


def unary_meta(self: Any, dtype: torch.dtype) -> TensorMeta:
    shape, stride = tuple(self.shape), self.stride()
    return TensorMeta(shape, elementwise_strides(shape, ((shape, stride),)), dtype, self.device)


def unary_float(name: str) -> ShapeRule:
    def rule(self: Any, *numbers: Any, **_options: Any) -> TensorMeta:
        refuse_if(is_integral(self.dtype))
        check_range(computation_dtype(self.dtype), *numbers)
        return unary_meta(self, self.dtype)

    return rule


def binary(kind: Kind, name: str = "") -> ShapeRule:
    def rule(self: Any, other: Any, *_args: Any, **_options: Any) -> TensorMeta:
        operands = (self, other)
        dtype = common_dtype(operands)
        refuse_if(name in NOT_OF_INTEGERS and is_integral(dtype))
        result = apply_kind(dtype, kind)
        return elementwise(operands, result, dtype if kind is Kind.ALWAYS_BOOL else result)

    return rule


def gradient(*args: Any, **_options: Any) -> TensorMeta:
    tensors = [argument for argument in args if hasattr(argument, "stride")]
    return elementwise(tensors, common_dtype(tensors))


for _kind, _names in UNARY.items():
    for _target in overloads(_names):
        with_in_place(_target, tags=("pointwise",))(unary(_kind, name_of(_target)))
for _name in UNARY_FLOAT.split():
    with_in_place(*overloads(_name), tags=("pointwise",))(unary_float(_name))
for _kind, _names in BINARY.items():
    for _target in overloads(_names):
        with_in_place(_target, tags=("pointwise",))(binary(_kind, name_of(_target)))
shape_rule(*overloads(GRADIENTS), tags=("pointwise",))(gradient)


@with_in_place(aten.abs.default, tags=("pointwise",))
def abs_(self: Any) -> TensorMeta:
    refuse_if(self.dtype is torch.bool and self.device.type == "cpu")
    if not self.dtype.is_complex:
        return unary_meta(self, self.dtype)
    shape = tuple(self.shape)
    return fresh(shape, self, REAL_OF_COMPLEX[self.dtype], preserved_strides(shape, self.stride()))


@shape_rule(aten.polygamma.default, tags=("pointwise",))
def polygamma(n: int, self: Any) -> TensorMeta:
    refuse_if(n < 0)
    return unary_meta(self, apply_kind(self.dtype, Kind.INT_TO_FLOAT))


@with_in_place(aten.neg.default, tags=("pointwise",))
def neg(self: Any) -> TensorMeta:
    refuse_if(self.dtype is torch.bool)
    return unary_meta(self, self.dtype)


def number_or_dtype(operand: Any) -> torch.dtype:
    return operand.dtype if hasattr(operand, "dtype") else number_dtype(operand)


@with_in_place(aten.add.Tensor, aten.add.Scalar, tags=("pointwise",))
def add(self: Any, other: Any, alpha: Any = 1) -> TensorMeta:
    operands = (self, other)
    dtype = common_dtype(operands)
    check_factor(dtype, alpha)
    return elementwise(operands, dtype, dtype)


@with_in_place(aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Tensor, aten.rsub.Scalar, tags=("pointwise",))
def sub(self: Any, other: Any, alpha: Any = 1) -> TensorMeta:
    refuse_if(self.dtype is torch.bool or number_or_dtype(other) is torch.bool)
    return add(self, other, alpha)


@with_in_place(aten.angle.default, tags=("pointwise",))
def angle(self: Any) -> TensorMeta:
    if self.dtype.is_complex:
        return fresh(self.shape, self, REAL_OF_COMPLEX[self.dtype])
    return unary_meta(self, apply_kind(self.dtype, Kind.INT_TO_FLOAT))


@with_in_place(*overloads("div.Tensor_mode div.Scalar_mode"), tags=("pointwise",))
def div_mode(self: Any, other: Any, *, rounding_mode: str | None = None) -> TensorMeta:
    kind = Kind.INT_TO_FLOAT if rounding_mode is None else Kind.DEFAULT
    dtype = apply_kind(common_dtype((self, other)), kind)
    return elementwise((self, other), dtype, dtype)


@with_in_place(aten.clamp.default, aten.clamp.Tensor, tags=("pointwise",))
def clamp(self: Any, min: Any = None, max: Any = None) -> TensorMeta:
    refuse_if(min is None and max is None)
    tensors = [bound for bound in (min, max) if hasattr(bound, "stride")]
    # unlike most operators, it takes no number of the CPU beside a tensor of a GPU
    if any(bound.device != self.device for bound in tensors):
        raise RuntimeError("Expected all tensors to be on the same device, but found several devices for clamp!")
    dtype = common_dtype((self, min, max))
    check_range(dtype, min, max)
    return elementwise((self, *tensors), dtype, dtype) if tensors else unary_meta(self, dtype)


@with_in_place(aten.clamp_min.default, aten.clamp_max.default, tags=("pointwise",))
def bounded(self: Any, bound: Any) -> TensorMeta:
    dtype = common_dtype((self, bound))
    check_range(dtype, bound)
    return unary_meta(self, dtype)


@with_in_place(aten.pow.Tensor_Scalar, tags=("pointwise",))
def with_number(self: Any, number: Any) -> TensorMeta:
    """Number operand that promotes but, unlike numbers of `add` and its kin, does not affect the layout."""
    dtype = common_dtype((self, number))
    if is_integral(dtype) or computation_dtype(dtype) is not dtype:
        check_range(dtype, number)
    return unary_meta(self, dtype)


# pow_ has another name than its functional form.
shape_rule(aten.pow_.Scalar, tags=("pointwise", "inplace"))(in_place_rule(with_number))


@shape_rule(aten.pow.Scalar, tags=("pointwise",))
def pow_of_number(self: Any, exponent: Any) -> TensorMeta:
    """Contiguous, whatever the exponent's strides."""
    return fresh(exponent.shape, exponent, common_dtype((self, exponent)))


@with_in_place(aten.addcmul.default, aten.addcdiv.default, tags=("pointwise",))
def addcmul(self: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> TensorMeta:
    operands = (self, tensor1, tensor2)
    dtype = common_dtype(operands)
    check_range(computation_dtype(dtype), value)
    return elementwise(operands, dtype, dtype)


@with_in_place(aten.lerp.Scalar, aten.lerp.Tensor, tags=("pointwise",))
def lerp(self: Any, end: Any, weight: Any) -> TensorMeta:
    refuse_if(self.dtype is not end.dtype)
    check_range(computation_dtype(self.dtype), weight)
    return elementwise((self, end, weight) if hasattr(weight, "stride") else (self, end), self.dtype)


@shape_rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, tags=("pointwise",))
def where(condition: Any, self: Any, other: Any) -> TensorMeta:
    refuse_if(condition.dtype not in (torch.bool, torch.uint8))
    dtype = common_dtype((self, other))
    layouts = []
    shape: Sizes = ()
    for operand in (condition, self, other):
        if hasattr(operand, "stride"):
            own, stride = tuple(operand.shape), operand.stride()
            if operand is not condition and operand.dtype is not dtype:  # converted first, and so dense
                stride = preserved_strides(own, stride)
            shape = broadcast_shapes(shape, own)
            layouts.append((own, stride))
        else:
            layouts.append(((), ()))
    tensors = [operand for operand in (condition, self, other) if hasattr(operand, "stride")]
    return TensorMeta(shape, elementwise_strides(shape, layouts), dtype, common_device(tensors))


@with_in_place(aten.masked_fill.Scalar, aten.masked_fill.Tensor, tags=("pointwise",))
def masked_fill(self: Any, mask: Any, value: Any) -> TensorMeta:
    refuse_if(mask.dtype is not torch.bool or (hasattr(value, "shape") and len(value.shape)))
    check_range(self.dtype, value)
    return fresh(broadcast_shapes(tuple(self.shape), tuple(mask.shape)), self)


@shape_rule(aten.frexp.Tensor, tags=("pointwise",))
def frexp(self: Any) -> tuple[TensorMeta, TensorMeta]:
    mantissa = preserved(self)
    return mantissa, replace(mantissa, dtype=torch.int32)


@shape_rule(aten.complex.default, aten.polar.default, tags=("pointwise",))
def complex_(real: Any, imag: Any) -> TensorMeta:
    from_real = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
    return elementwise((real, imag), from_real[real.dtype])


@shape_rule(aten.fill.Scalar, aten.fill.Tensor, tags=("pointwise",))
def fill(self: Any, value: Any) -> TensorMeta:
    check_range(self.dtype, value)
    return preserved(self)


@with_in_place(aten.hardtanh.default, tags=("pointwise",))
def hardtanh(self: Any, min_val: Any = -1, max_val: Any = 1) -> TensorMeta:
    refuse_if(self.dtype is torch.bool or (is_integral(self.dtype) and not self.dtype.is_signed and min_val < 0))
    check_range(self.dtype, min_val, max_val)
    return preserved(self)


@with_in_place(aten.hardshrink.default, tags=("pointwise",))
def hardshrink(self: Any, lambd: Any = 0.5) -> TensorMeta:
    refuse_if(is_integral(self.dtype))
    check_range(self.dtype, lambd)
    return unary_meta(self, self.dtype)


@with_in_place(aten.gelu.default, tags=("pointwise",))
def gelu(self: Any, *, approximate: str = "none") -> TensorMeta:
    refuse_if(approximate not in ("none", "tanh"))
    return unary_float("gelu")(self)


@with_in_place(aten.softshrink.default, tags=("pointwise",))
def softshrink(self: Any, lambd: Any = 0.5) -> TensorMeta:
    refuse_if(is_integral(self.dtype))
    limit = torch.finfo(self.dtype).max
    refuse_if(type(lambd) in (int, float) and not 0 <= lambd <= limit)
    return unary_meta(self, self.dtype)


@with_in_place(aten.threshold.default, tags=("pointwise",))
def threshold(self: Any, bound: Any, value: Any) -> TensorMeta:
    refuse_if(self.dtype is torch.bool)
    check_range(computation_dtype(self.dtype), bound)
    check_range(self.dtype, value)
    return unary_meta(self, self.dtype)


@shape_rule(aten.fill_.Scalar, aten.fill_.Tensor, tags=("pointwise", "inplace"))
def fill_(self: Any, value: Any) -> TensorMeta:
    check_range(self.dtype, value)
    return unchanged_argument(self)


@shape_rule(aten.log_sigmoid_forward.default, tags=("pointwise",))
def log_sigmoid_forward(self: Any) -> tuple[TensorMeta, TensorMeta]:
    refuse_if(is_integral(self.dtype))
    if self.device.type != "cpu":
        return unary_meta(self, self.dtype), TensorMeta((0,), (1,), self.dtype, self.device)
    result = fresh(self.shape, self)
    return result, result


@shape_rule(*overloads("_conj_physical"), tags=("pointwise",))
def conj_physical(self: Any) -> TensorMeta:
    return unary_meta(self, self.dtype)


shape_rule(*overloads("conj_physical_"), tags=("pointwise", "inplace"))(in_place_rule(conj_physical))


@with_in_place(*overloads("ldexp.Tensor"), tags=("pointwise",))
def ldexp(self: Any, other: Any) -> TensorMeta:
    """self * 2.0**other. Eager raises the number 2.0 to `other` if self is float32 or integral, else a tensor."""
    power = pow_of_number(2.0, other)
    of_number = self.dtype is torch.float32 or is_integral(self.dtype)
    stride = power.stride if of_number else preserved_strides(power.shape, other.stride())
    operands = ((tuple(self.shape), self.stride()), (power.shape, stride))
    scale = fresh(power.shape, other, power.dtype)
    shape = broadcast_shapes(tuple(self.shape), power.shape)
    dtype = common_dtype((self, scale))
    return TensorMeta(shape, elementwise_strides(shape, operands), dtype, common_device((self, other)))


@shape_rule(*overloads("rrelu_with_noise_backward"), tags=("pointwise",))
def rrelu_with_noise_backward(
    grad_output: Any, self: Any, noise: Any, lower: float, upper: float, training: bool, self_is_result: bool
) -> TensorMeta:
    random = training and upper - lower > 1e-6
    operands = (grad_output, noise) if random else (self, grad_output)
    return elementwise(operands, common_dtype(operands))


POLYNOMIALS = """
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
    legendre_polynomial_p
"""

for _name in POLYNOMIALS.split():
    _names = " ".join(f"special_{_name}{overload}" for overload in ("", ".x_scalar", ".n_scalar"))
    shape_rule(*overloads(_names), tags=("pointwise",))(binary(Kind.INT_TO_FLOAT))


with_in_place(aten.square.default, tags=("pointwise",))(lambda self: with_number(self, 2))
with_in_place(aten.relu6.default, tags=("pointwise",))(lambda self: hardtanh(self, 0, 6))
with_in_place(aten.mvlgamma.default, tags=("pointwise",))(
    lambda self, p: fresh(self.shape, self, apply_kind(self.dtype, Kind.INT_TO_FLOAT))
)
shape_table(
    ("pointwise",),
    {
        "isfinite": lambda self: (
            replace(preserved(self), dtype=torch.bool) if is_integral(self.dtype) else unary_meta(self, torch.bool)
        ),
        # unlike other gradients, laid out primarily like the input
        "leaky_relu_backward threshold_backward": lambda grad, self, *_: gradient(self, grad),
    },
)
shape_table(("pointwise", "inplace"), {"zero_": unchanged_argument})
