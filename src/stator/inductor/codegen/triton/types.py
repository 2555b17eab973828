"""dtypes and numbers in generated Triton."""

from __future__ import annotations

import math

import torch

from stator.base.errors import CompileError
from stator.inductor.loops.float8 import BYTES, is_float8

# dtype: (name in tl, name in a kernel's signature)
_NAMES = {
    torch.float32: ("float32", "fp32"),
    torch.float64: ("float64", "fp64"),
    torch.float16: ("float16", "fp16"),
    torch.bfloat16: ("bfloat16", "bf16"),
    torch.int64: ("int64", "i64"),
    torch.int32: ("int32", "i32"),
    torch.int16: ("int16", "i16"),
    torch.int8: ("int8", "i8"),
    torch.uint8: ("uint8", "u8"),
    torch.bool: ("int1", "i1"),
    **dict.fromkeys(BYTES, ("uint8", "u8")),
}


def type_name(dtype: torch.dtype) -> str:
    return f"tl.{_names(dtype)[0]}"


def pointer_type(dtype: torch.dtype) -> str:
    return f"*{_names(dtype)[1]}"


def _names(dtype: torch.dtype) -> tuple[str, str]:
    found = _NAMES.get(dtype)
    if found is None:
        raise CompileError("inductor", f"generated Triton kernels do not support {dtype}")
    return found


def number(value: float | int | bool, dtype: torch.dtype) -> str:
    """A Python literal of the dtype's kind: float, int or bool."""
    if dtype is torch.bool:
        return str(bool(value))
    if is_float8(dtype):  # kernels see bytes
        assert value == 0
        return "0"
    if not dtype.is_floating_point:
        return str(int(value))
    value = float(value)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A scalar of exactly this dtype."""
    return f"tl.full([], {number(value, dtype)}, {type_name(dtype)})"


def identity(kind: str, dtype: torch.dtype) -> str:
    """The neutral element of a reduction or scan, as a literal."""
    if kind in ("sum", "xor_sum", "any"):
        return number(0, dtype)
    if kind in ("prod", "all"):
        return number(1, dtype)
    lowest = kind in ("max", "argmax", "logsumexp")
    if dtype is torch.bool:
        return str(not lowest)
    if dtype.is_floating_point:
        return number(-math.inf if lowest else math.inf, dtype)
    limits = torch.iinfo(dtype)
    return str(limits.min if lowest else limits.max)
