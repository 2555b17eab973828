"""From the fake tensors that the traced code returns, to graph outputs and a description of how to make the user's.

Decides by storages (who shares memory with whom), never by graph values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from stator.base.errors import Unsupported
from stator.prims.record import TensorMeta

from .fake import FakeTensor
from .memory import memory_root
from .recording import Tracer
from .traced import Fresh, Geometry, InputItself, Output, SameAs, Value, ViewOfConstant, ViewOfInput, ViewOfOutput
from .views import REINTERPRETING

aten = torch.ops.aten


class _Outputs:
    """The values the graph returns, while they are being collected."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.values: list[FakeTensor] = []
        self.positions: dict[int, int] = {}  # id(fake) -> position in values
        self.owners: dict[fx.Node, int] = {}  # memory of the graph -> id of the storage that may be returned in it

    def position(self, fake: FakeTensor) -> int:
        """Where the graph returns this tensor, appended when it does not yet."""
        found = self.positions.get(id(fake))
        if found is None:
            found = self.positions[id(fake)] = len(self.values)
            self._own_memory(fake)
            self.tracer.current(fake)
            self.values.append(fake)
        return found

    def _own_memory(self, fake: FakeTensor) -> None:
        """Make sure that the graph does not return an input's, a constant's or another output's memory for it."""
        root = memory_root(self.tracer.current(fake))
        storage = fake.fake_storage
        taken = root.op in ("placeholder", "get_attr") or self.owners.setdefault(root, id(storage)) != id(storage)
        if not taken:
            return
        tracer = self.tracer
        owner = tracer.storage_value(storage)
        copy = tracer.laid_out(tracer.apply(aten.clone.default, owner), storage.meta)
        storage.node = copy.node
        storage.version += 1
        self.owners[memory_root(copy.node)] = id(storage)


def describe_outputs(
    tracer: Tracer, leaves: Sequence[Any]
) -> tuple[list[FakeTensor], list[tuple[int, int]], list[Output]]:
    """The values the graph must return, (input index, position) of mutated inputs, and the user's outputs."""
    collected = _Outputs(tracer)
    leaves = [tracer.constant(leaf) if _is_real(leaf) else leaf for leaf in leaves]
    sharing = _fresh_sharing(tracer, leaves)
    first: dict[int, int] = {}
    outputs: list[Output] = []
    for position, leaf in enumerate(leaves):
        earlier = first.setdefault(id(leaf), position) if isinstance(leaf, FakeTensor) else position
        outputs.append(SameAs(earlier) if earlier != position else _describe(tracer, collected, leaf, sharing))
    mutated = _mutated_inputs(tracer, collected)
    return collected.values, mutated, outputs


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)


def _fresh_sharing(tracer: Tracer, leaves: Sequence[Any]) -> dict[int, list[FakeTensor]]:
    """Distinct output tensors by the id of their storage, for storages that are neither inputs nor constants."""
    sharing: defaultdict[int, list[FakeTensor]] = defaultdict(list)
    for leaf in leaves:
        if isinstance(leaf, FakeTensor) and not any(other is leaf for other in sharing[id(leaf.fake_storage)]):
            sharing[id(leaf.fake_storage)].append(leaf)
    return sharing


def _describe(tracer: Tracer, collected: _Outputs, leaf: Any, sharing: dict[int, list[FakeTensor]]) -> Output:
    if not isinstance(leaf, FakeTensor):
        return Value(leaf)
    if leaf.requires_grad:
        raise Unsupported("requires-grad-output", "the traced code makes a tensor that requires grad")
    storage = leaf.fake_storage
    constant = tracer.constant_storages.get(id(storage))
    if constant is not None:
        itself = tracer.constant(constant) is leaf
        return ViewOfConstant(constant, None if itself else geometry(storage.meta, leaf))
    index = tracer.input_storages.get(id(storage))
    if index is not None:
        if tracer.inputs[index] is leaf:
            return InputItself(index)
        return ViewOfInput(index, geometry(storage.meta, leaf))
    group = sharing[id(storage)]
    if len(group) == 1:
        position = collected.position(leaf)
        if leaf.node.meta["val"].stride == leaf.meta.stride:
            return Fresh(position)
        # strides of dimensions of size one: they hold no meaning, but eager shows them
        return ViewOfOutput(position, Geometry(leaf.meta.shape, leaf.meta.stride, 0))
    base = next((fake for fake in group if not fake.steps and fake.meta.stride == storage.meta.stride), None)
    if base is None:
        base = tracer.storage_value(storage)
        base.fake_storage, base.seen = storage, storage.version
        group.append(base)
    position = collected.position(base)
    return Fresh(position) if leaf is base else ViewOfOutput(position, geometry(storage.meta, leaf))


def geometry(base: TensorMeta, view: FakeTensor) -> Geometry:
    """How to see a tensor laid out as `base` as `view`, which shares its storage."""
    meta = view.meta
    steps = view.steps if any(step.func in REINTERPRETING for step in view.steps) else ()
    return Geometry(meta.shape, meta.stride, meta.offset - base.offset if not steps else 0, steps)


def _mutated_inputs(tracer: Tracer, collected: _Outputs) -> list[tuple[int, int]]:
    changed = {
        index: tracer.storage_value(tracer.inputs[index].fake_storage)
        for index in tracer.input_storages.values()
        if tracer.inputs[index].fake_storage.node is not tracer.input_nodes[index]
    }
    written = {tracer.input_nodes[index] for index in changed}
    mutated = []
    for index, value in changed.items():
        if any(stride == 0 and size > 1 for size, stride in zip(value.meta.shape, value.meta.stride, strict=True)):
            raise Unsupported("overlapping-input", "the traced code writes to an input that is expanded")
        if memory_root(value.node) in written:
            # the new contents are copied in one after the other: none may be read from memory that is overwritten
            value = tracer.apply(aten.clone.default, value)
        mutated.append((index, len(collected.values)))
        collected.values.append(value)
    return mutated
