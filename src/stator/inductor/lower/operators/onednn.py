"""Matrix products by oneDNN: the linear-layer kernel with its bias, which also accepts weights that are not prepacked.

On two cores of an AVX-512 machine it takes 0.45 to 0.75 of the time of BLAS for products of 100 rows and more
(benchmarks/products.py). Below `WORTHWHILE` multiplications its fixed cost of about 15 microseconds shows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from stator.inductor.buffers import View
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.fallback import library_results
from stator.inductor.lower.tensor import Tensor
from stator.prims.record import TensorMeta

WORTHWHILE = 1 << 20


def linear_product(
    builder: LoweringBuilder,
    a: Tensor,
    b: str | View,
    columns: Any,
    bias: Tensor | None,
    meta: TensorMeta | None = None,
) -> Any | None:
    """`a @ b + bias` for a matrix `b` of `columns` columns, given as a library argument; None if BLAS is better.

    `meta` describes the result; the default is the node's own.
    """
    rows, inner = a.shape
    plain = bias is None or (bias.shape == (columns,) and bias.dtype == torch.float32)
    if a.dtype != torch.float32 or a.device.type != "cpu" or not plain:
        return None
    if builder.sizes.hint(rows * inner * columns) < WORTHWHILE:
        return None
    if not _available() or not _is_dense(builder, b):
        return None
    given = [builder.argument(a, (inner, 1)), _transposed(builder, b)]
    given.append(None if bias is None else builder.argument(bias, (1,)))  # type: ignore[arg-type]
    target = torch.ops.mkldnn._linear_pointwise.default
    return library_results(builder, target, [*given, "none", [], ""], {}, meta or builder.meta)


def _available() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def is_transposed(a: Tensor) -> bool:
    """True if the matrix is stored column by column. BLAS takes such a matrix; `linear_product` would copy it first,
    which costs more than the product gains (gradients of weights are such products)."""
    planned = a.planned()
    return planned is not None and planned[0][0] == 1 and a.sizes.hint(planned[0][1]) >= a.sizes.hint(a.shape[0]) > 1


def _is_dense(builder: LoweringBuilder, matrix: str | View) -> bool:
    """True without gaps between rows or columns. With gaps, the library uses a slow reference implementation."""
    layout = matrix.layout if isinstance(matrix, View) else builder.buffers[matrix].layout
    return builder.sizes.is_dense(layout.size, layout.stride)


def _transposed(builder: LoweringBuilder, matrix: str | View) -> View:
    view = builder.as_view(matrix)
    return replace(view, layout=replace(view.layout, size=view.layout.size[::-1], stride=view.layout.stride[::-1]))
