"""Whether a kernel of ours convolves with a weight that it packs in each call."""

from __future__ import annotations

import functools
from dataclasses import astuple, replace

import torch

from stator.inductor.convolutions import ConvolutionTile, DirectConvolution
from stator.runtime import choices

from .builder import CompiledConvolutions, LoweringBuilder
from .direct_convolution import packed_for, some_images

# Packing a weight moves each of its elements to another line. In the 3 to 6 cycles of this a core multiplies by it for
# about so many positions: 16 or 32 in a cycle.
_ROWS_PER_PACKING = 100
_MANY_ROWS = 8 * _ROWS_PER_PACKING

# Multiplications of a timed run
_TIMED_WORK = 1 << 24
_KIND, _LIBRARY, _TILES = "convolution by any weight", "library", "tiles"
_MARGIN = 0.97
_NO_TILE = ConvolutionTile(0, 0)


def packing_pays(builder: LoweringBuilder, found: DirectConvolution) -> bool:
    """Whether a kernel of ours is worth it with a weight that it packs in each call. Dense kernels with padding are the
    library's: ours multiply padding by the weight, which may be infinite. Depthwise ones pack little."""
    if found.depthwise:
        return True
    if found.zeros or found.rows < _MANY_ROWS:
        return False
    return is_packing_quicker(builder.compiled_convolutions, found, builder.tunes)


@choices.answered_by_timing
def is_packing_quicker(
    compiled: CompiledConvolutions | None, found: DirectConvolution, tunes: bool = False
) -> tuple[bool, bool]:
    """Compare our kernel with the library's convolution and a loop behind it; this may time both. A first process does
    not wait for the kernel to compile.

    compiled: makes the kernel; without it the rule decides. tunes: time now, however long all timings take.
    """
    if compiled is None:
        return True, False
    some = some_images(found, found.rows * found.columns * found.depth, _TIMED_WORK * torch.get_num_threads())
    if some.rows < found.tile.rows:
        return True, False
    facts = astuple(replace(some, tile=_NO_TILE))
    choose = choices.choose_on_cpu if tunes else choices.choose_in_next_process
    chosen, is_provisional = choose(_KIND, facts, functools.partial(_runs, compiled, some), _TILES, _MARGIN)
    return chosen == _TILES, is_provisional


def _runs(compiled: CompiledConvolutions, some: DirectConvolution) -> choices.Alternatives:
    """Copying a packed weight stands for packing it."""
    weight = torch.full((some.columns, some.in_channels, *some.kernel), 0.5).contiguous(
        memory_format=torch.channels_last
    )
    rows = torch.full((some.images * some.size[0] * some.size[1], some.pixel), 0.5)
    images = rows.view(some.images, *some.size, some.pixel).permute(0, 3, 1, 2)
    (kernel,), laid_out, out = compiled([some]), packed_for(weight, some), rows.new_empty(some.rows, some.columns)
    packed = torch.empty_like(laid_out)

    def by_library() -> torch.Tensor:
        return torch.conv2d(images, weight, None, some.stride, some.padding, some.dilation, some.groups).relu_()

    def by_kernel() -> torch.Tensor:
        packed.copy_(laid_out)
        kernel(rows, packed, out)
        return out

    return choices.warmed_up({_LIBRARY: by_library, _TILES: by_kernel})
