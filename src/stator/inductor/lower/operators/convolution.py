"""The lowering of convolutions: a library call, and the choice of the memory format of its input and output."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from stator.inductor.buffers import View
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.devices import launches_groups
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.constant_weights import (
    NO_POST,
    PostOperation,
    constant_of,
    constant_tensor,
    packed_convolution,
    packed_product,
    post_operation,
)
from stator.inductor.lower.direct_convolution import (
    described,
    direct_convolution,
    packed_constant,
    quickest_convolution,
)
from stator.inductor.lower.fallback import library_results
from stator.inductor.lower.heuristics import (
    DATA_ELEMENTS_PER_WEIGHT_TOGETHER,
    LARGE_PATCH,
    NARROW_GROUP,
    convolution_prefers_channels_last,
    gpu_convolution_prefers_channels_last,
)
from stator.inductor.lower.packing_choice import packing_pays
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Strides, Tensor
from stator.inductor.sizes import Sizes
from stator.prims.layout import channels_last_strides, contiguous_strides, numel, same_strides
from stator.prims.onednn import is_half_float
from stator.prims.record import TensorMeta
from stator.runtime.packed_products import ONEDNN, implementations, packs_convolutions
from stator.runtime.pointwise_convolutions import is_product_quicker

from .depthwise import becomes_loops, depthwise
from .library import multiplies_on_gpu, multiply, multiply_and_add, only_feeds_loops
from .onednn import linear_product
from .patches import (
    cuts_patches,
    have_fast_products,
    in_format,
    is_channels_last,
    laid_patches,
    lays_patches,
    padded_images,
    patch_products,
)
from .pointwise import elementwise
from .views import permute, reshape, slice_dim, squeeze, unsqueeze

aten = torch.ops.aten

# Images of so many channels are read in runs of several positions
_FEW_CHANNELS = 4

# Dtypes that cuDNN computes in both formats
GPU_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@lowers(aten.convolution.default)
def _convolution(
    builder: LoweringBuilder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """The data is in eager's format, or in NHWC where that is faster (heuristics.py)."""
    meta: TensorMeta = builder.meta
    nodes = builder.node.args
    rest = [stride, padding, dilation, transposed, output_padding, groups]
    if not transposed and is_single_position_product(x, weight, stride, padding, groups):
        return _single_product(builder, x, weight, bias)
    steps = (stride, padding, dilation)
    if not transposed and becomes_loops(x, weight, meta.shape, steps):
        return depthwise(builder, x, weight, bias, steps, runs_channels_last(x))
    large = builder.sizes.hint(numel(weight.shape[2:])) >= LARGE_PATCH
    if (large or x.device.type == "cuda") and cuts_patches(
        x, weight, meta.shape[2:], stride, padding, dilation, transposed, groups
    ):
        return patch_products(builder, x, weight, bias, meta.shape[2:])
    if transposed and lays_patches(x, weight, stride, padding, dilation, output_padding, groups):
        return laid_patches(builder, x, weight, bias, is_channels_last(x) or _feeds_channels_last(builder))
    constant = None if transposed or not packs_convolutions(x.dtype) else constant_tensor(builder, weight)
    if x.rank == 3 and not transposed:
        found_along = _along_one_axis(builder, x, weight, bias, constant, (stride, padding, dilation, groups))
        if found_along is not None:
            return found_along
    if constant is not None and _may_be_packed(x, weight, bias, meta):
        fixed = (stride, padding, dilation, groups)
        found = described(x, weight, meta, fixed, is_constant=True)
        if found is not None and found.zeros and not constant.isfinite().all():  # zero times infinity is NaN
            found = None
        found = None if found is None else quickest_convolution(builder, found, constant)
        if found is not None:
            images, found = _in_runs(builder, x, found)
            packed = packed_constant(builder, constant, found, weight.resolved())
            return direct_convolution(builder, images, packed, bias, found, meta)
        post = post_operation(builder)
        by_rows = is_product(weight, stride, padding, groups)
        result = _product_nhwc(builder, x, weight, bias, post) if by_rows else None
        if result is None:
            result = packed_convolution(builder, x, constant, bias, fixed, weight.resolved(), post)
        if post.node is not None:
            builder.with_previous[post.node] = result
        return result
    shapes = (x.shape, weight.shape, meta.shape)
    if may_choose_for_gpu(x, meta.shape):
        return _on_gpu(builder, x, weight, bias, rest)
    if _may_choose(x, weight, meta, transposed):
        wish = prefers_channels_last(builder, shapes, groups, x.dtype)
        if wish is None:
            wish = x.deviates or _feeds_channels_last(builder)
        if wish and (direct := _packed_each_time(builder, x, weight, bias, (stride, padding, dilation, groups))):
            return direct
        strides = channels_last_strides if wish else contiguous_strides
        given, promised = strides(x.shape), strides(meta.shape)
        of_weight = kernel_strides(weight, nodes[1]) if wish else nodes[1].meta["val"].stride
        if wish and skips_positions(weight, stride, padding, groups):
            product = _quicker_product(builder, read_positions(x, meta.shape[2:], stride), weight, bias)
            if product is not None:
                return product
        if is_product(weight, stride, padding, groups):
            product = (_product_nhwc if wish else _product_nchw)(builder, x, weight, bias)
            if product is not None:
                return product
    else:
        given, promised, of_weight = nodes[0].meta["val"].stride, meta.stride, nodes[1].meta["val"].stride
        if _is_channels_last_in_eager(x, given, meta, transposed):
            if direct := _packed_each_time(builder, x, weight, bias, (stride, padding, dilation, groups)):
                return direct
            skips = skips_positions(weight, stride, padding, groups)
            if skips or is_product(weight, stride, padding, groups):
                read = read_positions(x, meta.shape[2:], stride) if skips else x
                product = _quicker_product(builder, read, weight, bias)
                if product is not None:
                    return product
            of_weight = kernel_strides(weight, nodes[1])
    args = [
        builder.argument(x, given),
        builder.argument(weight, of_weight),
        None if bias is None else builder.argument(bias),
    ]
    return _called(builder, [*args, *rest], promised)


def _in_runs(builder: LoweringBuilder, x: Tensor, found: DirectConvolution) -> tuple[str | View, DirectConvolution]:
    """The images in memory, and the convolution of these. Images of few channels get their padding there, so that the
    taps of a row are one run of memory."""
    batch, channels, height, width = x.shape
    if found.depthwise or found.groups > 1 or channels > _FEW_CHANNELS or found.dilation[1] > 1 or found.kernel[1] == 1:
        return builder.argument(x, channels_last_strides(x.shape)), found
    above, before = found.padding
    shape = (batch, channels, height + 2 * above, width + 2 * before)
    if above or before:
        x = padded_images(builder, x, shape, above, before)
    run = channels * found.kernel[1]
    changed = replace(found, size=shape[2:], padding=(0, 0), kernel=(found.kernel[0], 1), in_channels=run)
    return builder.argument(x, channels_last_strides(shape)), changed


def _packed_each_time(
    builder: LoweringBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, rest: Sequence[Any]
) -> Tensor | None:
    """The convolution by a kernel of ours, with a weight that may be another in each call; None for the library."""
    if not _may_be_packed(x, weight, bias, builder.meta):
        return None
    found = described(x, weight, builder.meta, rest, is_constant=False)
    if found is None or not packing_pays(builder, found):
        return None
    images = builder.argument(x, channels_last_strides(x.shape))
    return direct_convolution(builder, images, _packed_in_loops(builder, weight, found), bias, found, builder.meta)


def _along_one_axis(
    builder: LoweringBuilder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    constant: torch.Tensor | None,
    rest: Sequence[Any],
) -> Tensor | None:
    """A convolution of [N, C, L] as one of images of one row, by a kernel of ours; None for the library."""
    meta: TensorMeta = builder.meta
    (stride,), (padding,), (dilation,), groups = rest
    plain = all(one is None or (one.dtype is x.dtype and one.device == x.device) for one in (weight, bias))
    if not plain or x.device.type != "cpu" or not all(x.sizes.known(">", size, 0) for size in (*x.shape, *meta.shape)):
        return None
    rows, kernel = unsqueeze(x, 2), unsqueeze(weight, 2)
    shape = (*meta.shape[:2], 1, meta.shape[2])
    images_meta = TensorMeta(shape, contiguous_strides(shape), meta.dtype, meta.device)
    steps = ((1, stride), (0, padding), (1, dilation), groups)
    found = described(rows, kernel, images_meta, steps, is_constant=constant is not None)
    if found is None or (constant is None and not found.depthwise):
        return None
    if constant is not None and found.zeros and not constant.isfinite().all():
        return None
    images, found = _in_runs(builder, rows, found)
    if constant is None:
        packed = _packed_in_loops(builder, kernel, found)
    else:
        packed = packed_constant(builder, constant[:, :, None], found, weight.resolved())
    result = squeeze(direct_convolution(builder, images, packed, bias, found, images_meta), [2])
    result.deviates = True
    return result


def _packed_in_loops(builder: LoweringBuilder, weight: Tensor, found: DirectConvolution) -> str:
    width, whole = found.tile.columns, found.out_channels // found.tile.columns
    target = builder.new_buffer((found.packed_elements,), (1,), weight.dtype, weight.device)
    places = reshape(target, (found.groups, found.blocks, *found.kernel, -1, width))
    taps = reshape(weight, (found.groups, found.out_channels, weight.shape[1], *found.kernel))
    taps = permute(taps, (0, 3, 4, 2, 1))
    blocks = reshape(slice_dim(taps, 4, 0, whole * width), (*taps.shape[:4], whole, width))
    builder.store(slice_dim(places, 1, 0, whole), permute(blocks, (0, 4, 1, 2, 3, 5)))
    if whole < found.blocks:
        last = slice_dim(taps, 4, found.out_channels - width, width)
        builder.store(slice_dim(places, 1, whole, 1), unsqueeze(last, 1))
    packed = builder.argument(target)
    assert isinstance(packed, str)
    return packed


def kernel_strides(weight: Tensor, node: fx.Node) -> Sizes:
    """The strides of a weight for NHWC data. Given a kernel of several taps in another format, the library would copy
    it, which takes longer than a loop does; and images of one channel have the format of the kernel."""
    several = math.prod(weight.shape[2:]) > 1
    return channels_last_strides(weight.shape) if several else node.meta["val"].stride


def _called(builder: LoweringBuilder, args: Sequence[Any], promised: Sizes) -> Tensor:
    """The library's result, with the promised strides."""
    meta: TensorMeta = builder.meta
    result_meta = TensorMeta(meta.shape, promised, meta.dtype, meta.device)
    result: Tensor = library_results(builder, aten.convolution.default, args, {}, result_meta)
    result.deviates = not same_strides(meta.shape, promised, meta.stride)
    return result


def _on_gpu(builder: LoweringBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, rest: Sequence[Any]) -> Tensor:
    """Loops add the bias: those that read the result, where there are any, else as many as the library would run."""
    stride, padding, _, transposed, _, groups = rest
    wish = _gpu_prefers_channels_last(builder, x, weight, transposed, groups)
    if wish is None:
        wish = is_channels_last(x) or _feeds_channels_last(builder)
    strides = channels_last_strides if wish else contiguous_strides
    if wish and not transposed and is_product(weight, stride, padding, groups) and multiplies_on_gpu(x):
        result = _rows_times_kernel(builder, x, weight)
    else:
        args = [builder.argument(x, strides(x.shape)), builder.argument(weight, strides(weight.shape)), None]
        result = _called(builder, [*args, *rest], strides(builder.meta.shape))
    return result if bias is None else _plus_bias(builder, result, bias)


def _plus_bias(builder: LoweringBuilder, images: Tensor, bias: Tensor) -> Tensor:
    return elementwise(builder, lambda ops, y, b: ops.add(y, b), [images, reshape(bias, (1, bias.shape[0], 1, 1))])


def _rows_times_kernel(builder: LoweringBuilder, x: Tensor, weight: Tensor) -> Tensor:
    """[positions, channels] @ [channels, out], for images [N, C, H, W] in NHWC."""
    batch, channels, height, width = x.shape
    out = weight.shape[0]
    images = in_format(builder, x, channels_last_strides(x.shape))
    rows = reshape(permute(images, (0, 2, 3, 1)), (batch * height * width, channels))
    product = multiply(builder, rows, permute(reshape(weight, (out, channels)), (1, 0)))
    result = permute(reshape(product, (batch, height, width, out)), (0, 3, 1, 2))
    result.deviates = not same_strides(result.shape, channels_last_strides(result.shape), builder.meta.stride)
    return result


def is_product(weight: Tensor, stride: Sequence[int], padding: Sequence[int], groups: int) -> bool:
    """True if the convolution is a matrix product: kernels of one tap, each position read once."""
    return groups == 1 and weight.shape[2:] == (1, 1) and set(stride) == {1} and set(padding) == {0}


def skips_positions(weight: Tensor, stride: Sequence[int], padding: Sequence[int], groups: int) -> bool:
    """True if the convolution is such a product once the positions that a stride skips are dropped. In NHWC the library
    takes up to 2.4 times as long."""
    return groups == 1 and weight.shape[2:] == (1, 1) and max(stride) > 1 and set(padding) == {0}


def read_positions(x: Tensor, out: Sizes, stride: Sequence[int]) -> Tensor:
    """The positions of images that such a kernel reads."""
    return slice_dim(slice_dim(x, 2, 0, out[0], stride[0]), 3, 0, out[1], stride[1])


def is_single_position_product(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], groups: int
) -> bool:
    """True for such a product on images of one position, which are rows of a matrix in every format.

    The library spends 50 microseconds preparing the convolution; the product takes 5.
    """
    plain = have_fast_products(x, weight) or (multiplies_on_gpu(x) and multiplies_on_gpu(weight))
    single = x.rank == 4 and x.shape[2:] == (1, 1) and 0 not in x.shape
    return single and plain and is_product(weight, stride, padding, groups)


def _single_product(builder: LoweringBuilder, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[batch, channels] @ [channels, out]."""
    batch, out = x.shape[0], weight.shape[0]
    rows, columns = reshape(x, x.shape[:2]), permute(reshape(weight, weight.shape[:2]), (1, 0))
    if bias is not None and is_half_float(x.dtype):
        return reshape(multiply_and_add(builder, rows, columns, bias), (batch, out, 1, 1))
    result = multiply(builder, rows, columns)
    if bias is not None:
        result = elementwise(builder, lambda ops, y, b: ops.add(y, b), [result, bias])
    return reshape(result, (batch, out, 1, 1))


def _quicker_product(builder: LoweringBuilder, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """`_product_nhwc` of float32; None where the library's convolution of these positions in NHWC is as quick."""
    batch, out, channels = builder.sizes.hints((x.shape[0], *weight.shape[:2]))
    positions = builder.sizes.hint(numel(x.shape[2:]))
    if x.dtype is not torch.float32 or not is_product_quicker(batch, positions, channels, out, channels_last=True):
        return None
    return _product_nhwc(builder, x, weight, bias)


def _product_nhwc(
    builder: LoweringBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, post: PostOperation = NO_POST
) -> Tensor | None:
    """[positions, channels] @ [channels, out]; the library's convolution would take 1.1 times as long."""
    batch, channels, height, width = x.shape
    out = weight.shape[0]
    builder.argument(x, channels_last_strides(x.shape))  # stores x in that format, if it is not in memory yet
    rows = reshape(permute(x, (0, 2, 3, 1)), (batch * height * width, channels))
    matrix = permute(reshape(weight, (out, channels)), (1, 0))
    columns = builder.argument(matrix)
    meta = TensorMeta((rows.shape[0], out), (out, 1), x.dtype, x.device)
    result, added = _with_bias(builder, rows, columns, out, bias, meta, post)
    if result is None and is_half_float(x.dtype) and post is NO_POST:
        result, added = multiply_and_add(builder, rows, matrix, bias), None
    if result is None:
        return None
    images = permute(reshape(result, (batch, height, width, out)), (0, 3, 1, 2))
    images.deviates = not same_strides(images.shape, images.strides, builder.meta.stride)
    return images if added is None else _plus_bias(builder, images, added)


def _with_bias(
    builder: LoweringBuilder,
    rows: Tensor,
    columns: str | View,
    out: Any,
    bias: Tensor | None,
    meta: TensorMeta,
    post: PostOperation,
) -> tuple[Tensor | None, Tensor | None]:
    """The product, and the bias if loops are to add it."""
    constant = constant_of(builder, columns)
    if post is not NO_POST and constant is not None:
        takes = ONEDNN in implementations(rows.dtype, rows_are_known=False)
        made = packed_product(builder, ONEDNN, rows, columns, constant, bias, meta, post) if takes else None
        return made, None
    to_loops = bias is not None and only_feeds_loops(builder.node)
    found = linear_product(builder, rows, columns, out, bias, meta, loops_follow=to_loops)
    if found is not None or not to_loops or constant is None:
        return found, None
    return linear_product(builder, rows, columns, out, None, meta), bias


def _product_nchw(builder: LoweringBuilder, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """[out, channels] @ [channels, positions] of one image."""
    batch, channels, height, width = x.shape
    if batch != 1:
        return None
    out, positions = weight.shape[0], height * width
    builder.argument(x, contiguous_strides(x.shape))
    image = builder.argument(reshape(x, (channels, positions)))
    meta = TensorMeta((out, positions), (positions, 1), x.dtype, x.device)
    result = linear_product(builder, reshape(weight, (out, channels)), image, positions, None, meta)
    if result is None:
        return None
    images = reshape(result, (1, out, height, width))
    if bias is None:
        return images
    return elementwise(builder, lambda ops, y, b: ops.add(y, b), [images, reshape(bias, (1, out, 1, 1))])


def _may_choose(x: Tensor, weight: Tensor, meta: TensorMeta, transposed: bool) -> bool:
    """True where lowering may choose the format: where the library unambiguously follows the format of its input or,
    for images of one channel, of the kernel. At other sizes than the example's, images of one position have both
    formats; the program then repairs the result."""
    return (
        x.rank == 4
        and not transposed
        and meta.device.type == "cpu"
        and (meta.dtype is torch.float32 or is_half_float(meta.dtype))
        and meta.stride == contiguous_strides(meta.shape)
        and all(x.sizes.known(">", size, 0) for size in x.shape)
        and all(x.sizes.hint(size) > 1 for size in (*x.shape[2:], *meta.shape[2:]))
        and x.sizes.known(">", meta.shape[1], 1)
        and (x.sizes.known(">", x.shape[1], 1) or min(weight.shape[2:]) > 1)
    )


def _may_be_packed(x: Tensor, weight: Tensor, bias: Tensor | None, meta: TensorMeta) -> bool:
    """As `_may_choose`, for NHWC data; the data may also lie so in eager."""
    plain = all(one is None or (one.dtype is x.dtype and one.device == x.device) for one in (weight, bias))
    if meta.stride == channels_last_strides(meta.shape):
        meta = replace(meta, stride=contiguous_strides(meta.shape))
    return plain and _may_choose(x, weight, replace(meta, dtype=torch.float32), False)


def _is_channels_last_in_eager(x: Tensor, given: Strides, meta: TensorMeta, transposed: bool) -> bool:
    plain = x.rank == 4 and not transposed and x.device.type == "cpu" and x.dtype is torch.float32
    return plain and given == channels_last_strides(x.shape) and meta.stride == channels_last_strides(meta.shape)


def may_choose_for_gpu(x: Tensor, out: Sizes) -> bool:
    """True for images on a GPU whose convolutions cuDNN computes in the format of data and weight. Double precision has
    one format there, and without cuDNN ATen's own kernels have one."""
    shapes = (x.shape, out)
    return (
        x.rank == 4
        and x.device.type == "cuda"
        and x.dtype in GPU_DTYPES
        and torch.backends.cudnn.enabled
        and all(x.sizes.known(">", size, 0) for shape in shapes for size in shape)
        and all(x.sizes.hint(size) > 1 for shape in shapes for size in shape[2:])
        and all(x.sizes.known(">", shape[1], 1) for shape in shapes)
    )


def in_tensor_cores(dtype: torch.dtype) -> bool:
    """True if cuDNN multiplies in tensor cores, which take channels-last data."""
    if dtype is not torch.float32:
        return True
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    tf32: bool = torch.backends.cudnn.allow_tf32 if precision is None else precision("cuda", "conv") == "tf32"
    return tf32


def _gpu_prefers_channels_last(
    builder: LoweringBuilder, x: Any, weight: Any, transposed: Any, groups: Any
) -> bool | None:
    """In inference, kernels of groups become launches, which take channels-last data; x, weight: tensors or metas."""
    sizes = (*x.shape, *weight.shape)
    if groups > 1 and not transposed and not builder.trains and all(isinstance(size, int) for size in sizes):
        out, channels = weight.shape[0] // groups, weight.shape[1]
        if launches_groups(x.device, x.dtype, channels, out):
            return True
    channels = builder.sizes.hint(weight.shape[1])
    return gpu_convolution_prefers_channels_last(groups, channels, in_tensor_cores(x.dtype), builder.trains)


def runs_channels_last(x: Tensor) -> bool:
    """True if loops over images on a GPU should run in NHWC: where convolutions and products around them do."""
    return is_channels_last(x) or (x.rank == 4 and in_tensor_cores(x.dtype) and may_choose_for_gpu(x, x.shape))


def prefers_channels_last(
    builder: LoweringBuilder, shapes: Sequence[Sizes], groups: int, dtype: torch.dtype
) -> bool | None:
    """True if a convolution of float32 or half floats on the CPU is quicker in NHWC; None without a preference. Sums in
    another order than eager's differ by percents behind many norms of few images, so training has less of NHWC."""
    if dtype is not torch.float32:
        return True
    x, weight, result = map(builder.sizes.hints, shapes)
    pointwise = groups == 1 and weight[2:] == (1, 1)
    several = x[0] > 1 and x[2:] == result[2:] and not builder.trains
    if pointwise and several and is_product_quicker(x[0], numel(x[2:]), weight[1], weight[0], channels_last=False):
        return True
    found = convolution_prefers_channels_last(groups, weight[1], pointwise, numel(weight), numel(x) + numel(result))
    if pointwise or builder.trains or found:
        return found
    return True if _are_quicker_together(builder) else found


def _are_quicker_together(builder: LoweringBuilder) -> bool:
    """Whether NHWC saves more on the data of all kernels of several taps of the graph than it costs to reorder their
    weights: then none of them keeps the others from it."""
    if builder.saves_channels_last is None:
        saved = 0
        for node in builder.node.graph.nodes:
            if node.target is aten.convolution.default and not node.args[6]:
                x, weight, result = (builder.sizes.hints(one.meta["val"].shape) for one in (*node.args[:2], node))
                if len(x) == 4 and weight[2:] != (1, 1) and (node.args[8] == 1 or weight[1] > NARROW_GROUP):
                    saved += numel(x) + numel(result) - DATA_ELEMENTS_PER_WEIGHT_TOGETHER * numel(weight)
        builder.saves_channels_last = saved > 0
    return builder.saves_channels_last


def _feeds_channels_last(builder: LoweringBuilder) -> bool:
    """True if a later node wants NHWC data, and no convolution with a preference lies on the way to it."""
    if builder.wants_channels_last is None:
        wants: dict[fx.Node, bool] = {}
        for node in reversed(builder.node.graph.nodes):
            wants[node] = any(_passes_on(user, wants, builder) for user in node.users)
        builder.wants_channels_last = wants
    return builder.wants_channels_last[builder.node]


def _passes_on(user: fx.Node, wants: dict[fx.Node, bool], builder: LoweringBuilder) -> bool:
    """True if this user wants its argument in NHWC, for itself or for nodes behind it."""
    if user.target is aten.convolution.default:
        x, weight, groups = user.args[0].meta["val"], user.args[1].meta["val"], user.args[8]  # type: ignore[union-attr]
        if x.device.type == "cuda":
            wish = _gpu_prefers_channels_last(builder, x, weight, user.args[6], groups)
        else:
            wish = prefers_channels_last(builder, (x.shape, weight.shape, user.meta["val"].shape), groups, x.dtype)  # type: ignore[arg-type]
        return wants[user] if wish is None else wish
    if user.target is aten.permute.default and tuple(user.args[1]) == (0, 2, 3, 1):  # type: ignore[arg-type]
        return True
    return wants[user] and _is_spatial(user)


def _is_spatial(node: fx.Node) -> bool:
    """True if the node still has a batch of images, so that it can pass the format on."""
    if node.target is operator.getitem:
        return True
    meta = node.meta.get("val")
    if isinstance(meta, tuple | list):
        meta = meta[0] if meta else None
    return isinstance(meta, TensorMeta) and len(meta.shape) == 4
