"""Proves over loop bodies that a kernel may write a buffer into the memory of another buffer that it reads."""

from __future__ import annotations

from stator.inductor.buffers import Buffer
from stator.inductor.loops.body import IndexRef, LoopBody, Op
from stator.inductor.schedule.groups import Group
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge

from .aliases import layout_bytes


def may_overwrite(group: Group, old: Buffer, new: Buffer, sizes: SizeKnowledge = NUMBERS_ONLY) -> bool:
    """True if `new` may take over the memory of `old`, which `group` reads and nothing reads afterwards.

    The proof: the iteration that writes an element also reads it, and reads it first. All accesses to both buffers have
    one common index, over the same parallel loops, and no load of `old` follows a store to `new`. Stores of parallel
    loops never meet, so no other iteration touches that element. The kernel must store nothing else: its pointers are
    declared not to alias, and a compiler may then read `old` again behind a store if it still needs the value.
    """
    if group.writes != (new.name,) or not _same_memory(old, new):
        return False
    index = loops = None
    stored = False
    for member in group.members:
        body = member.body
        for op in body.ops:
            name = op.args[0] if op.name in ("load", "store") else None
            if name not in (old.name, new.name):
                continue
            at = body.indices[_index_position(op)]
            if index is None:
                index, loops = at, (body.vars, body.ranges)
            if at is not index or loops != (body.vars, body.ranges) or not _plain(body, op, sizes):
                return False
            if op.name == "load" and (stored or name == new.name):
                return False
            stored = stored or op.name == "store"
    return stored


def _same_memory(old: Buffer, new: Buffer) -> bool:
    return (
        old.layout.dtype.itemsize == new.layout.dtype.itemsize
        and old.layout.device == new.layout.device
        and old.layout.offset == new.layout.offset
        and layout_bytes(old.layout) == layout_bytes(new.layout)
    )


def _index_position(op: Op) -> int:
    index = op.args[1]
    assert isinstance(index, IndexRef)
    return index.position


def _plain(body: LoopBody, op: Op, sizes: SizeKnowledge) -> bool:
    """True without reduction loops and accumulating stores, with an index over the parallel loops alone."""
    index = body.indices[_index_position(op)]
    accumulates = op.name == "store" and len(op.args) > 3 and op.args[3] is not None
    return not body.reduction_vars and not accumulates and sizes.loops_in(index) <= set(body.vars)
