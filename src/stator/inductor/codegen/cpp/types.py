"""dtypes in generated C++: in memory, and in scalar and vector registers. The names are those of vec.h."""

from __future__ import annotations

import math

import torch

from stator.base.errors import CompileError
from stator.inductor.loops.float8 import BYTES, is_float8

MEMORY = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
    **dict.fromkeys(BYTES, "uint8_t"),
}

KIND = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f32",
    torch.bfloat16: "f32",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i32",
    torch.int8: "i32",
    torch.uint8: "i32",
    torch.bool: "bool",
    **dict.fromkeys(BYTES, "i32"),
}

SCALAR = {"f32": "float", "f64": "double", "i64": "int64_t", "i32": "int32_t", "bool": "bool"}
# lanes of a vector that estimates assume; the text of kernels works for any number
LANES = 16
VECTOR = {"f32": "vf32", "f64": "vf64", "i64": "vi64", "i32": "vi32", "bool": "mask"}

# the function that rounds or wraps a register back to the values of its dtype
NARROW = {
    torch.float16: "round_f16",
    torch.bfloat16: "round_bf16",
    torch.int16: "wrap_i16",
    torch.int8: "wrap_i8",
    torch.uint8: "wrap_u8",
}


def memory_type(dtype: torch.dtype) -> str:
    found = MEMORY.get(dtype)
    if found is None:
        raise CompileError("inductor", f"generated C++ kernels do not support {dtype}")
    return found


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A constant in the register type of `dtype`."""
    kind = KIND[dtype]
    assert not is_float8(dtype) or value == 0  # kernels see bytes
    if kind == "bool":
        return "true" if value else "false"
    if kind == "i32":
        return f"(int32_t){int(value)}" if value != -(2**31) else "(int32_t)0x80000000"
    if kind == "i64":
        return f"(int64_t){int(value)}ll" if value != -(2**63) else "(int64_t)0x8000000000000000ull"
    suffix = "f" if kind == "f32" else ""
    number = float(value)
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
    return f"{number!r}{suffix}"


_LIMITS = {
    torch.int64: (-(2**63), 2**63 - 1),
    torch.int32: (-(2**31), 2**31 - 1),
    torch.int16: (-(2**15), 2**15 - 1),
    torch.int8: (-(2**7), 2**7 - 1),
    torch.uint8: (0, 255),
    torch.bool: (0, 1),
}


def identity(kind: str, dtype: torch.dtype) -> str:
    """The neutral element of a reduction or scan."""
    low, high = _LIMITS.get(dtype, (-math.inf, math.inf))
    neutral = {
        "sum": 0,
        "prod": 1,
        "xor_sum": 0,
        "any": 0,
        "all": 1,
        "max": low,
        "min": high,
        "argmax": low,
        "argmin": high,
        "logsumexp": low,
    }
    return literal(neutral[kind], dtype)


# the functions that combine two results of a reduction or scan
COMBINE = {
    "sum": "op_add",
    "prod": "op_mul",
    "max": "op_maximum",
    "min": "op_minimum",
    "any": "op_bitwise_or",
    "all": "op_bitwise_and",
    "xor_sum": "op_bitwise_xor",
    "logsumexp": "op_logaddexp",
}


# Of stores that combine the value with the content of memory
COMBINE_STORED = {"max": "op_maximum", "min": "op_minimum", "mul": "op_mul", "row_sum": "op_add"}
