"""Convolutions that kernels of our own compute: sizes, and the tile that a kernel keeps in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class ConvolutionTile:
    """A kernel computes `rows` positions, or patches of them, times `columns` channels of the result at a time."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class DirectConvolution:
    """A convolution of images in NHWC with a kernel that `packed` has laid out. The target of a library call until the
    schedule makes a kernel of it. The call's arguments: images, packed kernel, bias or None.

    In place of a packed kernel a convolution of one tap may have a matrix [in_channels, out_channels] as it lies in
    memory, of which each call packs parts. matrix: the distance of its columns, which are contiguous, or with `by_rows`
    of its rows. Its positions are in one row, whose length may be a symbol.

    A convolution of 3 x 3 taps may compute patches of 2 x 2 results, each by 16 products in place of 36 (A. Lavin and
    S. Gray, Fast Algorithms for Convolutional Neural Networks, 2016), in tiles of patches.

    in_channels, out_channels: of one group. depthwise: each channel has a kernel of its own, so that these are all
    channels; or lanes that are neighbours are channels of one group, of `of_group` channels and as many results. pixel:
    elements from one position to the next. Pairs are (height, width).
    """

    images: int
    size: tuple[int, Any]
    out_size: tuple[int, Any]
    in_channels: int
    out_channels: int
    groups: int
    pixel: int
    depthwise: bool
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    tile: ConvolutionTile
    matrix: int | None = None
    by_rows: bool = False
    in_patches: bool = False
    of_group: int = 1

    @property
    def rows(self) -> Any:
        """The positions of the result."""
        return self.images * self.out_size[0] * self.out_size[1]

    @property
    def columns(self) -> int:
        """The channels of the result."""
        return self.groups * self.out_channels

    @property
    def is_padded(self) -> bool:
        """Whether a tile has more columns than a group has channels: its last vector is in part of zeros."""
        return self.tile.columns > self.out_channels

    @property
    def blocks(self) -> int:
        """The blocks of `tile.columns` channels of a group. The last ends where the group ends, so that it may begin
        within the block before it; one that is alone may have more columns."""
        return -(-self.out_channels // self.tile.columns)

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def channels_of_tap(self) -> int:
        """Channels of the images that a tap multiplies for an element of the result."""
        return self.of_group if self.depthwise else self.in_channels

    @property
    def depth(self) -> int:
        """Multiplications for an element of the result."""
        return self.taps * self.channels_of_tap

    @property
    def patches(self) -> int:
        """The patches of 2 x 2 results. Those at the ends of an image may have fewer."""
        return self.images * -(-self.out_size[0] // 2) * -(-self.out_size[1] // 2)

    @property
    def packed_kernel(self) -> tuple[int, int]:
        """The taps of the packed kernel."""
        return (4, 4) if self.in_patches else self.kernel

    @property
    def packed_depth(self) -> int:
        """Elements of the packed kernel for a channel of the result."""
        return self.packed_kernel[0] * self.packed_kernel[1] * self.channels_of_tap

    @property
    def packed_elements(self) -> int:
        """Elements of the packed kernel before its zeros."""
        return self.groups * self.blocks * self.packed_depth * self.tile.columns

    @property
    def zeros(self) -> int:
        """The zeros behind the packed kernel, which stand for positions outside of the image."""
        return self.in_channels if any(self.padding) and not self.depthwise and not self.in_patches else 0

    def block_start(self, block: int) -> int:
        return 0 if self.is_padded else min(block * self.tile.columns, self.out_channels - self.tile.columns)

    def __call__(
        self, images: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, *, out: torch.Tensor
    ) -> torch.Tensor:
        """The convolution by torch, which tests compare kernels with."""
        if self.matrix is not None:
            return out.copy_(torch.mm(images, packed) if bias is None else torch.addmm(bias, images, packed))
        height, width = self.size
        along = width - (self.groups * self.in_channels - self.pixel) // self.pixel  # runs overlap
        shape = (self.images, self.groups * self.in_channels, height, along)
        data = images.as_strided(shape, (height * width * self.pixel, 1, width * self.pixel, self.pixel))
        taps = self.packed_kernel
        blocks = packed[: self.packed_elements].reshape(self.groups, self.blocks, *taps, -1, self.tile.columns)
        kernel = packed.new_empty(self.groups, self.out_channels, blocks.shape[4], *taps)
        for block in range(self.blocks):
            start = self.block_start(block)
            columns = blocks[:, block].permute(0, 4, 3, 1, 2)[:, : self.out_channels]
            kernel[:, start : start + self.tile.columns] = columns
        if self.in_patches:
            kernel = _kernel_of_patches(_kernel_of_patches(kernel.double(), -2), -1).to(kernel.dtype)
        groups = self.in_channels // self.of_group if self.depthwise else self.groups
        steps = (self.stride, self.padding, self.dilation, groups)
        return out.copy_(torch.conv2d(data, kernel.flatten(0, 1), bias, *steps))

    def __str__(self) -> str:
        lines = "rows" if self.by_rows else "columns"
        matrix = "" if self.matrix is None else f", of {lines} {self.matrix} apart"
        kind = f"{self.groups} groups of {self.in_channels} -> {self.out_channels}"
        if self.depthwise:
            kind = "depthwise" if self.of_group == 1 else f"groups of {self.of_group}"
        height, width = self.kernel
        matrix += ", in patches" if self.in_patches else ""
        return (
            f"convolution {height}x{width} of {self.images}x{self.size[0]}x{self.size[1]}, {kind}, {self.tile}{matrix}"
        )


def patch_of_kernel(kernel: torch.Tensor, dim: int) -> torch.Tensor:
    """What multiplies four elements of an image along a dimension, of three taps there: G w, in the paper's words."""
    before, here, after = kernel.unbind(dim)
    return torch.stack((before, (before + here + after) / 2, (before - here + after) / 2, after), dim)


def _kernel_of_patches(patch: torch.Tensor, dim: int) -> torch.Tensor:
    """The inverse of `patch_of_kernel`."""
    before, half, other, after = patch.unbind(dim)
    return torch.stack((before, half - other, after), dim)
