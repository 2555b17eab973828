"""Decides which attention is a kernel of ours, and on which tiles, from its sizes. Prints nothing.

The numbers come from timings on an H100 (docs/gpu.md). They decide about speed alone. What was not timed
is left to ATen, or to separate kernels.
"""

from __future__ import annotations

import torch

from stator.inductor.buffers import Extern, Loops, Lowered
from stator.inductor.loops.body import IndexRef
from stator.inductor.schedule.groups import PRODUCTS, Attention, AttentionGroup, AttentionTile

_FEW, _SQUARE, _NEAR, _TALL, _WIDE = (
    AttentionTile(16, 128, 4, 2),
    AttentionTile(64, 64, 4, 3),
    AttentionTile(64, 64, 4, 2),
    AttentionTile(128, 64, 8, 3),
    AttentionTile(128, 64, 4, 2),
)
TILES = (_SQUARE, _FEW, _NEAR, _TALL, _WIDE)
_MULTIPROCESSORS = 132
_BUSY = 3 * _MULTIPROCESSORS  # programs that hide each other's loads

# Bounds of what was timed
_LEAST_ROWS, _MOST_KEYS_OF_FEW_ROWS, _MOST_KEYS = 16, 256, 4096
_MOST_WIDTH = {torch.bfloat16: 128, torch.float16: 128}
# Products of two numbers, in each of both products: with more than these, ATen's kernels are as quick
_MOST_WORK, _MOST_WORK_WITH_BIAS = 1 << 29, 1 << 32


def choose_attention(group: AttentionGroup, *, lowered: Lowered) -> AttentionTile | None:
    """The tile of a launch for this attention; None where separate kernels, or ATen's, are as quick."""
    attention = group.attention
    batch, rows, count = attention.batch, attention.rows, attention.count
    if not all(isinstance(size, int) for size in (batch, rows, count)) or not _is_measured(group, lowered):
        return None
    first = attention.steps[0]
    called = isinstance(first, Extern) and first.style == "returns"
    if count > _MOST_KEYS or (rows < _LEAST_ROWS and (count > _MOST_KEYS_OF_FEW_ROWS or not called)):
        return None
    if called:
        has_bias = any(op.name == "load" and op.args[0] != PRODUCTS for one in attention.scores for op in one.body.ops)
        work = batch * rows * count * max(attention.depth, attention.width)
        if work >= (_MOST_WORK_WITH_BIAS if has_bias else _MOST_WORK):
            return None
    return _tile(group)


def _is_measured(group: AttentionGroup, lowered: Lowered) -> bool:
    """True for the dtypes and the device that the numbers of this file are of (tests run kernels for it on the CPU),
    where programs read keys and values 16 bytes at a time."""
    attention = group.attention
    device = lowered.buffers[group.writes[0]].layout.device
    if device.type == "cuda" and torch.cuda.get_device_capability(device) != (9, 0):
        return False
    width = max(attention.depth, attention.width)
    if any(width > _MOST_WIDTH.get(dtype, 0) for dtype in attention.dtypes):
        return False
    return _reads_words(attention.keys, 1) and _reads_words(attention.values, 2)


def _reads_words(side: Loops, inner: int) -> bool:
    """True if a side's elements lie side by side along a loop, from multiples of 16 bytes on."""
    body = side.body
    for op in body.ops:
        if op.name == "load":
            place = op.args[1]
            assert isinstance(place, IndexRef)
            rest = body.indices[place.position] - body.vars[inner]
            if body.vars[inner] in rest.symbols or any(factor % 8 for factor in rest.terms().values()):
                return False
    return True


def _tile(group: AttentionGroup) -> AttentionTile:
    attention = group.attention
    programs = attention.batch * -(-attention.rows // _SQUARE.rows)
    if programs < _MULTIPROCESSORS and attention.count <= 128:
        return _FEW
    if programs < _BUSY:
        return _SQUARE
    if max(attention.depth, attention.width) > 64:
        return _WIDE
    if not _has_matrix(attention):
        return _SQUARE
    return _NEAR if attention.rows < 1024 else _TALL


def _has_matrix(attention: Attention) -> bool:
    """True if each score needs a number of its own from memory: a bias or a mask by rows and keys."""
    for one in attention.scores:
        body = one.body
        for op in body.ops:
            if op.name == "load" and op.args[0] != PRODUCTS:
                place = op.args[1]
                assert isinstance(place, IndexRef)
                if {body.vars[1], body.vars[2]} <= body.indices[place.position].symbols:
                    return True
    return False
