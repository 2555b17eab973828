"""Library calls of convolutions, as products whose rows are windows of the images."""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.inductor.buffers import Extern, Layout, View
from stator.inductor.devices import traits_of
from stator.prims.layout import channels_last_strides, same_strides

from .groups import Group, Matrices, Windows
from .product_calls import DTYPES, ProductCall, ProductSteps


def product_of_windows(steps: ProductSteps, step: Group | Extern) -> ProductCall | None:
    """A convolution of images [N, C, ...] in channels-last format by a kernel in this format, without a bias; None for
    any other step. Its groups of channels are the batch of the product."""
    if not isinstance(step, Extern) or step.target is not torch.ops.aten.convolution.default or step.style != "returns":
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = step.args
    (result,) = step.outputs
    images, kernel = (steps.view(one) if isinstance(one, str | View) else None for one in (x, weight))
    if images is None or kernel is None or bias is not None or transposed or result is None:
        return None
    layouts = images.layout, kernel.layout, steps.buffers[result].layout
    if not _are_known(*layouts):
        return None
    image, of_kernel, layout = layouts
    taps = of_kernel.size[2:]
    windows = Windows(
        image.size[2:],
        layout.size[2:],
        taps,
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        strides=image.stride[2:],
        apart=image.stride[0],
    )
    channels, out = of_kernel.size[1], of_kernel.size[0] // groups
    depth = channels * math.prod(taps)
    if depth == 1:
        return None
    left = Matrices(images.base, image.offset, (channels, 0, 1))
    right = Matrices(kernel.base, of_kernel.offset, (out * depth, 1, depth))
    rows = math.prod((layout.size[0], *layout.size[2:]))
    return ProductCall(result, left, right, None, groups, rows, out, depth, layout.dtype, windows=windows)


def _are_known(image: Layout, kernel: Layout, result: Layout) -> bool:
    """True for half floats in channels-last format, of known sizes, on a device with kernels of products."""
    layouts = (image, kernel, result)
    sizes: list[Any] = [size for layout in layouts for size in (*layout.size, *layout.stride)]
    return (
        traits_of(result.device).products
        and result.dtype in DTYPES
        and all(layout.dtype == result.dtype and layout.device == result.device for layout in layouts)
        and all(isinstance(size, int) for size in sizes)
        and 0 not in (*image.size, *result.size)
        and all(same_strides(one.size, channels_last_strides(one.size), one.stride) for one in (kernel, result))
        and (image.size[1] == 1 or image.stride[1] == 1)
        and result.offset == 0
    )
