"""Known contents of small integer memory that is filled piece by piece, such as tables of sizes.

A fake tensor loses its known value when its memory is written. Here the memory itself is tracked, element by element,
through operators that overwrite parts of it with known numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from stator.prims.record import TensorMeta

from .fake_tensor import FakeStorage, FakeTensor, TrackedMemory

aten = torch.ops.aten

LARGEST = 256  # elements
_WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool))
UNINITIALIZED_FACTORIES = frozenset(
    (aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default)
)
_OVERWRITE = frozenset((aten.fill_.Scalar, aten.fill_.Tensor, aten.copy_.default, aten.zero_.default))


def track_factory(func: OpOverload, result: FakeTensor) -> None:
    """Track the memory of a new tensor if it is small, of an integer dtype and on the CPU."""
    meta = result.meta
    if meta.dtype not in _WHOLE or meta.device.type != "cpu":
        return
    if func not in UNINITIALIZED_FACTORIES and result.constant is None:
        return
    if meta.offset or any(type(size) is not int for size in (*meta.shape, *meta.stride)):
        return
    with torch._C._InferenceMode(False):
        flat = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
        count = flat.untyped_storage().nbytes() // flat.element_size()
        if not 0 < count <= LARGEST:
            return
        flat.zero_() if result.constant is None else flat.copy_(result.constant)
        flat = flat.as_strided((count,), (1,), 0)
        mask = torch.full((count,), result.constant is None)
    result.fake_storage.tracked = TrackedMemory(flat, mask, result.fake_storage.version)


def track_write(func: OpOverload, args: tuple[Any, ...], written: FakeTensor, version: int) -> None:
    """Track a write of `func` to a tensor whose storage had `version` before."""
    storage: FakeStorage = written.fake_storage
    memory = storage.tracked
    if memory is None:
        return
    storage.tracked = None
    if memory.version != version or func not in _OVERWRITE:
        return
    value = args[1] if len(args) > 1 else 0
    known_from: frozenset[Any] = frozenset()
    if isinstance(value, FakeTensor):
        known_from = value.known_from
        value = value.tracked_value()
    if type(value) not in (int, bool, float, torch.Tensor):
        return
    with torch._C._InferenceMode(False), torch.no_grad():
        if memory.write(written.meta, value, known_from):
            memory.version = storage.version
            storage.tracked = memory


def lies_within(base: FakeTensor, meta: TensorMeta) -> bool:
    """Whether the known contents of `base`, a tensor in memory of its own, hold each element of a view by strides."""
    known = base.tracked_value()
    if known is None or base.meta.offset or known.stride() != tuple(base.meta.stride):
        return False
    last = meta.offset + sum((size - 1) * stride for size, stride in zip(meta.shape, meta.stride, strict=True))
    return 0 in meta.shape or last < known.untyped_storage().nbytes() // known.element_size()


def origins(tensors: Sequence[FakeTensor]) -> frozenset[Any]:
    """What the known contents of these tensors rely on."""
    return frozenset().union(*[tensor.known_from for tensor in tensors if tensor.known_from])
