"""Products and convolutions of quantized numbers, computed with integers by oneDNN: the operators
`stator::integer_product` and `stator::integer_convolution`, and oneDNN's layouts of their weights.

Rows and images are (x - zero_point) * scale for bytes x, weights are w * scales for int8 w and a scale for each
channel of the result, which is float32. Sums of integers are exact, so that one rounding for each scale remains.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import library

from stator.prims.onednn import onednn_enabled

from .toolchain import cpu_features

# Instructions that add products of bytes without saturation
_EXACT_PRODUCTS = frozenset(("avx512_vnni", "avx_vnni", "amx_int8"))
# Products of a byte and an int8 that int32 has room for
MOST_SUMMANDS = (1 << 31) // (255 * 128) - 1


def multiplies_integers() -> bool:
    """Return whether oneDNN multiplies bytes exactly and quickly on this processor, as the program allows now."""
    return onednn_enabled() and _has_instructions() and hasattr(torch.ops.onednn, "qlinear_pointwise")


@functools.cache
def _has_instructions() -> bool:
    return not _EXACT_PRODUCTS.isdisjoint(cpu_features())


def dequantized_weight(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return weight.float() * scales.view(-1, *[1] * (weight.dim() - 1))


def integer_product(
    rows: torch.Tensor,
    scale: float | torch.Tensor,
    zero_point: int | torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """[rows, inner] times the transpose of [columns, inner], plus [columns], in float32 arithmetic."""
    numbers = (rows.float() - zero_point) * scale
    return torch.nn.functional.linear(numbers, dequantized_weight(weight, scales), bias)


def integer_convolution(
    images: torch.Tensor,
    scale: float,
    zero_point: int,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """[N, C, H, W] by [O, C / groups, rows, columns], in float32 arithmetic."""
    numbers = (images.float() - zero_point) * scale
    return torch.conv2d(numbers, dequantized_weight(weight, scales), bias, stride, padding, dilation, groups)


def packed_weight(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """The weight of a product in oneDNN's layout. rows: the number of rows for which it is best."""
    with torch.no_grad(), torch._C._InferenceMode(False):
        packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight.contiguous(), [rows, weight.shape[1]])
        return packed


def packed_kernel(
    weight: torch.Tensor,
    scales: torch.Tensor,
    scale: float,
    zero_point: int,
    window: tuple[Sequence[int], Sequence[int], Sequence[int], int],
    images: Sequence[int],
) -> torch.Tensor:
    """The kernel of a convolution in oneDNN's layout. window: stride, padding, dilation and groups. images: the size of
    the data for which it is best."""
    with torch.no_grad(), torch._C._InferenceMode(False):
        pack = torch.ops.onednn.qconv_prepack
        packed: torch.Tensor = pack(weight.contiguous(), scales, scale, zero_point, *window, list(images))
        return packed


_library = library.Library("stator", "FRAGMENT")
_library.define(
    "integer_product(Tensor rows, float scale, int zero_point, Tensor weight, Tensor scales, Tensor? bias) -> Tensor"
)
_library.define(
    "integer_product.tensor(Tensor rows, Tensor scale, Tensor zero_point, Tensor weight, Tensor scales, Tensor? bias) "
    "-> Tensor"
)
_library.impl("integer_product", integer_product, "CompositeExplicitAutograd")
_library.impl("integer_product.tensor", integer_product, "CompositeExplicitAutograd")
_library.define(
    "integer_convolution(Tensor images, float scale, int zero_point, Tensor weight, Tensor scales, Tensor? bias, "
    "int[] stride, int[] padding, int[] dilation, int groups) -> Tensor"
)
_library.impl("integer_convolution", integer_convolution, "CompositeExplicitAutograd")
