"""Divides the depth of a product between programs: each stores sums of its own, in float32, and the loops that read the
product add them up in a fixed order. No atomics, and no launch more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.inductor.buffers import Buffer, Extern, Layout, Loops, Lowered
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.prims.layout import contiguous_strides
from stator.shapes.expr import Expr

from .accesses import extern_reads, names_in, summarize
from .groups import Group, Matrices, ProductGroup, TiledGroup

Steps = list[Group | Extern]


def may_share_depth(group: ProductGroup, readers: Mapping[str, Sequence[Group | Extern]], lowered: Lowered) -> bool:
    """True if the launch makes one product without a bias that loops alone read, each group in one place.

    readers: the steps that read each buffer."""
    products = group.products
    if len(products.parts) != 1 or len(group.members) != 1 or products.batch != 1 or len(group.writes) != 1:
        return False
    if products.ends is not None or products.windows is not None:
        return False
    result = group.writes[0]
    if {op.name for op in group.members[0].body.ops} != {"load", "to_dtype", "store"}:
        return False
    if result in names_in(lowered.outputs):
        return False
    steps = readers.get(result, ())
    return bool(steps) and all(isinstance(step, Group) and _reads_once(step, result) for step in steps)


def _reads(step: Group | Extern) -> set[str]:
    return set(step.reads) if isinstance(step, Group) else extern_reads(step)


def _reads_once(group: Group, name: str) -> bool:
    """True if loops load the buffer at one index without a mask, and no product has it as a side."""
    if isinstance(group, TiledGroup) or any(
        op.name == "indirect" for member in group.members for op in member.body.ops
    ):
        return False  # symbols of indirect indices are positions of operations
    loads = {access for member in group.members for access in summarize(member).loads if access.buffer == name}
    return len({access.index for access in loads}) == 1 and all(access.plain for access in loads)


def with_shared_depth(steps: Steps, group: ProductGroup, buffers: dict[str, Buffer]) -> Steps:
    """Steps in which programs share the depth of the group's product as its tile says. Adds the buffer of sums."""
    products = group.products
    assert products.tile is not None
    result, split = group.writes[0], products.tile.split
    layout = buffers[result].layout
    size = (split, products.rows, products.parts[0].columns)
    sums = f"{result}_in_{split}_sums"
    buffers[sums] = Buffer(sums, Layout(size, contiguous_strides(size), torch.float32, layout.device))
    made = _divided(group, sums)
    distance = products.rows * products.parts[0].columns
    return [
        made if step is group else _adding_up(step, result, sums, split, distance) if result in _reads(step) else step
        for step in steps
    ]


def _divided(group: ProductGroup, sums: str) -> ProductGroup:
    products = group.products
    part = products.parts[0]
    assert products.tile is not None
    split = products.tile.split
    depth = products.depth // split
    body = group.members[0].body
    batch = body.vars[0]
    index = body.indices[0] + batch * (products.rows * part.columns)
    ops = (body.ops[0], Op("store", (sums, IndexRef(0), Ref(0), None, None), None))
    ranges = (split, *body.ranges[1:])
    member = replace(group.members[0], outputs=(sums,), body=LoopBody(body.vars, ranges, (), (), (index,), ops))

    def divided(side: Matrices, along: int) -> Matrices:
        return replace(side, strides=(side.strides[along] * depth, *side.strides[1:]))

    rights = tuple([divided(right, 1) for right in part.rights])
    parts = (replace(part, rights=rights, epilogue=(member,)),)
    changed = replace(products, left=divided(products.left, 2), batch=split, depth=depth, parts=parts)
    return replace(group, members=(member,), writes=(sums,), products=changed)


def _adding_up(step: Group | Extern, result: str, sums: str, split: int, distance: Any) -> Group:
    """The group with a sum of loads in place of each load of the product, rounded as the product would be."""
    assert isinstance(step, Group)
    members = tuple([_with_sums(member, result, sums, split, distance) for member in step.members])
    reads = tuple([sums if name == result else name for name in step.reads])
    return replace(step, members=members, reads=reads)


def _with_sums(member: Loops, result: str, sums: str, split: int, distance: Any) -> Loops:
    body = member.body
    indices: list[Expr] = list(body.indices)
    ops: list[Op] = []
    places: list[int] = []  # of the old operations among the new ones

    for op in body.ops:
        if op.name == "load" and op.args[0] == result:
            first = body.indices[op.args[1].position]  # type: ignore[union-attr]
            for at in range(split):
                indices.append(first + distance * at)
                ops.append(Op("load", (sums, IndexRef(len(indices) - 1), None, 0), torch.float32))
                if at:
                    ops.append(Op("add", (Ref(len(ops) - 2), Ref(len(ops) - 1)), torch.float32))
            ops.append(Op("to_dtype", (Ref(len(ops) - 1), op.dtype), op.dtype))
        else:
            args = tuple([Ref(places[arg.position]) if isinstance(arg, Ref) else arg for arg in op.args])
            ops.append(replace(op, args=args))
        places.append(len(ops) - 1)
    return replace(member, body=replace(body, indices=tuple(indices), ops=tuple(ops)))
