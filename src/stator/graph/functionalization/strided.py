"""Records `as_strided`, which addresses the storage of its argument and not the argument."""

from __future__ import annotations

from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.ir.schema import op_info
from stator.graph.ir.traced import ViewStep
from stator.prims.record import TensorMeta

from .views import REINTERPRETING, covers

aten = torch.ops.aten


def record_as_strided(tracer: Any, meta: TensorMeta, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeTensor:
    """Record as_strided on the owner of the storage, because as_strided reads the storage and not its argument."""
    base = args[0]
    storage = base.fake_storage
    offset: Any = meta.offset
    placed = bool(base.steps) or (args[3] if len(args) > 3 else kwargs.get("storage_offset")) is not None
    if placed and any(step.func in REINTERPRETING for step in base.steps):
        raise Unsupported("as-strided", "as_strided with an offset into memory of another dtype")
    if id(storage) in tracer.input_storages:
        if not covers(storage.meta, meta):
            raise Unsupported("as-strided", "as_strided reads memory that an input does not cover")
        if placed and storage.meta.offset != 0:
            raise Unsupported("as-strided", "as_strided with an offset into memory that an input is a part of")
        if placed:
            tracer.fixed_offsets.add(tracer.input_storages[id(storage)])
        else:
            offset = None
    elif storage.meta.offset != 0:
        if placed:
            raise Unsupported("as-strided", "as_strided with an offset into memory whose beginning is not known")
        offset = None
    owner = tracer.storage_value(storage)
    node = tracer._node(op_info(aten.as_strided.default), (owner, meta.shape, meta.stride, offset), {})
    node.meta["val"] = meta
    step = ViewStep(aten.as_strided.default, (meta.shape, meta.stride, offset), {}, storage.meta, meta)
    fake = FakeTensor(tracer, meta, storage)
    fake.detached, fake.is_data = base.detached, base.is_data
    return tracer.bind(fake, node, (step,))
