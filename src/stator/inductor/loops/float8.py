"""8-bit floats, which kernels store and never compute with: conversions from and to float32 as loop operations.

Printers see their bytes alone (`bitcast` to uint8). Numbers are rounded to nearest, ties to even. Those that are too
large become what torch makes of them: infinity, NaN or the largest number (formats: the OCP's "OFP8" and "Microscaling
Formats" specifications, and Graphcore's formats with one zero, "fnuz").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .body import Ref

_INT, _FLOAT = torch.int32, torch.float32
_WIDTH, _BIAS = 23, 127  # of float32: bits of the mantissa, bias of the exponent
_INFINITE, _SIGN, _NAN = 0x7F800000, -(2**31), 0x7FC00000


@dataclass(frozen=True, slots=True)
class Format:
    """width: bits of the mantissa. limit: the magnitude from which on float32 becomes `above`, as bits. nan: its byte.
    one_zero: whether the byte of -0 is NaN."""

    width: int
    bias: int
    limit: int
    above: int
    nan: int
    one_zero: bool = False


def _beyond_448() -> int:
    """What torch makes of numbers that are too large for e4m3fn: the largest number in newer versions, before NaN."""
    with torch._C._InferenceMode(False), torch._C._DisableTorchDispatch():
        infinite = torch.tensor(math.inf, device="cpu").to(torch.float8_e4m3fn)
        return infinite.view(torch.uint8).item()  # type: ignore[return-value]


FORMATS = {
    torch.float8_e4m3fn: Format(3, 7, 0x43E80001, _beyond_448(), 0x7F),  # above 464, which is halfway to 480
    torch.float8_e5m2: Format(2, 15, 0x47800000, 0x7C, 0x7F),  # from 65536
    torch.float8_e4m3fnuz: Format(3, 8, 0x43800000, 0x80, 0x80, one_zero=True),  # from 256
    torch.float8_e5m2fnuz: Format(2, 16, 0x47800000, 0x80, 0x80, one_zero=True),
}
SCALES = torch.float8_e8m0fnu  # an exponent without a sign and a mantissa
BYTES = (*FORMATS, SCALES)


def is_float8(dtype: torch.dtype | None) -> bool:
    return dtype is SCALES or dtype in FORMATS


def widened(ops: Any, value: Ref) -> Ref:
    """The float32 number of an 8-bit float."""
    dtype = ops.dtype(value)
    byte = ops.to_dtype(ops.bitcast(value, torch.uint8), _INT)
    return _scale(ops, byte) if dtype is SCALES else _number(ops, byte, FORMATS[dtype])


def narrowed(ops: Any, value: Ref, dtype: torch.dtype) -> Ref:
    """The 8-bit float that is nearest to a float32 number."""
    bits = ops.bitcast(value, _INT)
    byte = _nearest_scale(ops, bits) if dtype is SCALES else _nearest(ops, bits, FORMATS[dtype])
    return ops.bitcast(ops.to_dtype(byte, torch.uint8), dtype)


def _number(ops: Any, byte: Ref, form: Format) -> Ref:
    number = _Ints(ops)
    magnitude = number.both(byte, 0x7F)
    shifted = number.left(magnitude, _WIDTH - form.width)
    normal = number.plus(shifted, (_BIAS - form.bias) << _WIDTH)
    if form.bias == 15:  # IEEE's: infinity and NaN
        normal = ops.where(number.at_least(magnitude, 0x7C), number.either(shifted, _INFINITE), normal)
    subnormal = ops.mul(ops.to_dtype(magnitude, _FLOAT), ops.constant(2.0 ** (1 - form.bias - form.width), _FLOAT))
    bits = ops.where(number.below(magnitude, 1 << form.width), ops.bitcast(subnormal, _INT), normal)
    bits = ops.bitwise_or(bits, number.left(number.both(byte, 0x80), 24))
    if form.bias != 15:
        is_nan = number.equal(byte if form.one_zero else magnitude, form.nan)
        bits = ops.where(is_nan, number.of(_NAN), bits)
    return ops.bitcast(bits, _FLOAT)


def _nearest(ops: Any, bits: Ref, form: Format) -> Ref:
    number, dropped = _Ints(ops), _WIDTH - form.width
    magnitude = number.both(bits, ~_SIGN)
    # Adding a number whose last place is the spacing of subnormals rounds to that spacing
    place = ops.constant(2.0 ** (_WIDTH + 1 - form.bias - form.width), _FLOAT)
    rounded = ops.bitcast(ops.add(ops.bitcast(magnitude, _FLOAT), place), _INT)
    subnormal = ops.sub(rounded, ops.bitcast(place, _INT))
    odd = number.both(number.right(magnitude, dropped), 1)
    raised = number.plus(ops.add(magnitude, odd), ((form.bias - _BIAS) << _WIDTH) + (1 << (dropped - 1)) - 1)
    least = (_BIAS + 1 - form.bias) << _WIDTH
    byte = ops.where(number.below(magnitude, least), subnormal, number.right(raised, dropped))
    sign = number.both(number.right(bits, 24), 0x80)
    if form.one_zero:
        sign = ops.where(number.equal(byte, 0), byte, sign)
    byte = ops.bitwise_or(byte, sign)
    above = number.of(form.above) if form.one_zero else number.either(sign, form.above)
    byte = ops.where(number.at_least(magnitude, form.limit), above, byte)
    if form.nan != form.above:
        byte = ops.where(number.at_least(magnitude, _INFINITE + 1), number.either(sign, form.nan), byte)
    return byte  # type: ignore[no-any-return]


def _scale(ops: Any, byte: Ref) -> Ref:
    number = _Ints(ops)
    bits = ops.where(number.equal(byte, 0), number.of(1 << (_WIDTH - 1)), number.left(byte, _WIDTH))
    return ops.bitcast(ops.where(number.equal(byte, 0xFF), number.of(_NAN), bits), _FLOAT)


def _nearest_scale(ops: Any, bits: Ref) -> Ref:
    """Ties go up, but for the smallest subnormal exponent."""
    number = _Ints(ops)
    exponent = number.both(number.right(bits, _WIDTH), 0xFF)
    rest = number.both(bits, (1 << _WIDTH) - 1)
    half = 1 << (_WIDTH - 1)
    above = ops.where(number.equal(exponent, 0), number.at_least(rest, half + 1), number.at_least(rest, half))
    up = ops.bitwise_and(above, number.below(exponent, 0xFF))
    return ops.add(exponent, ops.to_dtype(up, _INT))  # type: ignore[no-any-return]


class _Ints:
    """Operations on int32 values with a Python int on the right."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def of(self, number: int) -> Ref:
        return self.ops.constant(number, _INT)  # type: ignore[no-any-return]

    def _with(self, name: str, value: Ref, number: int) -> Ref:
        return self.ops.elementwise(name, value, self.of(number))  # type: ignore[no-any-return]

    def both(self, value: Ref, bits: int) -> Ref:
        return self._with("bitwise_and", value, bits)

    def either(self, value: Ref, bits: int) -> Ref:
        return self._with("bitwise_or", value, bits)

    def left(self, value: Ref, count: int) -> Ref:
        return self._with("lshift", value, count)

    def right(self, value: Ref, count: int) -> Ref:
        return self._with("rshift", value, count)

    def plus(self, value: Ref, number: int) -> Ref:
        return self._with("add", value, number)

    def equal(self, value: Ref, number: int) -> Ref:
        return self._with("eq", value, number)

    def below(self, value: Ref, number: int) -> Ref:
        return self._with("lt", value, number)

    def at_least(self, value: Ref, number: int) -> Ref:
        return self._with("ge", value, number)
