"""What eager computes by oneDNN: the program's setting, and the half floats that this processor supports."""

from __future__ import annotations

import torch

HALF_WIDTH = {
    torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
    torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
}


def onednn_enabled() -> bool:
    """Return the program's setting."""
    return torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()


def is_half_float(dtype: torch.dtype) -> bool:
    """Return whether this is a half float that oneDNN computes with on this processor, as the program allows now."""
    return dtype in HALF_WIDTH and onednn_enabled() and HALF_WIDTH[dtype]()
