"""Half floats that a kernel only moves are integers to it: nothing converts them, and NaN keeps its bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stator.inductor.buffers import Buffer
from stator.inductor.codegen.kernel import Kernel, KernelValue

_HALVES = (torch.float16, torch.bfloat16)
_MOVING = ("load", "where", "constant")


def move_halves(kernel: Kernel, pointers: Mapping[str, str], buffers: Mapping[str, Buffer]) -> frozenset[str]:
    """Make int16 of the half floats in memory that all values of the kernel load, select and store, but never compute
    with. Returns the pointers to this memory."""
    values = kernel.values
    moved = {at for at, value in enumerate(values) if value.dtype in _HALVES and value.name in _MOVING}
    memory = {pointers[name] for name in pointers if buffers[name].layout.dtype in _HALVES}
    while moved and memory:
        kept = {at for at in moved if values[at].name != "load" or pointers[values[at].args[0]] in memory}
        for at, value in enumerate(values):
            operands = set(kernel.operands(value.args[1:] if value.name == "where" else value.args))
            if value.name != "where" or at not in kept:
                kept -= operands
            elif not operands <= kept:
                kept.discard(at)
        still = {pointers[v.args[0]] for at, v in enumerate(values) if v.name == "load" and at not in kept}
        for store in kernel.stores:
            if store.mode is None and pointers[store.buffer] in memory and store.value in kept:
                continue
            kept.discard(store.value)
            still.add(pointers[store.buffer])
        if kept == moved and not memory & still:
            break
        moved, memory = kept, memory - still
    if not moved or not memory:
        return frozenset()
    for at in moved:
        values[at] = _as_integer(values[at])
    return frozenset(memory)


def _as_integer(value: KernelValue) -> KernelValue:
    args = value.args
    if value.name == "constant":
        args = (_bits(args[0], value.dtype), torch.int16)
    elif value.name == "load" and args[2] is not None:
        args = (*args[:3], _bits(args[3], value.dtype))
    return KernelValue(value.name, args, torch.int16, value.loops, value.phase)


def _bits(number: float, dtype: torch.dtype) -> int:
    return int(torch.tensor(number, dtype=dtype, device="cpu").view(torch.int16))
