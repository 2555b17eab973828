"""Sample inputs of torch's operator database, in several memory layouts; which are left out, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64)
# jiterator compiles CUDA source.
OPERATORS = [op for op in op_db if "jiterator" not in op.name]
IDENTIFIERS = [f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name for op in OPERATORS]


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _reversed(tensor: torch.Tensor) -> torch.Tensor:
    """The outermost dimension innermost in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() >= 2 else tensor


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-2, -1).contiguous().transpose(-2, -1) if tensor.dim() >= 2 else tensor


def _gapped(tensor: torch.Tensor) -> torch.Tensor:
    """Every second element of a larger tensor."""
    return torch.stack([tensor, tensor], -1)[..., 0] if tensor.dim() else tensor


def _overlapping(tensor: torch.Tensor) -> torch.Tensor:
    """The first row again and again, in the memory of one."""
    return tensor[:1].expand_as(tensor) if tensor.dim() and tensor.shape[0] > 1 else tensor


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "channels_last": _channels_last,
    "reversed": _reversed,
    "transposed": _transposed,
    "gapped": _gapped,
    "overlapping": _overlapping,
}


def samples(
    op: Any, count: int, dtypes: tuple[torch.dtype, ...] = DTYPES, device: str = "cpu"
) -> Iterator[tuple[Any, Any, Any]]:
    """(input, args, kwargs) of the first `count` samples of each dtype the operator supports on a device, but for those
    that ask for another accelerator.

    Not by `op.sample_inputs`, which walks the call stack for each.
    """
    for dtype in dtypes:
        if dtype in op.supported_dtypes(device):
            for index, sample in enumerate(op.sample_inputs_func(op, device, dtype, False)):
                if index == count:
                    break
                if torch.device(sample.kwargs.get("device", None) or "cpu").type not in ("cpu", device):
                    continue
                yield sample.input, sample.args, sample.kwargs


def laid_out(sample: tuple[Any, Any, Any], layout: str) -> tuple[Any, Any, Any]:
    """The sample with every strided tensor copied to a layout."""
    change = LAYOUTS[layout]

    def leaf(value: Any) -> Any:
        return change(value) if isinstance(value, torch.Tensor) and value.layout is torch.strided else value

    with torch.no_grad():
        return tree_map(leaf, sample)
