"""Convolutions that kernels of our own compute: sizes, and the tile that a kernel keeps in registers. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConvolutionTile:
    """A kernel computes `rows` positions times `columns` channels of the result at a time."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class DirectConvolution:
    """A convolution of images in NHWC with a kernel that `packed` has laid out. The target of a library call until the
    schedule makes a kernel of it. The call's arguments: images, packed kernel, bias or None.

    in_channels, out_channels: of one group. depthwise: each channel has a kernel of its own, so that these are all
    channels. pixel: elements from one position to the next. Pairs are (height, width).
    """

    images: int
    size: tuple[int, int]
    out_size: tuple[int, int]
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

    @property
    def rows(self) -> int:
        """The positions of the result."""
        return self.images * self.out_size[0] * self.out_size[1]

    @property
    def columns(self) -> int:
        """The channels of the result."""
        return self.groups * self.out_channels

    @property
    def blocks(self) -> int:
        """The blocks of `tile.columns` channels of a group. The last ends where the group ends, so that it may begin
        within the block before it."""
        return -(-self.out_channels // self.tile.columns)

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def depth(self) -> int:
        """Multiplications for an element of the result."""
        return self.taps * (1 if self.depthwise else self.in_channels)

    @property
    def packed_elements(self) -> int:
        """Elements of the packed kernel before its zeros."""
        return self.groups * self.blocks * self.depth * self.tile.columns

    @property
    def zeros(self) -> int:
        """The zeros behind the packed kernel, which stand for positions outside of the image."""
        return self.in_channels if any(self.padding) and not self.depthwise else 0

    def block_start(self, block: int) -> int:
        return min(block * self.tile.columns, self.out_channels - self.tile.columns)

    def __call__(self, *args: object) -> object:
        raise AssertionError("the schedule makes a kernel of this call")

    def __str__(self) -> str:
        kind = "depthwise" if self.depthwise else f"{self.groups} groups of {self.in_channels} -> {self.out_channels}"
        height, width = self.kernel
        return f"convolution {height}x{width} of {self.images}x{self.size[0]}x{self.size[1]}, {kind}, {self.tile}"
