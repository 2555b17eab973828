"""One-line texts of tensor metas: `f32[2, 3]`, with strides, offset and device only if they are not the default."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import always_equal, contiguous_strides
from stator.prims.record import TensorMeta

DTYPE_NAMES = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "b8",
}


def format_meta(meta: Any) -> str:
    """Format a TensorMeta, a tuple or list of them, or a Python value."""
    if isinstance(meta, TensorMeta):
        return _format_tensor(meta)
    if isinstance(meta, (tuple, list)):
        return f"({', '.join(format_meta(item) for item in meta)})"
    return repr(meta)


def _format_tensor(meta: TensorMeta) -> str:
    name = DTYPE_NAMES.get(meta.dtype, str(meta.dtype).removeprefix("torch."))
    text = f"{name}[{', '.join(str(size) for size in meta.shape)}]"
    if not always_equal(meta.stride, contiguous_strides(meta.shape)):
        text += f" strides ({', '.join(str(stride) for stride in meta.stride)})"
    if not (isinstance(meta.offset, int) and meta.offset == 0):
        text += f" offset {meta.offset}"
    if meta.device.type != "cpu":
        text += f" {meta.device}"
    return text
