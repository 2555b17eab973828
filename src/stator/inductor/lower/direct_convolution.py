"""Convolutions, and products with constant weights, in kernels of our own: which ones, their tiles, the layout of
weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import torch

from stator.base import counters
from stator.inductor.buffers import View
from stator.inductor.convolutions import ConvolutionTile, DirectConvolution, patch_of_kernel
from stator.inductor.lower.builder import CompiledConvolutions, LoweringBuilder
from stator.inductor.lower.tensor import Tensor
from stator.prims.layout import channels_last_strides, numel, same_strides
from stator.prims.record import TensorMeta
from stator.runtime.choices import Alternatives, quickest_on_cpu
from stator.runtime.matrix_products import CACHE, ONEDNN
from stator.runtime.packed_products import packed_convolution_run, packs_convolutions
from stator.runtime.toolchain import float_lanes

# Products of fewer rows read weights rather than multiply
SOME_ROWS = 16

Tiles = tuple[tuple[int, int, float], ...]

# Tiles by the number of lanes: positions, vectors of channels, and their relative speed, as measured. Tiles
# with few vectors have more loads, and depthwise kernels more addresses. In dense ones of 7 x 4, one sum of 28 has no
# register.
_TILES = {
    16: (
        *((6, 4, 1.0), (7, 4, 0.99), (8, 3, 1.0), (7, 3, 0.99), (9, 3, 0.98), (5, 5, 0.96)),
        *((10, 2, 0.98), (14, 2, 0.95), (10, 1, 0.85)),
    ),
    8: ((6, 2, 1.0), (5, 2, 0.99), (4, 3, 1.0), (7, 2, 0.83), (8, 1, 0.74)),
}
_DEPTHWISE_TILES = {
    16: ((6, 4, 1.0), (7, 3, 0.97), (7, 2, 0.88), (8, 1, 0.65)),
    8: ((7, 2, 1.0), (4, 3, 1.0), (6, 2, 0.97), (7, 1, 0.75)),
}

# The same where lanes are channels of groups, by lanes and the channels of a group, each of which has a weight
_GROUP_TILES = {
    (16, 4): ((7, 2, 1.0), (7, 1, 0.92)),
    (16, 8): ((7, 1, 1.0),),
    (8, 4): ((7, 2, 1.0), (7, 1, 0.97)),
    (8, 8): ((7, 1, 1.0),),
}

# Positions so many elements apart share one set of the nearest cache, which has room for 8 or 12 of them
_ONE_SET, _ROOM = 1024, 10

# While a kernel multiplies by the weights of one block of channels, those of the next come into the second-level cache
_CACHED_BLOCK, _UNCACHED = 640 << 10, 1.3

# Multiplications below which kernels of ours are not compared with libraries: a call costs too large a part. Timed
# convolutions have at most so many, about 2 ms of one core
TUNED_WORK, _TIMED_WORK = 1 << 22, 1 << 27
# Rows that multiply a weight from memory in the time that it takes to come: 7.5 on an EPYC (Zen 4), more where cores
# multiply twice as often in a cycle, or share memory with others. Max-autotune times what lies between
_FEWEST_ROWS, _ENOUGH_ROWS = 8, 32
# Max-autotune times so many tiles of different widths, which mostly differ by a few percent
MOST_TIMED = 2
# Images of few channels are stored otherwise; a small weight is timed in so many places
_FEW_CHANNELS, _MOST_WEIGHTS = 4, 8
_NO_TILE = ConvolutionTile(0, 0)


def direct_convolution(
    builder: LoweringBuilder,
    images: str | View,
    packed: str,
    bias: Tensor | None,
    found: DirectConvolution,
    meta: TensorMeta,
) -> Tensor:
    """The convolution, in NHWC. images, packed: as `found` describes them. meta: of the result."""
    strides = channels_last_strides(meta.shape)
    added = None if bias is None else builder.argument(bias, (1,))
    result_meta = TensorMeta(meta.shape, strides, meta.dtype, meta.device)
    (result,) = builder.extern(found, [images, packed, added], {}, [result_meta], style="out")
    assert result is not None
    result.deviates = not same_strides(meta.shape, strides, meta.stride)
    return result


def products_in_tiles(a: Tensor, weight: torch.Tensor, bias: Tensor | None) -> list[DirectConvolution]:
    """`a @ weight + bias` for a constant weight, as convolutions of one tap: a row is a position. Of each width of
    tiles the best, the best of all first; none for a library."""
    rows, (inner, columns) = a.shape[0], weight.shape
    plain = bias is None or (bias.shape == (columns,) and bias.dtype is a.dtype)
    if not plain or {a.dtype, weight.dtype} != {torch.float32} or a.device.type != "cpu" or not isinstance(rows, int):
        return []
    tiles = _TILES.get(float_lanes(), ())
    tile = _tile(tiles, rows, columns, inner, inner, rows, pads=True) if rows >= SOME_ROWS else None
    if tile is None or inner == 0:
        return []
    size, one, none = (1, rows), (1, 1), (0, 0)
    return _of_each_width(DirectConvolution(1, size, size, inner, columns, 1, inner, False, one, one, none, one, tile))


def matrix_tile(rows: int, inner: int, columns: int) -> ConvolutionTile | None:
    """The tile for a product with a matrix that each call packs in part; None if there is none for so few columns. Of a
    block of the matrix a panel lies in a cache, so that its depth asks for no narrow tile."""
    return _tile(_TILES.get(float_lanes(), ()), rows, columns, 1, inner, rows)


def _tiles_of(depthwise: bool, of_group: int) -> Tiles:
    if of_group > 1:
        return _GROUP_TILES.get((float_lanes(), of_group), ())
    return (_DEPTHWISE_TILES if depthwise else _TILES).get(float_lanes(), ())


def _of_each_width(found: DirectConvolution) -> list[DirectConvolution]:
    """The convolution by a constant weight in the best tile of each width, the best of all first."""
    tiles = _tiles_of(found.depthwise, found.of_group)
    line, apart = found.out_size[1] if found.depthwise else found.rows, found.pixel * found.stride[1]
    best = _tiles(tiles, found.rows, found.out_channels, found.depth, apart, line, pads=not found.depthwise)
    return [replace(found, tile=tile) for tile in _first_of_each_width(best)]


def in_patches(found: DirectConvolution, weight: torch.Tensor) -> list[DirectConvolution]:
    """The same by a constant weight in patches of 2 x 2 results, of each width of tiles the best, the best of all
    first; none where that takes longer anywhere. Kernels of patches are sums of taps, which an infinity would make
    NaN."""
    steps = (found.kernel, found.stride, found.dilation)
    channels = 0 if found.depthwise else min(found.in_channels, found.out_channels)
    if steps != ((3, 3), (1, 1), (1, 1)) or channels < float_lanes():
        return []
    if not _patches_pay(found, _FEWEST_ROWS) or not weight.isfinite().all():
        return []
    rows, apart = found.patches, found.in_channels
    best = _tiles(_TILES[float_lanes()], rows, found.out_channels, apart, apart, rows, pads=True)
    return [replace(found, tile=tile, in_patches=True) for tile in _first_of_each_width(best)]


def _first_of_each_width(tiles: Sequence[ConvolutionTile]) -> list[ConvolutionTile]:
    best: dict[int, ConvolutionTile] = {}
    for tile in tiles:
        best.setdefault(tile.columns, tile)
    return list(best.values())


def _patches_pay(found: DirectConvolution, rows: int) -> bool:
    """Whether 16 elements of a packed kernel for each patch take less time than 9 for each position. rows: as many
    multiply an element in the time that it takes to come."""
    return 16 * max(found.patches, rows) < 9 * max(found.rows, rows)


def direct_product(
    builder: LoweringBuilder,
    a: Tensor,
    weight: torch.Tensor,
    bias: Tensor | None,
    found: DirectConvolution,
    meta: TensorMeta,
    key: Any,
) -> Tensor | None:
    """The product, one of `products_in_tiles`. key: names the weight, in this graph."""
    packed = packed_constant(builder, weight.t()[:, :, None, None], found, key)
    added = None if bias is None else builder.argument(bias, (1,))
    return builder.extern(found, [builder.argument(a, (a.shape[1], 1)), packed, added], {}, [meta], style="out")[0]


def products_in_tiles_runs(
    compiled: CompiledConvolutions, found: Sequence[DirectConvolution], x: torch.Tensor, parts: Sequence[torch.Tensor]
) -> list[Iterator[Callable[[], None]]]:
    """What multiplies some rows by parts of the weight, [columns, inner] with equal values, for timing."""
    size = (1, len(x))
    some = [replace(one, size=size, out_size=size, out_channels=parts[0].shape[0]) for one in found]
    return _runs(compiled, some, x, parts[0][:, :, None, None], len(parts))


def _runs(
    compiled: CompiledConvolutions,
    found: Sequence[DirectConvolution],
    x: torch.Tensor,
    weight: torch.Tensor,
    count: int,
) -> list[Iterator[Callable[[], None]]]:
    """So many runs of each convolution, each with a weight of its own."""
    out = x.new_empty(found[0].rows, found[0].columns)

    def of(kernel: Callable[..., None], one: DirectConvolution) -> Iterator[Callable[[], None]]:
        packed = packed_for(weight, one)
        return (partial(kernel, x, packed.clone(), out) for _ in range(count))

    return [of(kernel, one) for kernel, one in zip(compiled(found), found, strict=True)]


def packed_constant(builder: LoweringBuilder, weight: torch.Tensor, found: DirectConvolution, key: Any) -> str:
    """The packed weight. key: names it, in this graph."""
    name = ("direct convolution", key, found)
    packed = builder.shared_results.get(name)
    if packed is None:
        counters.count("packed:direct_convolution")
        value = packed_for(weight, found)
        buffer = f"packed_{len(builder.shared_results)}"
        packed = builder.shared_results[name] = builder.add_opaque(value, buffer, tuple(value.shape))
    return str(packed)


def described(
    x: Tensor, weight: Tensor, meta: TensorMeta, rest: Sequence[Any], *, is_constant: bool
) -> DirectConvolution | None:
    """A convolution of images [N, C, H, W] for a kernel of ours; None for the library. rest: stride, padding, dilation,
    groups. is_constant: whether the weight is packed once."""
    stride, padding, dilation, groups = rest
    numbers = (*x.shape, *weight.shape, *meta.shape, *stride, *padding, *dilation, groups)
    dtypes = {x.dtype, weight.dtype, meta.dtype}
    if dtypes != {torch.float32} or not all(isinstance(number, int) for number in numbers):
        return None
    out, each = weight.shape[:2]
    # lanes are channels of several small groups
    in_lanes = each == 1 or (is_constant and (float_lanes(), each) in _GROUP_TILES and out >= float_lanes())
    depthwise = groups > 1 and out == groups * each and in_lanes
    shared, of_group = (1, each) if depthwise else (groups, 1)
    depth = numel(weight.shape[2:]) * each
    tiles = _tiles_of(depthwise, of_group)
    rows, apart = meta.shape[0] * meta.shape[2] * meta.shape[3], each * groups * stride[1]
    line = meta.shape[3] if depthwise else rows
    pads = is_constant and not depthwise and (groups == 1 or out // groups >= float_lanes())
    tile = _tile(tiles, rows, out // shared, depth, apart, line, pads=pads)
    if tile is None:
        return None
    return DirectConvolution(
        images=x.shape[0],
        size=(x.shape[2], x.shape[3]),
        out_size=(meta.shape[2], meta.shape[3]),
        in_channels=out if depthwise else each,
        out_channels=out // shared,
        groups=shared,
        pixel=each * groups,
        depthwise=depthwise,
        kernel=(weight.shape[2], weight.shape[3]),
        stride=(stride[0], stride[1]),
        padding=(padding[0], padding[1]),
        dilation=(dilation[0], dilation[1]),
        tile=tile,
        of_group=of_group,
    )


def quickest_convolution(
    builder: LoweringBuilder, found: DirectConvolution, weight: torch.Tensor
) -> DirectConvolution | None:
    """The convolution in the quickest tile; None if oneDNN, with a packed weight and a pass over the result, takes less
    time. Without max-autotune, and for little work or few channels, the tile of the rule: in patches, where these are
    not too few."""
    compiled, work = builder.compiled_convolutions, found.rows * found.columns * found.depth
    patches = in_patches(found, weight)
    by_patches = bool(patches) and _patches_pay(found, _ENOUGH_ROWS)
    first = patches[0] if by_patches else found
    if (
        compiled is None
        or not builder.tunes
        or work < TUNED_WORK
        or (found.in_channels <= _FEW_CHANNELS and not found.depthwise)
    ):
        return first
    tiles = [] if by_patches else _of_each_width(found)[:MOST_TIMED]
    timed = [*patches[:MOST_TIMED], found] if by_patches else [*tiles, *patches[:1]]
    named = {_name(one): one for one in timed}
    names = (*named, ONEDNN) if packs_convolutions(weight.dtype) else tuple(named)

    def alternatives() -> Alternatives:
        some = some_images(found, work, _TIMED_WORK)
        copies = min(_MOST_WEIGHTS, 1 + CACHE // (8 * weight.numel()))
        x = torch.full((some.images * some.size[0] * some.size[1], some.pixel), 0.5)
        ours = [replace(some, tile=one.tile, in_patches=one.in_patches) for one in timed]
        made = _runs(compiled, ours, x, weight, copies)
        runs: dict[str, Iterator[Callable[[], Any]]] = dict(zip(named, made, strict=True))
        if ONEDNN in names:
            images = x.view(some.images, *some.size, some.pixel).permute(0, 3, 1, 2)
            groups = some.in_channels // some.of_group if some.depthwise else some.groups
            steps = some.stride, some.padding, some.dilation, groups
            runs[ONEDNN] = (packed_convolution_run(images, weight, *steps) for _ in range(copies))
        return runs

    facts = (*astuple(replace(found, tile=_NO_TILE)), *names)
    chosen = quickest_on_cpu("convolution", facts, alternatives, next(iter(named)))
    return named.get(chosen)


def _name(found: DirectConvolution) -> str:
    return f"{found.tile.rows} x {found.tile.columns}{' in patches' if found.in_patches else ''}"


def some_images(found: DirectConvolution, work: int, most: int) -> DirectConvolution:
    """Fewer images, and fewer rows of one, if all take more than so many multiplications."""
    images = max(1, min(found.images, found.images * most // work))
    work = work // found.images * images
    height = found.dilation[0] * (found.kernel[0] - 1) + 1
    kept = min(found.size[0], max(height, found.size[0] * most // work))
    down = (kept + 2 * found.padding[0] - height) // found.stride[0] + 1
    return replace(found, images=images, size=(kept, found.size[1]), out_size=(down, found.out_size[1]))


def _tile(
    tiles: Tiles, rows: int, columns: int, depth: int, apart: int, line: int, pads: bool = False
) -> ConvolutionTile | None:
    """The best tile; None if there is none for so few channels, or nothing to compute."""
    return next(iter(_tiles(tiles, rows, columns, depth, apart, line, pads)), None)


def _tiles(
    tiles: Tiles, rows: int, columns: int, depth: int, apart: int, line: int, pads: bool
) -> list[ConvolutionTile]:
    """The tiles, first the one that wastes the least time at the end of rows and columns, and whose weights fit into a
    cache.

    apart: elements of the images from one position to the next. line: how many positions lie between two at which all
    tiles end: all, or a row of the image. pads: whether the only block may have a part of a vector more than there are
    columns.
    """
    if rows == 0:
        return []
    times = {}
    for height, vectors, share in tiles:
        width = vectors * float_lanes()
        most = columns + float_lanes() - 1 if pads and 2 * columns >= float_lanes() else columns
        if width > most or (height > _ROOM and apart % _ONE_SET == 0):
            continue
        time = rows / line * -(-line // height) * height * -(-columns // width) * width / share
        times[ConvolutionTile(height, width)] = time * (_UNCACHED if 4 * depth * width > _CACHED_BLOCK else 1)
    return sorted(times, key=lambda tile: times[tile])


def packed_for(weight: torch.Tensor, found: DirectConvolution) -> torch.Tensor:
    """The weight as [group, block, taps, channels, tile.columns], or [block, taps, tile.columns] of depthwise kernels,
    with the channels of a group if it has several; in place of taps 16 elements where patches are computed. Zeros
    follow."""
    width, groups = found.tile.columns, found.groups
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C._InferenceMode(False):
        taps = weight.reshape(groups, found.out_channels, *weight.shape[1:]).permute(0, 3, 4, 2, 1)
        if found.in_patches:
            taps = patch_of_kernel(patch_of_kernel(taps.contiguous(), 1), 2)
        if found.is_padded:
            taps = torch.nn.functional.pad(taps, (0, width - found.out_channels))
        starts = [found.block_start(block) for block in range(found.blocks)]
        blocks = torch.stack([taps[..., start : start + width] for start in starts], 1)
        return torch.cat([blocks.reshape(-1), blocks.new_zeros(found.zeros)])
