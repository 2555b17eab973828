"""Lowerings that call a library kernel on purpose: matrix products, convolutions, attention.

Arguments that strides can express are passed as views of what is there, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.inductor.buffers import View
from stator.prims.layout import contiguous_strides

from .builder import Builder
from .fallback import library_results
from .registry import lowers
from .tensor import Strides, Tensor

aten = torch.ops.aten


def matrix(builder: Builder, x: Tensor) -> str | View:
    """A matrix (or a batch of them) as BLAS takes it: one of the last two dimensions has stride one."""
    stored = builder.realize(x)
    strides = None if stored is None else stored.strides
    if strides is not None and _fits_blas(x.shape[-2:], strides[-2:]):
        return builder.argument(x)
    return builder.argument(x, contiguous_strides(x.shape))


def _fits_blas(shape: Sequence[int], strides: Sequence[int]) -> bool:
    rows, columns = shape
    down, across = strides
    return (across == 1 and down >= max(columns, 1)) or (down == 1 and across >= max(rows, 1))


def _product(builder: Builder, target: Any, args: Sequence[Any], **kwargs: Any) -> Tensor:
    """Call an out= overload into a fresh contiguous buffer."""
    return builder.extern(target, args, kwargs, [builder.meta], style="out")[0]  # type: ignore[return-value]


@lowers(aten.mm.default)
def _mm(builder: Builder, a: Tensor, b: Tensor) -> Any:
    return _product(builder, aten.mm.out, [matrix(builder, a), matrix(builder, b)])


@lowers(aten.bmm.default)
def _bmm(builder: Builder, a: Tensor, b: Tensor) -> Any:
    return _product(builder, aten.bmm.out, [matrix(builder, a), matrix(builder, b)])


@lowers(aten.addmm.default)
def _addmm(builder: Builder, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    args = [builder.argument(bias), matrix(builder, a), matrix(builder, b)]
    return _product(builder, aten.addmm.out, args, beta=beta, alpha=alpha)


@lowers(aten.baddbmm.default)
def _baddbmm(builder: Builder, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    args = [builder.argument(bias), matrix(builder, a), matrix(builder, b)]
    return _product(builder, aten.baddbmm.out, args, beta=beta, alpha=alpha)


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash_attention(
    builder: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Heads may lie anyhow; only the innermost dimension has to be contiguous."""
    args = [_innermost_contiguous(builder, part) for part in (query, key, value)]
    mask = None if attn_mask is None else builder.argument(attn_mask)
    named = {"attn_mask": mask, "scale": scale}
    target = aten._scaled_dot_product_flash_attention_for_cpu.default
    return library_results(builder, target, [*args, dropout, is_causal], named, builder.meta)


def _innermost_contiguous(builder: Builder, x: Tensor) -> str | View:
    stored = builder.realize(x)
    if stored is not None and stored.strides[-1] == 1:
        return builder.argument(x)
    return builder.argument(x, contiguous_strides(x.shape))


@lowers(aten.convolution.default)
def _convolution(
    builder: Builder,
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
    node = builder.node
    strides: list[Strides] = [node.args[at].meta["val"].stride for at in range(2)]
    args = [builder.argument(x, strides[0]), builder.argument(weight, strides[1])]
    args.append(None if bias is None else builder.argument(bias))  # type: ignore[arg-type]
    rest = [stride, padding, dilation, transposed, output_padding, groups]
    return library_results(builder, aten.convolution.default, [*args, *rest], {}, builder.meta)
