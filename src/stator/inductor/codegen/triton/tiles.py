"""Decides which matrix products are kernels of ours, and on which tiles, from their sizes. Prints nothing.

The numbers come from timings on an H100, beside cuBLAS, with weights in memory. They decide about speed alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from stator.inductor.buffers import Lowered
from stator.inductor.schedule.groups import Group, ProductGroup, Tile

_SHARED = 220 << 10  # bytes of shared memory that a program may have for its sides
MOST = 8  # tiles that timing compares
_MANY_COLUMNS = 8192
_WAVE = 96  # programs that keep the device busy, where each reads its part of the weights once
_LEAST_DEPTH = 384  # of programs that share it: below, they end before loads are on their way
# By the most rows of a product: tiles that were among the best there
_FEW = (Tile(16, 32, 256, 4, 4), Tile(16, 16, 256, 4, 4), Tile(16, 64, 128, 4, 4), Tile(16, 32, 128, 4, 5))
_SQUARE, _NARROW = Tile(64, 64, 64, 4, 6), Tile(64, 32, 128, 4, 4)
_SOME = (_SQUARE, _NARROW, Tile(64, 32, 64, 4, 6), Tile(64, 64, 128, 4, 3), Tile(128, 64, 64, 4, 4))
_TABLE = Tile(64, 128, 64, 4, 4)  # of words, which has many columns
_MANY = (Tile(128, 128, 64, 8, 4), Tile(128, 64, 64, 4, 4), Tile(64, 128, 64, 4, 4), Tile(128, 256, 64, 8, 3))
_SPLITS = (2, 3, 4)


def choose_tile(group: ProductGroup, may_share_depth: bool, *, lowered: Lowered) -> Tile | None:
    """The tile of a launch for these products; None where the library is as quick.

    A launch wins what it saves: launches of products beside it, the loops behind it, or the idle half of the device.
    """
    products = group.products
    rows, columns = lowered.sizes.hints([products.rows, products.parts[0].columns])
    if products.batch != 1 or not 16 < rows <= 128 or not _is_measured(lowered.buffers[group.writes[0]].layout.device):
        return None
    if columns > _MANY_COLUMNS:
        # the library has no wide accesses to a result whose rows start anywhere
        return None if columns % 8 == 0 else _TABLE
    if may_share_depth:
        return _shared(products.depth, rows, columns)
    if sum(len(part.rights) for part in products.parts) == 1 and not _has_epilogue(group):
        return None
    programs = sum(_programs(_SQUARE, rows, lowered.sizes.hint(part.columns)) for part in products.parts)
    return _SQUARE if programs >= _WAVE // 2 else _NARROW


def _is_measured(device: torch.device) -> bool:
    """True for devices with the numbers of this file. Tests run kernels for these on the CPU."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) == (9, 0)


def _has_epilogue(group: ProductGroup) -> bool:
    """True if a launch stands in for loops, too."""
    return any(isinstance(step, Group) for steps in group.products.steps for step in steps)


def _programs(tile: Tile, rows: int, columns: int) -> int:
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def _shared(depth: object, rows: int, columns: int) -> Tile | None:
    """Tiles for a product whose depth programs share, if that fills the device."""
    for tile in (_SQUARE, _NARROW):
        programs = _programs(tile, rows, columns)
        split = next((one for one in _SPLITS if one * programs >= _WAVE and _divides(one, depth)), None)
        if split is not None:
            return replace(tile, split=split)
    return None


def candidates(group: ProductGroup, may_share_depth: bool, *, lowered: Lowered) -> list[Tile]:
    """The tiles worth timing, at most eight: the rule's own first."""
    products = group.products
    rows, columns = lowered.sizes.hints([products.rows, products.parts[0].columns])
    usual = _FEW if rows <= 16 else _MANY if rows > 256 or columns > _MANY_COLUMNS else _SOME
    chosen = choose_tile(group, may_share_depth, lowered=lowered)
    found = {} if chosen is None else {chosen: None}
    for tile in usual:
        found.setdefault(tile)
    for split in _SPLITS if may_share_depth else ():
        if _divides(split, products.depth):
            found.setdefault(replace(usual[0], split=split))
    return [tile for tile in found if _fits(tile, len(products.parts[0].rights))][:MOST]


def _divides(split: int, depth: object) -> bool:
    return isinstance(depth, int) and depth % (64 * split) == 0 and depth // split >= _LEAST_DEPTH


def _fits(tile: Tile, rights: int) -> bool:
    return 2 * tile.stages * tile.depth * (tile.rows + rights * tile.columns) <= _SHARED
