"""Matrix products by oneDNN's kernel for linear layers, with its bias, and by our kernel for few rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from stator.inductor.buffers import Layout, View
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.constant_weights import constant_of, packed_product, quickest_for
from stator.inductor.lower.direct_convolution import direct_product
from stator.inductor.lower.fallback import library_results
from stator.inductor.lower.products_by_matrix import product_by_matrix
from stator.inductor.lower.tensor import Tensor
from stator.prims.record import TensorMeta
from stator.runtime.matrix_products import (
    BLAS,
    WORTHWHILE,
    are_few_rows_quicker,
    is_known_quicker,
    is_onednn_quicker,
    onednn_takes,
)
from stator.runtime.packed_products import MKL

# Numbers of rows between which the better library changes, where it does
_ROWS = (1, 8, 32, 128, 1024)
_FEW_ROWS = (1, 4, 8, 16)


def linear_product(
    builder: LoweringBuilder,
    a: Tensor,
    b: str | View,
    columns: Any,
    bias: Tensor | None,
    meta: TensorMeta | None = None,
    *,
    loops_follow: bool = False,
) -> Any | None:
    """`a @ b + bias` for a matrix `b` of `columns` columns, given as a library argument; None where oneDNN does not
    take these matrices, or for little work. For constant matrices, see `quicker_product`.

    `meta` describes the result; the default is the node's own.
    """
    if constant_of(builder, b) is not None:
        return quicker_product(builder, a, b, columns, bias, meta, loops_follow=loops_follow)
    if tiled := _in_tiles(builder, a, b, columns, bias, meta):
        return tiled
    if not _takes(builder, a, b, columns, bias) or builder.sizes.hint(a.numel * columns) < WORTHWHILE:
        return None
    return _by_onednn(builder, a, b, bias, meta)


def quicker_product(
    builder: LoweringBuilder,
    a: Tensor,
    b: str | View,
    columns: Any,
    bias: Tensor | None,
    meta: TensorMeta | None = None,
    *,
    loops_follow: bool = False,
) -> Any | None:
    """As `linear_product`; None if BLAS is quicker. Where this depends on the number of rows, each call chooses; for
    other sizes that change, the example decides.

    loops_follow: loops read the result. None then also stands for a library that adds the bias by a pass of its own."""
    weight = constant_of(builder, b)
    if weight is not None:
        library = quickest_for(builder, a, weight, bias)
        if isinstance(library, DirectConvolution):
            return direct_product(builder, a, weight, bias, library, meta or builder.meta, builder.as_view(b))
        if library == BLAS or (library == MKL and bias is not None and loops_follow):
            return None
        return packed_product(builder, library, a, b, weight, bias, meta)
    rows, inner = a.shape
    if _suits_few_rows(builder, a, b, columns, bias):
        return (
            _by_few_rows(builder, a, b, bias, meta)
            if isinstance(rows, int)
            else _by_quickest(builder, a, b, bias, meta)
        )
    if tiled := _in_tiles(builder, a, b, columns, bias, meta):
        return tiled
    if not _takes(builder, a, b, columns, bias):
        return None
    matrix = builder.sizes.hint(inner), builder.sizes.hint(columns), _layout(builder, b).stride[1] == 1
    found = {is_onednn_quicker(builder.sizes.hint(rows), *matrix, tunes=builder.tunes)}
    changes = isinstance(inner, int) and isinstance(columns, int) and not isinstance(rows, int)
    if changes:
        found.update(is_known_quicker(number, *matrix) for number in _ROWS)
    if found == {False}:
        return None
    if found == {True}:
        return _by_onednn(builder, a, b, bias, meta)
    return _by_quickest(builder, a, b, bias, meta)


def product_in_tiles(builder: LoweringBuilder, a: Tensor, b: str | View, columns: Any, bias: Tensor) -> Tensor | None:
    """`a @ b + bias` where `quicker_product` has a kernel of ours for it, whatever the number of rows; else None."""
    if constant_of(builder, b) is not None or _suits_few_rows(builder, a, b, columns, bias):
        return None
    return _in_tiles(builder, a, b, columns, bias, None)


def _in_tiles(
    builder: LoweringBuilder, a: Tensor, b: str | View, columns: Any, bias: Tensor | None, meta: TensorMeta | None
) -> Tensor | None:
    return None if is_transposed(a) else product_by_matrix(builder, a, b, columns, bias, meta or builder.meta)


def _suits_few_rows(builder: LoweringBuilder, a: Tensor, b: str | View, columns: Any, bias: Tensor | None) -> bool:
    """True for a matrix of contiguous columns, by which our kernel multiplies these rows quicker than any library; if
    their number changes, some number of them."""
    rows, inner = a.shape
    layout = _layout(builder, b)
    if layout.dtype is not torch.float32 or tuple(layout.stride) != (1, inner) or not _is_single(a, columns, bias):
        return False
    if not isinstance(inner, int) or not isinstance(columns, int):
        return False
    found = [
        are_few_rows_quicker(number, inner, columns, builder.tunes)
        for number in ((rows,) if isinstance(rows, int) else _FEW_ROWS)
    ]
    return any(found)  # after all are asked: each call chooses by what is known


def _by_few_rows(
    builder: LoweringBuilder, a: Tensor, b: str | View, bias: Tensor | None, meta: TensorMeta | None
) -> Any:
    return _chosen_when_bound(builder, torch.ops.stator.few_rows_product.default, a, b, bias, meta)


def _by_quickest(
    builder: LoweringBuilder, a: Tensor, b: str | View, bias: Tensor | None, meta: TensorMeta | None
) -> Any:
    """The product that chooses by sizes."""
    return _chosen_when_bound(builder, torch.ops.stator.linear_product.default, a, b, bias, meta)


def _chosen_when_bound(
    builder: LoweringBuilder, target: Any, a: Tensor, b: str | View, bias: Tensor | None, meta: TensorMeta | None
) -> Any:
    given = [_rows(builder, a), b, *([] if bias is None else [builder.argument(bias, (1,))])]
    return library_results(builder, target, given, {}, meta or builder.meta)


def _rows(builder: LoweringBuilder, a: Tensor) -> str | View:
    """The matrix with its own distance of rows, which BLAS takes, or else without gaps."""
    planned = a.planned()
    apart = planned is not None and planned[0][1] == 1 and a.sizes.known(">=", planned[0][0], a.shape[1])
    return builder.argument(a) if apart else builder.argument(a, (a.shape[1], 1))


def _takes(builder: LoweringBuilder, a: Tensor, b: str | View, columns: Any, bias: Tensor | None) -> bool:
    return _is_single(a, columns, bias) and onednn_takes(a.dtype) and _is_dense(builder, b)


def _is_single(a: Tensor, columns: Any, bias: Tensor | None) -> bool:
    """True for float32 on a CPU, with one number of the bias for each column."""
    plain = bias is None or (bias.shape == (columns,) and bias.dtype == torch.float32)
    return plain and a.dtype == torch.float32 and a.device.type == "cpu"


def _by_onednn(builder: LoweringBuilder, a: Tensor, b: str | View, bias: Tensor | None, meta: TensorMeta | None) -> Any:
    added = None if bias is None else builder.argument(bias, (1,))
    given: list[Any] = [builder.argument(a, (a.shape[1], 1)), _transposed(builder, b), added, "none", [], ""]
    return library_results(builder, torch.ops.mkldnn._linear_pointwise.default, given, {}, meta or builder.meta)


def is_transposed(a: Tensor) -> bool:
    """True if the matrix is stored column by column. BLAS takes such a matrix; `linear_product` would copy it first,
    which costs more than the product gains (gradients of weights are such products)."""
    planned = a.planned()
    return planned is not None and planned[0][0] == 1 and a.sizes.hint(planned[0][1]) >= a.sizes.hint(a.shape[0]) > 1


def _is_dense(builder: LoweringBuilder, matrix: str | View) -> bool:
    """True without gaps between rows or columns. With gaps, the library uses a slow reference implementation."""
    layout = _layout(builder, matrix)
    return builder.sizes.is_dense(layout.size, layout.stride)


def _layout(builder: LoweringBuilder, matrix: str | View) -> Layout:
    return matrix.layout if isinstance(matrix, View) else builder.buffers[matrix].layout


def _transposed(builder: LoweringBuilder, matrix: str | View) -> View:
    view = builder.as_view(matrix)
    return replace(view, layout=replace(view.layout, size=view.layout.size[::-1], stride=view.layout.stride[::-1]))
