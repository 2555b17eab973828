"""Prints kernels of convolutions and of products in tiles: the convolution, the loops that follow it, their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stator.inductor.buffers import Buffer
from stator.inductor.codegen.cpp.indices import CppIndexPrinter
from stator.inductor.codegen.cpp.vectorize import LoopOrder
from stator.inductor.codegen.kernel import Kernel, merge
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.schedule.groups import SUMS, ConvolutionGroup, Group
from stator.inductor.sizes import SizeKnowledge
from stator.runtime.toolchain import float_lanes, nearest_cache, second_level_cache
from stator.shapes.expr import ExprLike

from .direct import FEW_CHANNELS, DirectPrinter
from .following_loops import (
    LINE,
    FollowingLoops,
    LoopsInRegisters,
    LoopsOfNarrowTile,
    LoopsOfPaddedTile,
    is_short,
)
from .patches import PatchPrinter

# Bytes of images that tiles of all channels read before the next images come, where the cache has room for one block of
# channels of the kernel beside them (1024 rows of a product then take 0.9 of the time). A cut reads the kernel once
# more.
_CACHED_BESIDE_BLOCK, _UNCUT_IMAGES = 1 << 19, 3 << 19
_CACHED_WEIGHT = 1 << 19
# Bytes that stay in a core's cache from one kernel to the next. More are asked for before their use, which takes time:
# 64 -> 256 channels at 56 x 56 take 0.75 of the time, but small networks with all of it 1.05
_NEAR = 1 << 20
# Channels that tiles of one tap multiply before those of the next rows, where the images of a tile leave the nearest
# cache: 197 x 3072 x 768 take 0.94 of the time, 49 x 2048 x 512 0.87 to 0.92. Panels of fewer take longer
_PANEL = 384
# Rows that a part of a matrix multiplies once it is packed, so that packing takes little of the time
_ROWS_OF_PACKED = 256
# Patches that a kernel multiplies by a block of channels before it comes back: fewer read the kernel too often
_LEAST_PATCHES = 24


@dataclass(frozen=True, slots=True)
class PrintedConvolution:
    """header: text before the kernel. statements: of the kernel. kernel: the loops that follow the convolution. sizes:
    arguments of the kernel by name, each of its own, so that the text does not tell which of them are equal."""

    header: str
    statements: list[str]
    kernel: Kernel
    pointers: Mapping[str, str]
    sizes: dict[str, ExprLike]


def print_convolution(
    group: ConvolutionGroup, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge
) -> PrintedConvolution:
    convolution = group.convolution
    ranges = (1, convolution.rows, convolution.columns)
    loops = Group(group.name, group.members, ranges, group.internal, group.reads, group.writes)
    kernel = merge(loops, buffers, knowledge, CppIndexPrinter)
    pointers = {name: f"in{at}" for at, name in enumerate(group.reads)}
    pointers |= {name: f"out{at}" for at, name in enumerate(group.writes)}
    order, places = LoopOrder((0, 2, 1), (), 2), pointers | {SUMS: "tile"}
    emitter = _following(convolution)(kernel, order, places, buffers)
    images, weight = pointers[group.images.base], pointers[group.weight.base]
    printer = PatchPrinter(convolution) if convolution.in_patches else DirectPrinter(convolution)
    if printer.leaves_registers and is_short(kernel, len(printer.positions) * len(printer.vectors)):
        tile = (printer.positions, printer.vectors)
        printer.in_registers = LoopsInRegisters(kernel, order, places, buffers, tile).emit()
    statements = [
        f"const float *const images = {images} + image_offset, *const weight = {weight} + weight_offset;",
        *printer.tiles(list(emitter.prefetches()), emitter.emit()),
    ]
    offsets = {"image_offset": group.images.layout.offset, "weight_offset": group.weight.layout.offset}
    sizes = {**_sizes(convolution), **offsets, "apart": convolution.matrix or 0}
    return PrintedConvolution(printer.header(), statements, kernel, pointers, sizes)


def _following(c: DirectConvolution) -> type[FollowingLoops]:
    if not c.is_padded:
        return FollowingLoops
    return LoopsOfPaddedTile if c.out_channels >= float_lanes() else LoopsOfNarrowTile


def _sizes(c: DirectConvolution) -> dict[str, ExprLike]:
    return {
        "work": c.rows * (c.columns * c.depth) // 16,
        "rows": c.rows,
        **_parts(c),
        "far": second_level_cache() // 4,
        "height": c.size[0],
        "across": c.size[1],
        "out_height": c.out_size[0],
        "out_across": c.out_size[1],
        "pixel": c.pixel,
        "channels": c.in_channels,
        "out_channels": c.out_channels,
        "blocks": c.blocks,
        "groups": c.groups,
        "depth": c.packed_depth,
        "packed_elements": c.packed_elements,
        "taps_down": c.kernel[0],
        "taps_across": c.kernel[1],
        "stride_down": c.stride[0],
        "stride_across": c.stride[1],
        "padding_above": c.padding[0],
        "padding_before": c.padding[1],
        "dilation_down": c.dilation[0],
        "dilation_across": c.dilation[1],
    }


def _parts(c: DirectConvolution) -> dict[str, ExprLike]:
    if c.in_patches:
        return {"chunk": _patches_at_once(c)}
    return _near_memory(c) if c.matrix is None else {"chunk": _ROWS_OF_PACKED, "panel": _PANEL, "far_images": 0}


def _patches_at_once(c: DirectConvolution) -> int:
    """Patches whose elements and products stay in half of the second-level cache; the kernel comes through the rest."""
    bytes_each = 4 * 16 * (c.in_channels + c.tile.columns)
    return max(_LEAST_PATCHES, second_level_cache() // 2 // bytes_each)


def _near_memory(c: DirectConvolution) -> dict[str, ExprLike]:
    """chunk: positions that tiles of all channels read before the next come: where the kernel fits into the cache few,
    so that results are written in order, else many. panel: channels that tiles multiply before those of the next rows.
    far_images: whether images are asked for before their use; 2: to come into the second-level cache, where the lines
    that taps read fill the nearest one."""
    images, weight, height = 4 * c.rows * c.pixel * c.stride[0] * c.stride[1], 4 * c.packed_elements, c.tile.rows
    near_weight = weight <= _CACHED_WEIGHT and c.taps == 1
    if weight <= _CACHED_WEIGHT:
        chunk = max(24 // height, c.tile.columns // LINE) * height  # meanwhile the next block's weights come
    else:
        chunk = c.rows if images <= _UNCUT_IMAGES else _CACHED_BESIDE_BLOCK * c.rows // images
    many = not near_weight and 4 * height * c.pixel >= nearest_cache()
    if c.depthwise or (c.groups > 1 and c.taps > 1):  # the groups of a position lie apart
        lines = 4 * c.kernel[0] * c.size[1] * c.pixel
        far_images = (1 + (2 * lines >= 3 * nearest_cache())) * (images > second_level_cache() // 4)
    else:  # beside a kernel of several taps that leaves the second-level cache, images are few
        asks = near_weight or (c.taps > 1 and weight <= _NEAR and c.in_channels > FEW_CHANNELS)
        far_images = int(asks and images > _NEAR)
    return {"chunk": chunk, "panel": _PANEL if many else c.in_channels, "far_images": far_images}
