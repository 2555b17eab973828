"""torch's settings, of the process, by which ATen chooses an attention kernel: which are allowed, and in what order.

A traced graph names the kernel that was chosen, so each trace of a program needs the settings of its first trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

# Functions that call a kernel of ATen's choice.
CHOOSES_ATTENTION = frozenset(
    (
        F.scaled_dot_product_attention,
        F.multi_head_attention_forward,
        torch.ops.aten.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
    )
)
_order_is_settled = False


def kernel_order() -> tuple[int, ...]:
    """The order in which ATen tries attention kernels.

    ATen replaces the order by one for the GPU when it first chooses a kernel there. Let it do so now: otherwise the
    order would seem to be changed by the program that is the first to have attention.
    """
    global _order_is_settled
    if not _order_is_settled and torch.cuda.is_initialized():
        _choose_a_kernel(torch.device("cuda", torch.cuda.current_device()))
        _order_is_settled = True
    return tuple(torch._C._get_sdp_priority_order())


def _choose_a_kernel(device: torch.device) -> None:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        tensor = torch.empty((1, 1, 2, 8), dtype=torch.float16, device=device)
        torch._fused_sdp_choice(tensor, tensor, tensor)


def _settings() -> Iterator[tuple[Callable[[], Any], Callable[[Any], None]]]:
    for name in ("cudnn", "flash", "mem_efficient", "math", "overrideable"):
        read = getattr(torch._C, f"_get_{name}_sdp_enabled", None)
        write = getattr(torch._C, f"_set_sdp_use_{name}", None)
        if read is not None and write is not None:
            yield read, write
    if hasattr(torch._C, "_set_sdp_priority_order"):
        yield kernel_order, torch._C._set_sdp_priority_order


SETTINGS = tuple(_settings())  # (getter, setter) of what this build of torch has
_READERS = tuple([read for read, _ in SETTINGS])


def attention_settings() -> tuple[Any, ...]:
    """The present settings, in the order of SETTINGS."""
    return tuple([read() for read in _READERS])


@contextmanager
def under_attention_settings(wanted: tuple[Any, ...]) -> Iterator[None]:
    """Inside of the block, ATen chooses kernels by the settings `wanted`. Settings that are equal stay untouched."""
    found = attention_settings()
    changed = [at for at, one in enumerate(found) if one != wanted[at]]
    try:
        for at in changed:
            SETTINGS[at][1](wanted[at])
        yield
    finally:
        for at in changed:
            SETTINGS[at][1](found[at])
