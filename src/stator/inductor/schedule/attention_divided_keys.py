"""Divides the keys of attention between programs, where there are too few rows and heads to fill a device (T. Dao et
al., Flash-Decoding, 2023). Each program stores its largest score, its sum of powers and its weighted values; loops
behind join these in a fixed order, without atomics. attention.py uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from stator.inductor.buffers import Buffer, Layout, Loops, Lowered
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.inductor.loops.handler import freeze
from stator.prims.layout import contiguous_strides

from .groups import WEIGHTED, Attention
from .product_calls import LOOPS
from .regroup import INNER, substitute_loops

_PART = INNER[0]


@dataclass(frozen=True, slots=True)
class DividedKeys:
    """launch: attention whose epilogue stores parts. members: loops over (batch, row, width) that join the parts and
    compute the epilogue of the whole; those that reduce do so over `parts`. hidden: buffers that they alone use."""

    launch: Attention
    members: tuple[Loops, ...]
    hidden: frozenset[str]


def divide_keys(attention: Attention, name: str, lowered: Lowered, buffers: dict[str, Buffer]) -> DividedKeys:
    """Attention as launch and loops, whose programs share keys as its tile says. Adds the buffers between them."""
    assert attention.tile is not None
    parts = attention.tile.parts
    batch, rows, width = ranges = (attention.batch, attention.rows, attention.width)
    device = buffers[attention.epilogue[-1].outputs[0]].layout.device

    def buffer(kind: str, *size: Any) -> str:
        made = f"{name}_{kind}"
        buffers[made] = Buffer(made, Layout(size, contiguous_strides(size), torch.float32, device))
        return made

    weighted, *statistics = [
        buffer("weighted", batch, parts, rows, width),
        buffer("largest", batch, parts, rows),
        buffer("total", batch, parts, rows),
    ]
    largest, joined = buffer("joined_largest", *ranges), buffer("joined", *ranges)
    head, row, column = LOOPS
    place = (head * rows + row) * width + column
    of_part = (head * parts + _PART) * rows + row

    def find_largest(ops: Any) -> None:
        ops.store(largest, place, ops.reduce("max", ops.load(statistics[0], of_part)))

    def join(ops: Any) -> None:
        zero = ops.constant(0.0, torch.float32)
        most = ops.load(largest, place)
        shift = ops.where(ops.eq(most, ops.constant(-math.inf, torch.float32)), zero, most)
        factor = ops.exp(ops.sub(ops.load(statistics[0], of_part), shift))
        values = ops.reduce("sum", ops.mul(factor, ops.load(weighted, of_part * width + column)))
        total = ops.reduce("sum", ops.mul(factor, ops.load(statistics[1], of_part)))
        if attention.hidden_rows_are_zero:
            total = ops.where(ops.eq(total, zero), ops.constant(1.0, torch.float32), total)
        ops.store(joined, place, ops.div(values, total))

    def reducing(target: str, function: Any) -> Loops:
        dtype_of = lambda one: buffers[one].layout.dtype  # noqa: E731
        return Loops((target,), freeze(function, LOOPS, ranges, (_PART,), (parts,), dtype_of, lowered.sizes))

    behind = [_behind(loops, joined, place) for loops in attention.epilogue]
    moved = [
        substitute_loops(one, dict(zip(one.body.vars, LOOPS, strict=True)), LOOPS, ranges, (), (), lowered.sizes)
        for one in behind
    ]
    launch = replace(attention, epilogue=(_stored(attention, weighted),), statistics=tuple(statistics))
    members = reducing(largest, find_largest), reducing(joined, join), *moved
    return DividedKeys(launch, members, frozenset((largest, joined)))


def _stored(attention: Attention, results: str) -> Loops:
    """Loops that store the weighted values of a part. The first counts batches and parts."""
    assert attention.tile is not None
    variables = attention.epilogue[0].body.vars
    ranges = (attention.batch * attention.tile.parts, attention.rows, attention.width)
    head, row, column = variables
    index = (head * attention.rows + row) * attention.width + column
    load = Op("load", (WEIGHTED, IndexRef(0), None, 0), torch.float32)
    store = Op("store", (results, IndexRef(0), Ref(0), None, None), None)
    return Loops((results,), LoopBody(variables, ranges, (), (), (index,), (load, store)))


def _behind(loops: Loops, joined: str, place: Any) -> Loops:
    """Loops of an epilogue that load the joined values instead of a tile's."""
    body = loops.body
    at = IndexRef(len(body.indices))
    ops = [
        replace(op, args=(joined, at, *op.args[2:])) if op.name == "load" and op.args[0] == WEIGHTED else op
        for op in body.ops
    ]
    index = place.substitute(dict(zip(LOOPS, body.vars, strict=True)))
    return replace(loops, body=replace(body, indices=(*body.indices, index), ops=tuple(ops)))
