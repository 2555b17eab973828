"""Products and convolutions with constant weights: the quickest library on this machine, and
its own layout of the weight, made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from stator.base import counters
from stator.inductor.buffers import View
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.direct_convolution import (
    MOST_TIMED,
    TUNED_WORK,
    products_in_tiles,
    products_in_tiles_runs,
)
from stator.inductor.lower.fallback import library_results
from stator.inductor.lower.tensor import Tensor
from stator.prims.layout import channels_last_strides, same_strides
from stator.prims.record import TensorMeta
from stator.runtime.packed_products import (
    BLAS,
    FEW_ROWS,
    MKL,
    TILED_BLOCK,
    packed_kernel,
    packed_weight,
    quickest_product,
    without_data,
)

aten = torch.ops.aten

# Activations that oneDNN applies to results of convolutions: by operator, its name for them. It also has others, which
# give numbers for NaN (relu, hardtanh, hardsigmoid).
_POST_OPERATIONS: dict[Any, str] = {
    aten.hardswish.default: "hardswish",
    aten.silu.default: "swish",
    aten.sigmoid.default: "sigmoid",
    aten.tanh.default: "tanh",
}


@dataclass(frozen=True, slots=True)
class PostOperation:
    """An activation that oneDNN applies to a result, and its node."""

    name: str
    node: fx.Node | None


NO_POST = PostOperation("none", None)

# Multiplications below which the call takes longer than the product, so that BLAS writes into memory that is there.
_LEAST_WORK = 1 << 15


def constant_of(builder: LoweringBuilder, argument: str | View) -> torch.Tensor | None:
    """The values of a library's argument that no call changes."""
    view = builder.as_view(argument)
    value, layout = builder.buffers[view.base].value, view.layout
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.dtype is not layout.dtype:
        return None
    if not all(isinstance(number, int) for number in (*layout.size, *layout.stride, layout.offset)):
        return None
    return value.as_strided(layout.size, layout.stride, value.storage_offset() + layout.offset)


def constant_tensor(builder: LoweringBuilder, x: Tensor) -> torch.Tensor | None:
    """The values of a tensor that no call changes."""
    return None if x.resolved() is None else constant_of(builder, builder.argument(x))


def packed_convolution(
    builder: LoweringBuilder,
    x: Tensor,
    weight: torch.Tensor,
    bias: Tensor | None,
    rest: Sequence[Any],
    key: Any,
    post: PostOperation,
) -> Tensor:
    """A convolution of images [N, C, H, W] in NHWC. rest: stride, padding, dilation and groups. key: names the weight,
    in this graph."""
    stride, padding, dilation, groups = rest
    meta, images = builder.meta, builder.sizes.hints(x.shape)
    name = ("convolution", key, tuple(stride), tuple(padding), tuple(dilation), images)
    if name not in builder.shared_results:
        counters.count("packed:convolution")
        packed = packed_kernel(weight, stride, padding, dilation, groups, images)
        _opaque(builder, name, packed, tuple(weight.shape))
    matrix = builder.argument(x, channels_last_strides(x.shape))
    added = None if bias is None else builder.argument(bias, (1,))
    given = [matrix, builder.shared_results[name], added, padding, stride, dilation, groups, post.name, [], ""]
    promised = channels_last_strides(meta.shape)
    result_meta = TensorMeta(meta.shape, promised, meta.dtype, meta.device)
    target = torch.ops.mkldnn._convolution_pointwise.default
    result: Tensor = library_results(builder, target, given, {}, result_meta)
    result.deviates = not same_strides(meta.shape, promised, meta.stride)
    return result


def post_operation(builder: LoweringBuilder) -> PostOperation:
    """The activation that is the only reader of this node's result."""
    readers = list(builder.node.users)
    if len(readers) == 1 and readers[0].target in _POST_OPERATIONS:
        return PostOperation(_POST_OPERATIONS[readers[0].target], readers[0])
    return NO_POST


def quickest_for(
    builder: LoweringBuilder, a: Tensor, weight: torch.Tensor, bias: Tensor | None
) -> str | DirectConvolution:
    """The kernel of ours or the library for `a @ weight + bias`, where the weight is constant. Where kernels of ours
    take the sizes, max-autotune alone compares them with libraries."""
    rows = builder.sizes.hint(a.shape[0])
    own = products_in_tiles(a, weight, bias)
    if own:
        if builder.compiled_convolutions is None or not builder.tunes or rows * weight.numel() < TUNED_WORK:
            return own[0]
        # the parts of a large weight end within other tiles
        timed = [one for one in own if weight.shape[1] <= TILED_BLOCK or TILED_BLOCK % one.tile.columns == 0]
        named = {f"{one.tile.rows} x {one.tile.columns}": one for one in timed[:MOST_TIMED]}
        runs = partial(products_in_tiles_runs, builder.compiled_convolutions, [*named.values()])
        chosen = quickest_product(rows, weight.t(), True, tuple(named), runs)
        return named.get(chosen, chosen)
    plain = bias is None or (bias.shape == weight.shape[1:] and bias.dtype is a.dtype)
    if not plain or a.dtype is not weight.dtype or a.device.type != "cpu" or rows * weight.numel() < _LEAST_WORK:
        return BLAS
    return quickest_product(rows, weight.t(), isinstance(a.shape[0], int))


def packed_product(
    builder: LoweringBuilder,
    library: str,
    a: Tensor,
    b: str | View,
    weight: torch.Tensor,
    bias: Tensor | None,
    meta: TensorMeta | None,
    post: PostOperation = NO_POST,
) -> Any:
    """`a @ weight + bias` by a library other than BLAS. b: the weight as an argument. post: with oneDNN alone."""
    rows = builder.sizes.hint(a.shape[0])
    if library == FEW_ROWS:
        few = [builder.argument(a, (a.shape[1], 1)), _by_columns(builder, b, weight)]
        few += [] if bias is None else [builder.argument(bias, (1,))]
        return library_results(builder, torch.ops.stator.few_rows_product.default, few, {}, meta or builder.meta)
    packed = _packed(builder, library, rows, b, weight)
    matrix, added = builder.argument(a, (a.shape[1], 1)), None if bias is None else builder.argument(bias, (1,))
    if library == MKL:
        shape = _opaque(builder, ("shape", weight.shape), without_data(weight.t()), tuple(weight.t().shape))
        given: list[Any] = [matrix, packed, shape, added, rows]
        return library_results(builder, torch.ops.mkl._mkl_linear.default, given, {}, meta or builder.meta)
    given = [matrix, packed, added, post.name, [], ""]
    return library_results(builder, torch.ops.mkldnn._linear_pointwise.default, given, {}, meta or builder.meta)


def _packed(builder: LoweringBuilder, library: str, rows: int, b: str | View, weight: torch.Tensor) -> str:
    view = builder.as_view(b)
    key = (library, rows if library == MKL else 0, view)
    if key not in builder.shared_results:
        counters.count(f"packed:{library}")
        return _opaque(builder, key, packed_weight(library, rows, weight.t()), tuple(weight.t().shape))
    return str(builder.shared_results[key])


def _by_columns(builder: LoweringBuilder, b: str | View, weight: torch.Tensor) -> str | View:
    """The weight with contiguous columns: itself, or a copy."""
    view, strides = builder.as_view(b), (1, weight.shape[0])
    if weight.stride() == strides:
        return view
    key = (FEW_ROWS, 0, view)
    if key not in builder.shared_results:
        turned = packed_weight(FEW_ROWS, 0, weight.t())
        builder.shared_results[key] = f"turned_{len(builder.shared_results)}"
        builder.add_constant(turned, builder.shared_results[key])
    return View(builder.shared_results[key], replace(view.layout, stride=strides, offset=0))


def _opaque(builder: LoweringBuilder, key: Any, value: torch.Tensor, shape: tuple[int, ...]) -> str:
    found = builder.shared_results.get(key)
    if found is None:
        name = f"packed_{len(builder.shared_results)}"
        found = builder.shared_results[key] = builder.add_opaque(value, name, shape)
    return str(found)


def shared_opaque(builder: LoweringBuilder, key: Any, make: Callable[[], torch.Tensor], plain: torch.Tensor) -> str:
    """A constant of a library's own, made once for each key: the name of its buffer. plain: of the size that the
    library takes it for."""
    if key not in builder.shared_results:
        counters.count(f"packed:{key[0]}")
        _opaque(builder, key, make(), tuple(plain.shape))
    return str(builder.shared_results[key])
