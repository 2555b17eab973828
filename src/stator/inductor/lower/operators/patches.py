"""Convolutions that cut images into patches without overlap (kernel equals stride), and their gradients, as matrix
products with a patch as a row; and transposed ones, which make images of patches. They then run as fast as products;
the library's gradients take up to four times as long, and its transposed convolutions up to five times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.tensor import Computed, Index, Tensor
from stator.prims.layout import channels_last_strides, contiguous_strides, same_strides
from stator.prims.onednn import is_half_float
from stator.prims.record import TensorMeta
from stator.runtime.matrix_products import WORTHWHILE

from .creation import pad_with
from .library import multiplies_on_gpu, multiply, multiply_and_add
from .onednn import linear_product
from .pointwise import elementwise
from .reductions import reduce
from .views import permute, reshape, slice_dim


def cuts_patches(
    x: Tensor,
    weight: Tensor,
    out: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> bool:
    """True for such a convolution of images [N, C, H, W] to [N, O, *out] that is large enough for a product to pay."""
    plain = have_fast_products(x, weight)
    on_gpu = multiplies_on_gpu(x) and multiplies_on_gpu(weight) and _rows_are_aligned(x, weight)
    if x.rank != 4 or not (plain or on_gpu) or transposed or groups != 1 or any(padding) or set(dilation) != {1}:
        return False
    kernel = weight.shape[2:]
    work = x.shape[0] * math.prod(out) * weight.numel
    filled = all(x.sizes.known(">", size, 0) for size in x.shape)
    large = x.sizes.hint(math.prod(kernel)) > 1 and (on_gpu or x.sizes.hint(work) >= WORTHWHILE)
    one = plain and tuple(kernel) == x.shape[2:]  # patch, whatever the stride
    return (tuple(stride) == kernel or one) and filled and large


def _rows_are_aligned(x: Tensor, weight: Tensor) -> bool:
    """True for patches and results at multiples of 16 bytes: cuBLAS multiplies others slowly."""
    lengths = (math.prod(weight.shape[1:]), weight.shape[0])
    return all(x.sizes.divides(16 // x.dtype.itemsize, length) for length in lengths)


def have_fast_products(*sides: Tensor) -> bool:
    """True for matrices that a library on the CPU has fast products for."""
    return all(
        side.device.type == "cpu" and (side.dtype is torch.float32 or is_half_float(side.dtype)) for side in sides
    )


def patch_products(
    builder: LoweringBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, out: Sequence[int]
) -> Tensor:
    """The convolution. Its result has the format NHWC."""
    inside = _channels_inside(x, weight)
    rows = _patches(builder, x, weight.shape[2:], out, inside)
    channels = weight.shape[0]
    matrix = permute(_matrix_of(builder, weight, inside), (1, 0))
    meta = TensorMeta((rows.shape[0], channels), (channels, 1), x.dtype, x.device)
    result = linear_product(builder, rows, builder.argument(matrix), channels, bias, meta)
    if result is None and is_half_float(x.dtype):
        result = multiply_and_add(builder, rows, matrix, bias)
    elif result is None:
        result = multiply(builder, rows, matrix)
        if bias is not None:
            result = elementwise(builder, lambda ops, y, b: ops.add(y, b), [result, bias])
    images = permute(reshape(result, (x.shape[0], *out, channels)), (0, 3, 1, 2))
    images.deviates = not same_strides(images.shape, channels_last_strides(images.shape), builder.meta.stride)
    return images


def lays_patches(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> bool:
    """True for a transposed convolution that makes a patch of each position, if it is large enough for a product to
    pay. Half floats are left to the library, which adds the bias before it rounds."""
    if x.rank != 4 or any(side.device.type != "cpu" or side.dtype is not torch.float32 for side in (x, weight)):
        return False
    usual = groups == 1 and not any(padding) and not any(output_padding) and set(dilation) == {1}
    filled = all(x.sizes.known(">", size, 0) for size in (*x.shape, weight.shape[1]))
    work = x.numel * math.prod(weight.shape[1:])
    return usual and filled and tuple(stride) == weight.shape[2:] and x.sizes.hint(work) >= WORTHWHILE


def laid_patches(builder: LoweringBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, nhwc: bool) -> Tensor:
    """That convolution. A single image in NCHW stays so; all others, and their results, are in NHWC."""
    batch, channels, height, width = x.shape
    _, out, *kernel = weight.shape
    if nhwc or batch != 1:
        images = in_format(builder, x, channels_last_strides(x.shape))
        rows = reshape(permute(images, (0, 2, 3, 1)), (batch * height * width, channels))
        ordered = permute(weight, (0, 2, 3, 1))
        ordered = in_format(builder, ordered, contiguous_strides(ordered.shape))
        product = multiply(builder, rows, reshape(ordered, (channels, -1)))
        patches = permute(reshape(product, (batch, height, width, *kernel, out)), (0, 5, 1, 3, 2, 4))
    else:
        image = reshape(in_format(builder, x, contiguous_strides(x.shape)), (channels, height * width))
        product = multiply(builder, permute(reshape(weight, (channels, -1)), (1, 0)), image)
        patches = permute(reshape(product, (1, out, *kernel, height, width)), (0, 1, 4, 2, 5, 3))
    result = reshape(patches, (batch, out, height * kernel[0], width * kernel[1]))
    if bias is not None:
        result = elementwise(builder, lambda ops, y, b: ops.add(y, b), [result, reshape(bias, (1, out, 1, 1))])
    result.strides = (channels_last_strides if nhwc or batch != 1 else contiguous_strides)(result.shape)
    result.deviates = not same_strides(result.shape, result.strides, builder.meta.stride)
    return result


def patch_gradients(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]
) -> list[Any]:
    """The gradients of x, of the weight and of the bias."""
    out, channels = grad.shape[2:], weight.shape[0]
    inside = _channels_inside(x, weight)
    grad = in_format(builder, grad, channels_last_strides(grad.shape))
    grad_rows = reshape(permute(grad, (0, 2, 3, 1)), (-1, channels))
    found: list[Any] = [None, None, None]
    if wanted[0]:
        rows = multiply(builder, grad_rows, _matrix_of(builder, weight, inside))
        found[0] = _images_of(builder, rows, x, weight.shape[2:], out, inside)
    if wanted[1]:
        rows = _patches(builder, x, weight.shape[2:], out, inside)
        found[1] = _weight_of(multiply(builder, permute(grad_rows, (1, 0)), rows), weight.shape, inside)
    if wanted[2]:
        found[2] = reduce(builder, "sum", grad, (0, 2, 3), grad.dtype, keepdim=False)
    return found


def has_more_weights_than_windows(x: Tensor, weight: Tensor, out: Sequence[Any], groups: int) -> bool:
    """True for a dense kernel of several taps whose windows are fewer elements than its weights. The library's gradient
    of such a weight runs at 0.2 to 0.8 of a product's speed.

    Both multiply equally often. Beside that, the library moves the weight: it adds up in blocks of its own, and then
    writes these as they must lie; the product moves the windows. So the answer depends on sizes, not on the processor's
    speed (benchmarks/convolutions.py)."""
    if groups != 1 or weight.shape[2:] == (1, 1) or x.dtype is not torch.float32:
        return False
    positions = x.shape[0] * math.prod(out)
    filled = all(x.sizes.known(">", size, 0) for size in (*x.shape, *out))
    few = x.sizes.hint(positions) <= x.sizes.hint(weight.shape[0])
    return filled and few and x.sizes.hint(positions * weight.numel) >= WORTHWHILE


def weight_gradient_by_windows(
    builder: LoweringBuilder,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """[O, positions] @ [positions, elements of a window]."""
    batch, channels = x.shape[:2]
    out, kernel = grad.shape[2:], weight.shape[2:]
    shape = (batch, channels, *(size + 2 * pad for size, pad in zip(x.shape[2:], padding, strict=True)))
    builder.realize(x.root)
    padded = pad_with(builder, x, (0, 0, *padding), shape, 0.0) if any(padding) else x
    inside = is_channels_last(x)

    def window(ops: Any, index: Index) -> Ref:
        channel, row, column, image, y, z = index
        at = (y * stride[0] + row * dilation[0], z * stride[1] + column * dilation[1])
        return padded.load(ops, (image, channel, *at))

    windows = builder.computed(window, [padded], (channels, *kernel, batch, *out), x.dtype, x.device)
    grad = permute(grad, (1, 0, 2, 3))
    grad_rows = reshape(in_format(builder, grad, contiguous_strides(grad.shape)), (weight.shape[0], -1))
    moved = permute(windows, (3, 4, 5, 1, 2, 0)) if inside else windows  # runs of the images stay runs
    stored = in_format(builder, moved, contiguous_strides(moved.shape))
    elements = channels * math.prod(kernel)
    rows = reshape(stored, (-1, elements)) if inside else permute(reshape(stored, (elements, -1)), (1, 0))
    return _weight_of(multiply(builder, grad_rows, rows), weight.shape, inside)


def is_channels_last(x: Tensor) -> bool:
    planned = x.planned()
    return planned is not None and same_strides(x.shape, planned[0], channels_last_strides(x.shape))


def _channels_inside(x: Tensor, weight: Tensor) -> bool:
    """True if channels are fastest in a row, as in NHWC; False if slowest, as in weights. The smaller is reordered."""
    return is_channels_last(x) and x.sizes.hint(x.numel) > x.sizes.hint(weight.numel)


def _patches(builder: LoweringBuilder, x: Tensor, kernel: Sequence[int], out: Sequence[int], inside: bool) -> Tensor:
    """The matrix [N * rows * columns, elements of a patch]."""
    batch, channels = x.shape[:2]
    for dim in (0, 1):
        x = slice_dim(x, 2 + dim, 0, out[dim] * kernel[dim])
    split = reshape(x, (batch, channels, out[0], kernel[0], out[1], kernel[1]))
    moved = permute(split, (0, 2, 4, 3, 5, 1) if inside else (0, 2, 4, 1, 3, 5))
    stored = in_format(builder, moved, contiguous_strides(moved.shape))
    return reshape(stored, (batch * math.prod(out), channels * math.prod(kernel)))


def _matrix_of(builder: LoweringBuilder, weight: Tensor, inside: bool) -> Tensor:
    """The matrix [O, elements of a patch]."""
    moved = permute(weight, (0, 2, 3, 1)) if inside else weight
    return reshape(in_format(builder, moved, contiguous_strides(moved.shape)), (weight.shape[0], -1))


def _weight_of(matrix: Tensor, shape: Sequence[int], inside: bool) -> Tensor:
    out, channels, rows, columns = shape
    if not inside:
        return reshape(matrix, shape)
    return permute(reshape(matrix, (out, rows, columns, channels)), (0, 3, 1, 2))


def _images_of(
    builder: LoweringBuilder, rows: Tensor, x: Tensor, kernel: Sequence[int], out: Sequence[int], inside: bool
) -> Tensor:
    batch, channels = x.shape[:2]
    if inside:
        moved = permute(reshape(rows, (batch, *out, *kernel, channels)), (0, 5, 1, 3, 2, 4))
    else:
        moved = permute(reshape(rows, (batch, *out, channels, *kernel)), (0, 3, 1, 4, 2, 5))
    covered = (batch, channels, out[0] * kernel[0], out[1] * kernel[1])
    images = reshape(moved, covered)
    if covered != x.shape:
        images = pad_with(builder, images, (0, 0, 0, 0), x.shape, 0.0)
    if inside:
        images.strides = channels_last_strides(x.shape)
        images.deviates = not same_strides(x.shape, images.strides, builder.meta[0].stride)
    return images


def in_format(builder: LoweringBuilder, x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The tensor in memory with these strides, copied only where it is in memory with others."""
    planned = x.planned()
    if planned is not None and same_strides(x.shape, planned[0], strides):
        builder.realize(x.root)
        if x.resolved() is not None:
            return x
    if isinstance(x.source, Computed):
        builder.argument(x, strides)
        return x
    return builder.copy(x, strides)


def padded_images(builder: LoweringBuilder, x: Tensor, shape: tuple[int, ...], above: int, before: int) -> Tensor:
    """Images between zeros, in NHWC: one loop for the images, without masks, and one for each side."""
    target = builder.new_buffer(shape, channels_last_strides(shape), x.dtype, x.device)
    height, width = x.shape[2:]
    inside = slice_dim(target, 2, above, height)
    builder.store(slice_dim(inside, 3, before, width), x)
    for whole, dim, begin, size in (
        (target, 2, 0, above),
        (target, 2, above + height, above),
        (inside, 3, 0, before),
        (inside, 3, before + width, before),
    ):
        if size > 0:
            side = slice_dim(whole, dim, begin, size)
            zero = builder.computed(lambda ops, _: ops.constant(0.0, torch.float32), [], side.shape, x.dtype, x.device)
            builder.store(side, zero)
    return target
