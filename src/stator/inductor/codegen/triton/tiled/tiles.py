"""Decides which matrix products are kernels of ours, and on which tiles, from their sizes. Prints nothing.

The numbers come from timings on an H100, of bfloat16 products beside cuBLAS, with weights that are not in the cache
(docs/gpu.md). They decide about speed alone. Sizes beyond those that were timed are left to the library.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from stator.inductor.buffers import Lowered
from stator.inductor.devices import has_measured_products, launches_groups, library_reads_ends
from stator.inductor.schedule.groups import Group, ProductGroup, Products, Tile

_SHARED = 220 << 10  # bytes of shared memory that a program may have for its sides
MOST = 8  # tiles that timing compares
_FEW_ROWS = 16  # the fewest that tensor cores multiply
_SQUARE, _NARROW, _SLIM = Tile(64, 64, 64, 4, 6), Tile(64, 32, 128, 4, 4), Tile(64, 32, 64, 4, 6)
_WIDE, _TALL = Tile(64, 128, 64, 4, 4), Tile(128, 64, 64, 4, 4)
_BROAD = (Tile(128, 256, 64, 8, 4), Tile(128, 128, 64, 4, 4), _WIDE, _SQUARE)
_FLAT, _DEEP_FLAT, _SMALL_FLAT = Tile(16, 32, 128, 4, 5), Tile(16, 32, 256, 4, 4), Tile(16, 16, 256, 4, 4)
# What timing compares, by the rows of a product. Tiles for shared depth come first.
_FEW = (_DEEP_FLAT, _SMALL_FLAT, _FLAT, Tile(16, 64, 128, 4, 4))
_SOME = (_SQUARE, _NARROW, _SLIM, Tile(64, 64, 128, 4, 3), _WIDE)
_MANY = (Tile(128, 128, 64, 8, 3), _WIDE, _TALL, Tile(128, 128, 64, 4, 4), Tile(128, 256, 64, 8, 3))
_SHALLOW = 128  # the greatest depth of products that are read in two steps at most
_SPLITS = (4, 3, 2)
_LOOPED = Tile(128, 256, 64, 8, 3)  # for programs that compute several tiles; smaller tiles lost by this
# Groups: by the mean of their rows, and the most rows for which ATen's kernel took 1.4 times as long and more (H200)
_FEW_OF_GROUPS, _MANY_OF_GROUPS = Tile(16, 64, 128, 4, 4), _WIDE
_LAST_OF_GROUPS = 4

# Windows of images, without groups (H200): a tile, and the fewest programs for which it is taken
_OF_WINDOWS = (
    (Tile(128, 64, 64, 8, 3), 264),
    (Tile(64, 64, 64, 4, 4), 96),
    (Tile(64, 32, 64, 4, 6), 48),
)
_OF_SLIM_WINDOWS = (  # for results of at most 32 channels
    (Tile(128, 32, 64, 4, 4), 264),
    (Tile(64, 32, 64, 4, 6), 12),
    (Tile(32, 32, 64, 4, 6), 1),
)
_LARGE_OF_WINDOWS = Tile(128, 128, 64, 4, 4)  # only by timing
_MOST_STEP = 64  # columns, and channels of a step, of a tile by groups
_BUSY_WITH_GROUPS = 64

# Bounds of what was timed
_MOST_DEPTH = 1024  # that one program adds up: the library shares a greater depth, too
_MOST_OF_FEW_ROWS = 2048  # columns and depth of few rows
_MOST_OF_SMALL, _SMALL_MATRIX = 128, 1 << 16  # rows, and elements of a matrix that a few programs read
_MOST_OF_TWO_ROWS = 1 << 21  # elements of a matrix
_MOST_SHARED_DEPTH = 4096
_MOST_COLUMNS, _MOST_PLAIN_COLUMNS, _MOST_COLUMNS_OF_MANY_ROWS = 6144, 1024, 3072
_TABLE = 8192  # more columns are a table of words
_LEAST_PROGRAMS = 24
_FEWEST_MANY_ROWS, _MOST_COLUMNS_OF_STEPS = 256, 128
_MOST_DEPTH_OF_WINDOWS, _MOST_COLUMNS_OF_WINDOWS = 1152, 128
_LARGE = 1 << 28  # products of two numbers
_MULTIPROCESSORS = 132
_FULL = 264  # programs, two for each multiprocessor
_BUSY = 96  # programs that keep the device busy, where each reads its part of the weights once
_LEAST_SHARE = 384  # of the depth: programs with less end before loads are on their way


def choose_tile(group: ProductGroup, may_share_depth: bool, *, lowered: Lowered) -> Tile | None:
    """The tile of a launch for these products; None where the library is as quick, or where sizes are not known."""
    products = group.products
    batch, rows, depth, *columns = sizes = [
        products.batch,
        products.rows,
        products.depth,
        *(part.columns for part in products.parts),
    ]
    if products.ends is not None:
        return _of_groups(group, lowered)
    if not all(isinstance(size, int) for size in sizes) or not _is_measured(group, lowered):
        return None
    if products.windows is not None:
        return _of_windows(group, lowered)
    total = sum(columns) * len(products.parts[0].rights)
    alone = len(products.parts) == 1 and len(products.parts[0].rights) == 1
    one_with_loops = alone and batch == 1 and _has_epilogue(group)
    few = (_few_rows(rows, total, depth) or _small_matrix(rows, total, depth)) if one_with_loops else None
    if not _has_wide_accesses(group, lowered):
        return few
    if batch != 1:
        tile = _NARROW if alone and _has_epilogue(group) and rows <= 128 and max(depth, total) <= 128 else None
    elif alone and total % 8 and rows > _FEW_ROWS and (odd := _in_odd_rows(rows, total, depth)) is not None:
        return odd
    elif (alone and total > _TABLE) or total > _MOST_COLUMNS:
        return None
    elif may_share_depth and (shared := _shared(depth, rows, total)) is not None:
        return shared
    elif few is not None:
        return few
    elif one_with_loops and (many := _many_rows(rows, total, depth)) is not None:
        return many
    elif depth > _MOST_DEPTH:
        return None
    elif len(products.parts) > 1:
        tile = _side_by_side(rows, columns)
    else:
        tile = _alone(rows, total, not alone or _has_epilogue(group))
    if tile is None or batch * sum(_programs(tile, rows, one) for one in columns) < _LEAST_PROGRAMS:
        return None
    return tile


def _is_measured(group: ProductGroup, lowered: Lowered) -> bool:
    return has_measured_products(lowered.buffers[group.products.left.buffer].layout.device)


def _has_wide_accesses(group: ProductGroup, lowered: Lowered) -> bool:
    """True for sides that programs read 16 bytes at a time, the left one along the depth."""
    products = group.products
    sides = [products.left, *(right for part in products.parts for right in part.rights)]
    steps = [step for side in sides for step in (side.offset, *side.strides) if step != 1]
    return products.left.strides[2] == 1 and all(lowered.sizes.divides(8, step) for step in steps)


def _of_groups(group: ProductGroup, lowered: Lowered) -> Tile | None:
    """A launch where the library waits for the device, or where its kernel is slower: for few rows and whole steps of
    the depth. Devices before capability 8.0 have too little shared memory."""
    products, ends = group.products, group.products.ends
    assert ends is not None
    device = lowered.buffers[products.left.buffer].layout.device
    waits = library_reads_ends(products.dtype, device)
    if waits and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return None
    if ends.along_depth:
        return _MANY[0] if waits else None
    rows = lowered.sizes.hint(products.rows) / ends.count
    tile = _FEW_OF_GROUPS if rows <= _FEW_ROWS else _MANY_OF_GROUPS
    if waits:
        return tile
    whole = lowered.sizes.divides(tile.depth, products.depth) and _has_wide_accesses(group, lowered)
    return tile if rows <= _LAST_OF_GROUPS and whole and _is_measured(group, lowered) else None


def _of_windows(group: ProductGroup, lowered: Lowered) -> Tile | None:
    """Groups of channels, for which the library has slow kernels; and kernels of few channels, where one wave of the
    device has room for all programs, or where the launch stands in for loops."""
    products = group.products
    rows, columns = products.rows, products.parts[0].columns
    if len(products.parts) > 1 or not _has_wide_accesses(group, lowered):
        return None
    if products.batch > 1:
        device = lowered.buffers[products.left.buffer].layout.device
        if not launches_groups(device, products.dtype, _channels(products), columns):
            return None
        return next(
            (tile for tile in _of_groups_of_windows(products) if _all_programs(tile, products) >= _BUSY_WITH_GROUPS),
            _of_groups_of_windows(products)[-1],
        )
    if products.depth > _MOST_DEPTH_OF_WINDOWS:
        return None
    tiles = _OF_SLIM_WINDOWS if columns <= _SLIM.columns else _OF_WINDOWS
    tile = next((tile for tile, least in tiles if _programs(tile, rows, columns) >= least), None)
    if tile is None or _programs(tile, rows, columns) <= _MULTIPROCESSORS:
        return tile
    return tile if _has_epilogue(group) and columns <= _MOST_COLUMNS_OF_WINDOWS else None


def _of_groups_of_windows(products: Products) -> list[Tile]:
    """Tiles from the largest one on."""
    width = _power_of_two(products.parts[0].columns, _MOST_STEP)
    depth = _power_of_two(_channels(products), _MOST_STEP)
    return [Tile(rows, width, depth, 4, 4) for rows in (128, 64, 32)]


def _all_programs(tile: Tile, products: Products) -> int:
    return products.batch * _programs(tile, products.rows, products.parts[0].columns)  # type: ignore[no-any-return]


def _channels(products: Products) -> int:
    assert products.windows is not None
    return products.depth // math.prod(products.windows.taps)  # type: ignore[no-any-return]


def _power_of_two(size: int, most: int) -> int:
    """The least one from 16 on that is not smaller, up to a bound."""
    return min(max(1 << (size - 1).bit_length(), 16), most)


def _has_epilogue(group: ProductGroup) -> bool:
    """True if a launch stands in for loops, too."""
    return any(isinstance(step, Group) for steps in group.products.steps for step in steps)


def _programs(tile: Tile, rows: int, columns: int) -> int:
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def _small_matrix(rows: int, columns: int, depth: int) -> Tile | None:
    """For gates of channels, with an epilogue: a launch takes 2 to 4 us, the library's two kernels and loops 4 to 8."""
    return _SLIM if rows <= _MOST_OF_SMALL and columns * depth <= _SMALL_MATRIX else None


def _many_rows(rows: int, columns: int, depth: int) -> Tile | None:
    """For many rows of small depth, with an epilogue: memory bounds the product, and a launch moves its results once.
    Narrow tiles for small depths, or where few programs have larger ones."""
    if rows <= _FEWEST_MANY_ROWS or depth > 2 * _SHALLOW:
        return None
    if depth > _SHALLOW:
        timed = columns <= _MOST_COLUMNS_OF_STEPS or depth % _TALL.depth == 0
        return _TALL if timed and rows >= 2 * _FEWEST_MANY_ROWS else None
    if min(columns, depth) > 32 and _programs(_SQUARE, rows, columns) >= _FULL:
        return _of_shallow(64, 64, depth)
    tall = _of_shallow(128, 32, depth)
    return tall if _programs(tall, rows, columns) >= 2 * _FULL else _of_shallow(64, 32, depth)


def _of_shallow(rows: int, columns: int, depth: int) -> Tile:
    """A tile whose programs read their sides in one or two steps, so that many run at a time."""
    step = _power_of_two(depth, 64)
    return Tile(rows, columns, step, 4, 1 if depth <= step else 2)


def _few_rows(rows: int, columns: int, depth: int) -> Tile | None:
    """For rows that one tile holds, with an epilogue: even a single program takes little more than a launch, the
    library two to three kernels."""
    if rows > _FEW_ROWS or max(columns, depth) > _MOST_OF_FEW_ROWS:
        return None
    if rows <= 2 and columns * depth > _MOST_OF_TWO_ROWS:
        return None  # the library reads such a matrix faster
    return _FLAT if depth <= _FLAT.depth else _SMALL_FLAT


def _side_by_side(rows: int, columns: list[int]) -> Tile | None:
    """One launch instead of several: the narrow tile if all programs run at one time, else a larger one."""
    if rows <= _FEW_ROWS:
        return _FLAT
    if rows <= 128:
        at_once = sum(_programs(_NARROW, rows, one) for one in columns) <= _MULTIPROCESSORS
        return _NARROW if at_once else _SQUARE
    return _WIDE if rows <= 512 and sum(columns) <= _MOST_COLUMNS_OF_MANY_ROWS else None


def _alone(rows: int, columns: int, has_epilogue: bool) -> Tile | None:
    """Small tiles, for more programs than the library has, or for an epilogue in few registers."""
    if has_epilogue:
        return _FLAT if rows <= _FEW_ROWS else _SLIM if rows <= 128 else None
    if columns > _MOST_PLAIN_COLUMNS or not _FEW_ROWS <= rows <= 256:
        return None
    return _FLAT if rows == _FEW_ROWS else _NARROW


def _in_odd_rows(rows: int, columns: int, depth: int) -> Tile | None:
    """The largest tile with enough programs, for a large product whose result has rows that begin anywhere: the library
    has no wide accesses to these, and takes several times as long."""
    if rows * columns * depth < _LARGE or depth % 64:
        return None
    if rows <= 128:
        return _WIDE if columns > _TABLE else None
    if columns % 4 == 0:
        return None  # accesses of 8 bytes were not timed
    return next((tile for tile in _BROAD if _programs(tile, rows, columns) >= _BUSY), None)


def _shared(depth: int, rows: int, columns: int) -> Tile | None:
    """The tile and the fewest programs for each of its sums that keep the device busy."""
    if rows > 256 or depth > _MOST_SHARED_DEPTH or (rows > 128 and depth <= _MOST_DEPTH):
        return None
    for tile in (_DEEP_FLAT, _SMALL_FLAT) if rows <= _FEW_ROWS else (_SQUARE, _NARROW):
        programs = _programs(tile, rows, columns)
        split = next((one for one in reversed(_SPLITS) if one * programs >= _BUSY and _divides(one, depth)), None)
        if split is not None and programs < _BUSY:
            return replace(tile, split=split)
    return None


def _divides(split: int, depth: object) -> bool:
    return isinstance(depth, int) and depth % (64 * split) == 0 and depth // split >= _LEAST_SHARE


def candidates(group: ProductGroup, may_share_depth: bool, *, lowered: Lowered) -> list[Tile]:
    """The tiles worth timing, at most eight: the rule's own first."""
    products = group.products
    if products.windows is not None:
        return _candidates_of_windows(group, lowered)
    batch, rows, columns = lowered.sizes.hints([products.batch, products.rows, products.parts[0].columns])
    usual = _usual(products, lowered)
    chosen = choose_tile(group, may_share_depth, lowered=lowered)
    found = {} if chosen is None else {chosen: None}
    most = _multiprocessors(lowered.buffers[products.left.buffer].layout.device)
    looped = batch * _programs(_LOOPED, rows, columns) > most and len(products.parts) == 1 and products.ends is None
    if looped:
        found.setdefault(replace(_LOOPED, programs=most))
    for split in _SPLITS if may_share_depth and not looped else ():
        if _divides(split, products.depth):
            found.setdefault(replace(usual[0], split=split))
    for tile in usual:
        found.setdefault(tile)
    return [tile for tile in found if _fits(tile, len(products.parts[0].rights))][:MOST]


def _candidates_of_windows(group: ProductGroup, lowered: Lowered) -> list[Tile]:
    products = group.products
    chosen = choose_tile(group, False, lowered=lowered)
    found = {} if chosen is None else {chosen: None}
    if products.batch > 1:
        tiles = _of_groups_of_windows(products)
        found |= dict.fromkeys([*tiles, *(replace(tile, warps=2) for tile in tiles)])
    else:
        depth = _power_of_two(_channels(products), _MOST_STEP)
        usual = [*(tile for tile, _ in (*_OF_WINDOWS, *_OF_SLIM_WINDOWS)), _LARGE_OF_WINDOWS]
        found |= dict.fromkeys([replace(tile, depth=depth) for tile in usual])
    most = _power_of_two(products.rows, 128)
    return [tile for tile in found if tile.rows <= most and _fits(tile, len(products.parts[0].rights))][:MOST]


def _usual(products: Products, lowered: Lowered) -> tuple[Tile, ...]:
    """What timing compares, by the rows that are multiplied by one matrix."""
    rows, columns = lowered.sizes.hints([products.rows, products.parts[0].columns])
    if products.ends is not None and not products.ends.along_depth:
        rows //= products.ends.count
    if rows <= _FEW_ROWS:
        return _FEW
    if rows <= 256 and columns <= _TABLE:
        return _SOME
    depth = lowered.sizes.hint(products.depth)
    if depth > _SHALLOW:
        return _MANY
    shallow = [_of_shallow(*sides, depth) for sides in ((128, 32), (64, 64), (128, 64), (64, 32), (32, 64))]
    return (*shallow, *_MANY[:3])


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _MULTIPROCESSORS


def _fits(tile: Tile, rights: int) -> bool:
    return 2 * tile.stages * tile.depth * (tile.rows + rights * tile.columns) <= _SHARED
