"""Convolutions, and products with constant weights, in kernels of our own: which ones, their tiles, the layout of
weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.base import counters
from stator.inductor.buffers import View
from stator.inductor.convolutions import ConvolutionTile, DirectConvolution
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.tensor import Tensor
from stator.prims.layout import channels_last_strides, numel, same_strides
from stator.prims.record import TensorMeta
from stator.runtime.toolchain import float_lanes

# Products of fewer rows read weights rather than multiply
_SOME_ROWS = 16

Tiles = tuple[tuple[int, int, float], ...]

# Tiles by the number of lanes: positions, vectors of channels, and their relative speed (measured on AVX-512). Tiles
# with few vectors have more loads, and depthwise kernels more addresses. In dense ones of 7 x 4, one sum of 28 has no
# register.
_TILES = {
    16: ((6, 4, 1.0), (7, 4, 0.97), (7, 3, 1.0), (8, 3, 1.0), (9, 3, 1.0), (10, 2, 0.95), (14, 2, 0.96), (8, 1, 0.75))
}
_DEPTHWISE_TILES = {16: ((6, 4, 1.0), (7, 3, 0.9), (7, 2, 0.8), (8, 1, 0.55))}

# Positions so many elements apart share one set of the nearest cache, which has room for 8 or 12 of them
_ONE_SET, _ROOM = 1024, 10

# While a kernel multiplies by the weights of one block of channels, those of the next come into the second-level cache
_CACHED_BLOCK, _UNCACHED = 640 << 10, 1.3


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
    if rows < _SOME_ROWS or inner == 0:
        return []
    size, one, none = (1, rows), (1, 1), (0, 0)
    found: dict[int, DirectConvolution] = {}
    for tile in _tiles(_TILES.get(float_lanes(), ()), rows, columns, inner, inner):
        product = DirectConvolution(1, size, size, inner, columns, 1, inner, False, one, one, none, one, tile)
        found.setdefault(tile.columns, product)
    return list(found.values())


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


def product_in_tiles_run(
    compiled: Callable[[DirectConvolution], Callable[..., None]],
    found: DirectConvolution,
    x: torch.Tensor,
    weight: torch.Tensor,
) -> Callable[[], None]:
    """What multiplies by a part of the weight, [columns, inner], for timing."""
    part = replace(found, out_channels=weight.shape[0])
    kernel, packed, out = compiled(part), packed_for(weight[:, :, None, None], part), x.new_empty(len(x), len(weight))
    return lambda: kernel(x, packed, out)


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


def described(x: Tensor, weight: Tensor, meta: TensorMeta, rest: Sequence[Any]) -> DirectConvolution | None:
    """A convolution of images [N, C, H, W] for a kernel of ours; None for the library. rest: stride, padding, dilation,
    groups."""
    stride, padding, dilation, groups = rest
    numbers = (*x.shape, *weight.shape, *meta.shape, *stride, *padding, *dilation, groups)
    dtypes = {x.dtype, weight.dtype, meta.dtype}
    if dtypes != {torch.float32} or not all(isinstance(number, int) for number in numbers):
        return None
    out, each = weight.shape[:2]
    depthwise = groups > 1 and each == 1 and out == groups
    shared = 1 if depthwise else groups
    depth = numel(weight.shape[2:]) * (1 if depthwise else each)
    tiles = (_DEPTHWISE_TILES if depthwise else _TILES).get(float_lanes(), ())
    rows, apart = meta.shape[0] * meta.shape[2] * meta.shape[3], each * groups * stride[1]
    tile = _tile(tiles, rows, out // shared, depth, apart)
    if tile is None:
        return None
    return DirectConvolution(
        images=x.shape[0],
        size=(x.shape[2], x.shape[3]),
        out_size=(meta.shape[2], meta.shape[3]),
        in_channels=groups if depthwise else each,
        out_channels=out // shared,
        groups=shared,
        pixel=each * groups,
        depthwise=depthwise,
        kernel=(weight.shape[2], weight.shape[3]),
        stride=(stride[0], stride[1]),
        padding=(padding[0], padding[1]),
        dilation=(dilation[0], dilation[1]),
        tile=tile,
    )


def _tile(tiles: Tiles, rows: int, columns: int, depth: int, apart: int) -> ConvolutionTile | None:
    """The best tile; None if there is none for so few channels."""
    return next(iter(_tiles(tiles, rows, columns, depth, apart)), None)


def _tiles(tiles: Tiles, rows: int, columns: int, depth: int, apart: int) -> list[ConvolutionTile]:
    """The tiles, first the one that wastes the least time at the end of rows and columns, and whose weights fit into a
    cache.

    apart: elements of the images from one position to the next.
    """
    times = {}
    for height, vectors, share in tiles:
        width = vectors * float_lanes()
        if width > columns or (height > _ROOM and apart % _ONE_SET == 0):
            continue
        time = -(-rows // height) * height * -(-columns // width) * width / share
        times[ConvolutionTile(height, width)] = time * (_UNCACHED if 4 * depth * width > _CACHED_BLOCK else 1)
    return sorted(times, key=lambda tile: times[tile])


def packed_for(weight: torch.Tensor, found: DirectConvolution) -> torch.Tensor:
    """The weight as [group, block, taps, channels, tile.columns], or [block, taps, tile.columns] of depthwise kernels;
    zeros follow."""
    width, groups = found.tile.columns, found.groups
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C._InferenceMode(False):
        taps = weight.reshape(groups, found.out_channels, *weight.shape[1:]).permute(0, 3, 4, 2, 1)
        starts = [found.block_start(block) for block in range(found.blocks)]
        blocks = torch.stack([taps[..., start : start + width] for start in starts], 1)
        return torch.cat([blocks.reshape(-1), blocks.new_zeros(found.zeros)])
