"""The lowering of the gradients of convolutions: library calls in the fastest memory format, and loops for the weights
of large depthwise kernels, which take the library two to twenty times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder, linear
from stator.inductor.lower.fallback import library_results
from stator.inductor.lower.heuristics import MAX_ACCUMULATORS, SMALL_DEPTHWISE, gpu_convolution_prefers_channels_last
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Stored, Tensor
from stator.prims.layout import channels_last_strides, contiguous_strides, same_strides
from stator.prims.record import TensorMeta
from stator.shapes.expr import Symbol

from .convolution import (
    in_tensor_cores,
    is_product,
    is_single_position_product,
    kernel_strides,
    may_choose_for_gpu,
    prefers_channels_last,
    read_positions,
    runs_channels_last,
    skips_positions,
)
from .creation import filled, pad_with
from .depthwise import (
    Steps,
    becomes_loops,
    depthwise_gradient,
    depthwise_weight_gradient,
    finds_taps,
)
from .library import multiplies_on_gpu, multiply
from .patches import (
    cuts_patches,
    has_more_weights_than_windows,
    have_fast_products,
    in_format,
    is_channels_last,
    patch_gradients,
    weight_gradient_by_windows,
)
from .reductions import reduce
from .views import permute, reshape

aten = torch.ops.aten

# padding, dilation, transposed, output_padding, groups
_ONE_BY_ONE = ([0, 0], [1, 1], False, [0, 0], 1)

_OUTER = tuple(Symbol(f"i{at}") for at in range(2))
_REDUCED = tuple(Symbol(f"r{at}") for at in range(3))


@lowers(aten.convolution_backward.default)
def _convolution_backward(
    builder: LoweringBuilder,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """Gradients of x [N, C, H, W], of the weight, and of the bias; None for those that are not `wanted`."""
    rest = [bias_sizes, stride, padding, dilation, transposed, output_padding, groups]
    if not transposed and is_single_position_product(x, weight, stride, padding, groups):
        return _of_product(builder, grad, x, weight, wanted)
    patches = cuts_patches(x, weight, grad.shape[2:], stride, padding, dilation, transposed, groups)
    if patches and x.device.type == "cuda":
        return patch_gradients(builder, grad, x, weight, wanted)
    steps = (stride, padding, dilation)
    if not transposed and becomes_loops(x, weight, grad.shape, steps):
        return _of_depthwise(builder, grad, x, weight, rest, wanted)
    if may_choose_for_gpu(x, grad.shape):
        return _on_gpu(builder, grad, x, weight, rest, wanted)
    if transposed or not _is_plain(grad, x, weight):
        return NotImplemented
    if patches:
        return patch_gradients(builder, grad, x, weight, wanted)
    if wanted[1] and has_more_weights_than_windows(x, weight, grad.shape[2:], groups):
        found = _gradients_by_library(builder, grad, x, weight, rest, [wanted[0], False, wanted[2]])
        found[1] = weight_gradient_by_windows(builder, grad, x, weight, *steps)
        return found
    if skips_positions(weight, stride, padding, groups):
        return _of_thinned(builder, grad, x, weight, [bias_sizes, stride, *_ONE_BY_ONE], wanted)
    own = wanted[1] and _is_depthwise(x, weight, groups) and math.prod(weight.shape[2:]) > SMALL_DEPTHWISE
    if not own or _is_mostly_padding(x, padding):
        return _in_best_format(builder, grad, x, weight, rest, wanted)
    grad = in_format(builder, grad, channels_last_strides(grad.shape))
    x = in_format(builder, x, channels_last_strides(x.shape))
    of_x = _by_library(builder, grad, x, weight, rest) if wanted[0] else None
    of_weight = _of_depthwise_weight(builder, grad, x, stride, padding, dilation)
    return [of_x, of_weight, _of_bias(builder, grad) if wanted[2] else None]


def _is_plain(grad: Tensor, x: Tensor, weight: Tensor) -> bool:
    """True for images that are not empty, in the dtype that the library has fast kernels for."""
    return x.rank == 4 and have_fast_products(grad, x, weight) and 0 not in grad.shape and 0 not in x.shape


def _is_depthwise(x: Tensor, weight: Tensor, groups: int) -> bool:
    """True for one kernel of a few taps for each channel."""
    channels = x.shape[1]
    taps = weight.shape[2:]
    return groups == channels == weight.shape[0] > 1 and weight.shape[1] == 1 and taps[1] <= MAX_ACCUMULATORS


def _is_mostly_padding(x: Tensor, padding: Sequence[int]) -> bool:
    """True for small images under kernels of large dilation: a padded copy takes longer than the library."""
    plane = x.sizes.hints(x.shape[2:])
    return math.prod(size + 2 * pad for size, pad in zip(plane, padding, strict=True)) > 4 * math.prod(plane)


def _of_thinned(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Tensor, rest: Sequence[Any], wanted: Sequence[bool]
) -> list[Any]:
    """Kernels of one tap that skip positions: drop the skipped positions, and put zeros in their places afterwards."""
    bias_sizes, stride, *tail = rest
    metas: Sequence[TensorMeta | None] = builder.meta
    last = is_channels_last(grad) and is_channels_last(x)
    strides = channels_last_strides if last else contiguous_strides
    seen = read_positions(x, grad.shape[2:], stride)
    if last:
        found = _of_product(builder, grad, in_format(builder, seen, strides(seen.shape)), weight, wanted)
    else:
        args = [
            builder.argument(grad, strides(grad.shape)),
            builder.argument(seen, strides(seen.shape)),
            builder.argument(weight, builder.node.args[2].meta["val"].stride),
        ]
        of_seen = TensorMeta(seen.shape, strides(seen.shape), x.dtype, x.device)
        of_weight = TensorMeta(weight.shape, contiguous_strides(weight.shape), weight.dtype, weight.device)
        promised = (of_seen if wanted[0] else None, of_weight if wanted[1] else None, metas[2])
        rest = [bias_sizes, [1, 1], *tail, list(wanted)]
        found = library_results(builder, aten.convolution_backward.default, [*args, *rest], {}, promised)
    if metas[0] is not None:
        target = builder.new_buffer(x.shape, strides(x.shape), x.dtype, x.device)
        builder.store(target, filled(builder, 0.0, metas[0]))
        builder.store(read_positions(target, grad.shape[2:], stride), found[0])
        target.deviates = not same_strides(x.shape, strides(x.shape), metas[0].stride)
        found[0] = target
    return found


def _in_best_format(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Tensor, rest: Sequence[Any], wanted: Sequence[bool]
) -> Any:
    """Use NHWC where it is faster, or is there already and no slower. NotImplemented: keep eager's format."""
    if (
        not (x.deviates or grad.deviates or is_channels_last(x) or is_channels_last(grad))
        or prefers_channels_last(builder, (x.shape, weight.shape, grad.shape), rest[-1], x.dtype) is False
    ):
        return NotImplemented
    grad = in_format(builder, grad, channels_last_strides(grad.shape))
    x = in_format(builder, x, channels_last_strides(x.shape))
    _, stride, padding, _, _, _, groups = rest
    if is_product(weight, stride, padding, groups):
        return _of_product(builder, grad, x, weight, wanted)
    kernel = builder.argument(weight, kernel_strides(weight, builder.node.args[2]))
    return _called(builder, grad, x, kernel, rest, wanted)


def _on_gpu(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Tensor, rest: Sequence[Any], wanted: Sequence[bool]
) -> Any:
    """NHWC where it is faster, or there already and no slower."""
    _, stride, padding, _, transposed, _, groups = rest
    channels = builder.sizes.hint(weight.shape[1])
    wish = gpu_convolution_prefers_channels_last(groups, channels, in_tensor_cores(x.dtype), trains=True)
    if wish is False or (wish is None and not (is_channels_last(x) or is_channels_last(grad))):
        return NotImplemented
    grad = in_format(builder, grad, channels_last_strides(grad.shape))
    x = in_format(builder, x, channels_last_strides(x.shape))
    if not transposed and is_product(weight, stride, padding, groups) and multiplies_on_gpu(x):
        return _of_product(builder, grad, x, weight, wanted)
    found: list[Any] = [None, None, None]
    if wanted[0] or wanted[1]:
        kernel = builder.argument(weight, channels_last_strides(weight.shape))
        found = _called(builder, grad, x, kernel, rest, [*wanted[:2], False])
    if wanted[2]:
        found[2] = _of_bias(builder, grad)
    return found


def _of_depthwise(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Tensor, rest: Sequence[Any], wanted: Sequence[bool]
) -> list[Any]:
    """Loops on a GPU, and the library for gradients by images that loops do not compute well."""
    steps: Steps = (rest[1], rest[2], rest[3])
    loops = [wanted[0] and finds_taps(steps), wanted[1], wanted[2]]
    others = [flag and not own for flag, own in zip(wanted, loops, strict=True)]
    found = _gradients_by_library(builder, grad, x, weight, rest, others)
    last = runs_channels_last(grad)
    if loops[0]:
        found[0] = depthwise_gradient(builder, grad, weight, steps, last)
    if loops[1]:
        found[1] = depthwise_weight_gradient(builder, grad, x, steps, last)
    if loops[2]:
        found[2] = _of_bias(builder, grad)
    return found


def _gradients_by_library(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Tensor, rest: Sequence[Any], wanted: Sequence[bool]
) -> list[Any]:
    """The gradients that are wanted, in the best format."""
    if not any(wanted):
        return [None, None, None]
    found = NotImplemented
    if may_choose_for_gpu(x, grad.shape):
        found = _on_gpu(builder, grad, x, weight, rest, wanted)
    elif x.device.type == "cpu":
        found = _in_best_format(builder, grad, x, weight, rest, wanted)
    if found is not NotImplemented:
        return list(found)
    nodes = zip((grad, x, weight), builder.node.args, strict=False)
    args = [builder.argument(one, node.meta["val"].stride) for one, node in nodes]
    metas = [meta if flag else None for meta, flag in zip(builder.meta, wanted, strict=True)]
    return list(library_results(builder, aten.convolution_backward.default, [*args, *rest, wanted], {}, metas))


def _called(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Any, rest: Sequence[Any], wanted: Sequence[bool]
) -> list[Any]:
    """The library's gradients, in NHWC."""
    args = [*(builder.argument(one, channels_last_strides(one.shape)) for one in (grad, x)), weight]
    promised = [
        None if not flag else meta if len(meta.shape) == 1 else _channels_last_meta(meta)
        for meta, flag in zip(builder.meta, wanted, strict=True)
    ]
    target = aten.convolution_backward.default
    found: list[Any] = library_results(builder, target, [*args, *rest, list(wanted)], {}, promised)
    for result, meta in zip(found, builder.meta, strict=True):
        if result is not None:
            result.deviates = not same_strides(meta.shape, result.strides, meta.stride)
    return found


def _channels_last_meta(meta: TensorMeta) -> TensorMeta:
    return TensorMeta(meta.shape, channels_last_strides(meta.shape), meta.dtype, meta.device)


def _of_product(builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> list[Any]:
    """Kernels of one tap at every position become products of matrices [positions, channels]."""
    out, channels = weight.shape[:2]
    grad_rows = reshape(permute(grad, (0, 2, 3, 1)), (-1, out))
    found: list[Any] = [None, None, None]
    if wanted[0]:
        rows = multiply(builder, grad_rows, reshape(weight, (out, channels)))
        batch, _, height, width = x.shape
        found[0] = permute(reshape(rows, (batch, height, width, channels)), (0, 3, 1, 2))
        found[0].deviates = not same_strides(x.shape, found[0].strides, builder.meta[0].stride)
    if wanted[1]:
        x_rows = reshape(permute(x, (0, 2, 3, 1)), (-1, channels))
        found[1] = reshape(multiply(builder, permute(grad_rows, (1, 0)), x_rows), weight.shape)
    if wanted[2]:
        found[2] = _of_bias(builder, grad)
    return found


def _by_library(builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Tensor, rest: Sequence[Any]) -> Tensor:
    """The gradient of x, in the format of x."""
    meta: TensorMeta = builder.meta[0]
    kernel = builder.argument(weight, kernel_strides(weight, builder.node.args[2]))
    args = [builder.argument(grad), builder.argument(x), kernel]
    promised = channels_last_strides(meta.shape)
    metas = (TensorMeta(meta.shape, promised, meta.dtype, meta.device), None, None)
    result = library_results(
        builder, aten.convolution_backward.default, [*args, *rest, [True, False, False]], {}, metas
    )[0]
    result.deviates = not same_strides(meta.shape, promised, meta.stride)
    return result


def _of_bias(builder: LoweringBuilder, grad: Tensor) -> Tensor:
    return reduce(builder, "sum", grad, (0, *range(2, grad.rank)), grad.dtype, keepdim=False)


def _of_depthwise_weight(
    builder: LoweringBuilder,
    grad: Tensor,
    x: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """d[c, 0, i, j] = sum over n, y, z of grad[n, c, y, z] * x[n, c, y * stride + i * dilation - padding, ...].

    One pass over the data has an accumulator for each tap, or for each tap of a row of the kernel; lanes are channels.
    """
    meta: TensorMeta = builder.meta[1]
    batch, channels, *out = grad.shape
    if any(padding):
        shape = (batch, channels, *(size + 2 * pad for size, pad in zip(x.shape[2:], padding, strict=True)))
        x = pad_with(builder, x, (0, 0, *padding), shape, 0.0)
        builder.materialize(x, channels_last_strides(shape))
    rows, columns = meta.shape[2:]
    whole = rows * columns <= MAX_ACCUMULATORS
    target = builder.new_buffer(meta.shape, meta.stride, meta.dtype, meta.device)
    memory: Stored = target.source  # type: ignore[assignment]
    channel = _OUTER[0]
    batch_at, y, z = _REDUCED
    taps = [(row, column) for row in (range(rows) if whole else (_OUTER[1],)) for column in range(columns)]

    def body(ops: Any) -> None:
        given = grad.load(ops, (batch_at, channel, y, z))
        sums: list[Ref] = []
        for row, column in taps:
            at = (y * stride[0] + row * dilation[0], z * stride[1] + column * dilation[1])
            sums.append(ops.reduce("sum", ops.mul(given, x.load(ops, (batch_at, channel, *at)))))
        for (row, column), total in zip(taps, sums, strict=True):
            ops.store(memory.buffer, linear(memory, (channel, 0, row, column)), total)

    loops, ranges = (_OUTER[:1], (channels,)) if whole else (_OUTER, (channels, rows))
    frozen = builder.freeze(body, loops, ranges, _REDUCED, (batch, *out))
    builder.emit((memory.buffer,), frozen, grad.work | x.work)
    return target
