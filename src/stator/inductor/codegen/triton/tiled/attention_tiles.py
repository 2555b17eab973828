"""Decides which attention is a kernel of ours, and on which tiles, from its sizes. Prints nothing.

The numbers come from timings on an H100 (docs/gpu.md). They decide about speed alone. `_launch_is_quicker` compares a
launch with ATen's kernels, also for attention by hand before it is lowered, which may become a call. Attention by hand
that is lowered, because no call is quicker or possible, becomes a launch: separate kernels take longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from stator.inductor.buffers import Extern, Loops, Lowered
from stator.inductor.loops.body import IndexRef
from stator.inductor.schedule.groups import PRODUCTS, Attention, AttentionGroup, AttentionTile

_FEW, _LONG, _SQUARE, _NEAR, _TALL, _WIDE = (
    AttentionTile(16, 128, 4, 2),
    AttentionTile(16, 64, 4, 3),
    AttentionTile(64, 64, 4, 3),
    AttentionTile(64, 64, 4, 2),
    AttentionTile(128, 64, 8, 3),
    AttentionTile(128, 64, 4, 2),
)
_SINGLE, _SQUARE_SINGLE = AttentionTile(32, 64, 4, 2), AttentionTile(64, 64, 4, 2)  # of float32
TILES = (_SQUARE, _FEW, _NEAR, _TALL, _WIDE, _LONG, replace(_FEW, parts=8), replace(_SQUARE, parts=3))
TILES_OF_FLOAT32 = (_SINGLE, _SQUARE_SINGLE, _FEW)
_MULTIPROCESSORS = 132
_BUSY = 3 * _MULTIPROCESSORS  # programs that hide each other's loads
_MANY = 512  # programs of float32
_SHORTEST_PART = 256  # keys, of tiles with many rows

# Bounds of what was timed
_MOST_KEYS = 4096
_WORD = 8  # elements of a half float that one access reads
_MOST_WIDTH = {torch.bfloat16: 128, torch.float16: 128, torch.float32: 128}
# Products of two numbers, in each of both products: with more than these, other kernels are as quick
_MOST_WORK, _MOST_WORK_WITH_BIAS, _MOST_WORK_OF_FLOAT32 = 1 << 29, 1 << 32, 1 << 31
_MOST_ROWS_OF_GRADIENTS, _WIDEST_OF_GRADIENTS = 128, 64
_SPLIT_ROW = 32768  # keys, from which on lowering splits a softmax, so that a launch is found for a call alone
_LEAST_SCORES = 1 << 21  # from which on ATen's kernels are quicker than products and a softmax
_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """batch: of heads. count: of keys. depth: of a query; width: of a value. biased: scores are not only scaled."""

    batch: int
    rows: int
    count: int
    depth: int
    width: int
    dtype: torch.dtype
    biased: bool

    @property
    def work(self) -> int:
        """Products of two numbers, in the larger one of both products."""
        return self.batch * self.rows * self.count * max(self.depth, self.width)

    def programs(self, tile: AttentionTile) -> int:
        return self.batch * -(-self.rows // tile.rows)


def library_is_quicker(
    device: torch.device, dtype: torch.dtype, numbers: tuple[int, int, int, int, int], biased: bool, tracked: bool
) -> bool:
    """Whether attention that is written by hand takes least time as a call of ATen's kernels. numbers: (batch of heads,
    rows, keys, depth, width). tracked: gradients may flow through it."""
    sizes = AttentionSizes(*numbers, dtype, biased)
    if tracked or dtype not in _HALVES or (sizes.count < _SPLIT_ROW and _launch_is_quicker(sizes, device)):
        return False
    return sizes.batch * sizes.rows * sizes.count >= _LEAST_SCORES


def _launch_is_quicker(sizes: AttentionSizes, device: torch.device) -> bool:
    """Whether a launch takes less time than ATen's kernels."""
    if not _is_measured(sizes, device):
        return False
    if sizes.dtype is torch.float32:
        return sizes.work <= _MOST_WORK_OF_FLOAT32 and (sizes.rows > _FEW.rows or sizes.count <= _SHORTEST_PART)
    if sizes.rows <= _FEW.rows or _idles(_SQUARE, sizes):
        return True
    return sizes.count <= _MOST_KEYS and sizes.work < (_MOST_WORK_WITH_BIAS if sizes.biased else _MOST_WORK)


def _idles(tile: AttentionTile, sizes: AttentionSizes) -> bool:
    """Whether most of the device has nothing to do, so that programs share the keys of a row."""
    return 4 * sizes.programs(tile) <= _MULTIPROCESSORS and sizes.count >= 2 * _SHORTEST_PART


def _is_measured(sizes: AttentionSizes, device: torch.device) -> bool:
    """True for what the numbers of this file are of (tests run kernels for it on the CPU). The weight of a single key
    is one: there is nothing to multiply."""
    if sizes.count == 1:
        return False
    if device.type == "cuda" and torch.cuda.get_device_capability(device) != (9, 0):
        return False
    widths = sizes.depth, sizes.width
    return max(widths) <= _MOST_WIDTH.get(sizes.dtype, 0) and not any(width % _WORD for width in widths)


def choose_attention(group: AttentionGroup, *, lowered: Lowered) -> AttentionTile | None:
    """The tile of a launch for this attention; None where separate kernels, or ATen's, are as quick. Where sizes are
    symbols, the example decides."""
    attention, hint = group.attention, lowered.sizes.hint
    batch, rows, count = hint(attention.batch), hint(attention.rows), hint(attention.count)
    dtype = max(attention.dtypes, key=lambda one: one.itemsize)
    sizes = AttentionSizes(batch, rows, count, attention.depth, attention.width, dtype, _is_biased(attention))
    device = lowered.buffers[group.writes[0]].layout.device
    if attention.tangent is not None:
        return _tile_of_gradients(sizes)
    if not _is_measured(sizes, device) or not _reads_words(attention.keys, 1) or not _reads_words(attention.values, 2):
        return None
    first = attention.steps[0]
    called = isinstance(first, Extern) and first.style == "returns"
    if (called or dtype is torch.float32) and not _launch_is_quicker(sizes, device):
        return None
    if dtype is torch.float32:
        return _tile_of_float32(sizes)
    tile = _tile(attention, sizes)
    return tile if attention.causal else _with_parts(tile, sizes)


def launch_computes_gradients(
    device: torch.device, dtype: torch.dtype, numbers: tuple[int, int, int, int, int]
) -> bool:
    """Whether gradients of attention take less time in a launch than in ATen's kernels. numbers: as above."""
    sizes = AttentionSizes(*numbers, dtype, False)
    fits = 1 < sizes.rows <= _MOST_ROWS_OF_GRADIENTS and sizes.count <= _MOST_ROWS_OF_GRADIENTS
    return (
        device.type == "cuda"
        and fits
        and _is_measured(sizes, device)
        and max(sizes.depth, sizes.width) <= _WIDEST_OF_GRADIENTS
    )


def _tile_of_gradients(sizes: AttentionSizes) -> AttentionTile:
    """One tile has all rows and keys of a head."""
    block = max(16, 1 << (max(sizes.rows, sizes.count) - 1).bit_length())
    return AttentionTile(block, block, 4 if block <= 64 else 8, 1)


def _is_biased(attention: Attention) -> bool:
    return any(op.name == "load" and op.args[0] != PRODUCTS for one in attention.scores for op in one.body.ops)


def _reads_words(side: Loops, inner: int) -> bool:
    """True if a side's elements lie side by side along a loop, from multiples of 16 bytes on."""
    body = side.body
    for op in body.ops:
        if op.name == "load":
            place = op.args[1]
            assert isinstance(place, IndexRef)
            rest = body.indices[place.position] - body.vars[inner]
            if body.vars[inner] in rest.symbols or any(factor % _WORD for factor in rest.terms().values()):
                return False
    return True


def _tile(attention: Attention, sizes: AttentionSizes) -> AttentionTile:
    programs = sizes.programs(_SQUARE)
    if sizes.rows <= _FEW.rows or (programs < _MULTIPROCESSORS and sizes.count <= 128):
        return _FEW
    if programs < _BUSY:
        return _SQUARE
    if max(sizes.depth, sizes.width) > 64:
        return _WIDE
    if not _has_matrix(attention):
        return _SQUARE
    return _NEAR if sizes.rows < 1024 else _TALL


def _tile_of_float32(sizes: AttentionSizes) -> AttentionTile:
    if 4 * sizes.programs(_FEW) <= 5 * _MULTIPROCESSORS:
        return _FEW
    width, programs = max(sizes.depth, sizes.width), sizes.programs(_SQUARE_SINGLE)
    square = (width <= 64 and programs >= _MANY) or (width <= 32 and sizes.rows <= 64)
    return _SQUARE_SINGLE if square else _SINGLE


def _with_parts(tile: AttentionTile, sizes: AttentionSizes) -> AttentionTile:
    """The tile, for programs that share the keys of a row where they would leave most of the device idle."""
    if tile.rows > _FEW.rows:
        if not _idles(tile, sizes):
            return tile
        return replace(tile, parts=min(2 * _MULTIPROCESSORS // sizes.programs(tile), sizes.count // _SHORTEST_PART))
    wanted = 1 << max(_BUSY // sizes.programs(tile), 1).bit_length() - 1
    parts = max(1, min(wanted, sizes.count // tile.keys))
    return replace(_LONG if sizes.count >= 2 * tile.keys * parts else tile, parts=parts)


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
