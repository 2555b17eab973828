"""Gradients whose ATen formulas first read which elements count: `stator::` operators.

Run eagerly, such an operator equals ATen to the last bit. Its decomposition reads no data first and sums in another
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import Sizes, contiguous_strides, elementwise_strides, has_zero
from stator.prims.record import TensorMeta, decomposition, shape_rule

aten = torch.ops.aten


def _sum_where(gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return gradient.masked_select(mask).sum()


def _sum_where_to(gradient: torch.Tensor, mask: torch.Tensor, lead: int, shape: Sequence[int]) -> torch.Tensor:
    return aten.index.Tensor(gradient, [*[None] * lead, mask]).sum_to_size(list(shape)).contiguous()


def _sum_of_slices(gradient: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return gradient.index_select(dim, aten._unique.default(index, False)[0]).sum()


def _prod_gradient(
    gradient: torch.Tensor, factors: torch.Tensor, product: torch.Tensor, dim: int, whole: bool
) -> torch.Tensor:
    zeros = (factors == 0).sum()
    if zeros == 0:
        found = gradient * (product / factors).conj()
    elif whole and zeros > 1:
        found = torch.zeros_like(factors)
    else:
        found = _prod_gradient_by_others(gradient, factors, product, dim, whole)
    strides = _prod_gradient_strides(gradient, factors, product)
    if found.stride() == strides and not found.is_conj():
        return found
    return torch.empty_strided(found.shape, strides, dtype=found.dtype, device=found.device).copy_(found)


def _prod_gradient_strides(gradient: Any, factors: Any, product: Any) -> Sizes:
    """Return the strides of gradient * (product / factors), whichever way it is computed."""
    shape = tuple(factors.shape)
    if has_zero(shape):
        return contiguous_strides(shape)
    first, second, third = ((tuple(one.shape), tuple(one.stride())) for one in (gradient, product, factors))
    return elementwise_strides(shape, (first, (shape, elementwise_strides(shape, (second, third)))))


_library = torch.library.Library("stator", "FRAGMENT")
for _schema, _function in (
    ("sum_where(Tensor gradient, Tensor mask) -> Tensor", _sum_where),
    ("sum_where_to(Tensor gradient, Tensor mask, int lead, SymInt[] shape) -> Tensor", _sum_where_to),
    ("sum_of_slices(Tensor gradient, int dim, Tensor index) -> Tensor", _sum_of_slices),
    (
        "prod_gradient(Tensor gradient, Tensor factors, Tensor product, int dim, bool whole) -> Tensor",
        _prod_gradient,
    ),
):
    _library.define(_schema)
    _library.impl(_schema.partition("(")[0], _function, "CompositeExplicitAutograd")

sum_where = torch.ops.stator.sum_where.default
sum_where_to = torch.ops.stator.sum_where_to.default
sum_of_slices = torch.ops.stator.sum_of_slices.default
prod_gradient = torch.ops.stator.prod_gradient.default


@shape_rule(sum_where, tags=("reduction",))
def sum_where_shape(gradient: Any, mask: Any) -> TensorMeta:
    """Sums the elements of `gradient` where the bool `mask`, expanded to its shape, is True."""
    return TensorMeta((), (), gradient.dtype, gradient.device)


@shape_rule(sum_where_to, tags=("reduction",))
def sum_where_to_shape(gradient: Any, mask: Any, lead: int, shape: Sequence[Any]) -> TensorMeta:
    """Sums gradient[mask] to `shape`; contiguous. `lead` dimensions come before those of the bool mask. `shape` has
    size one, or no dimension, in place of the masked ones."""
    return TensorMeta(tuple(shape), contiguous_strides(tuple(shape)), gradient.dtype, gradient.device)


@shape_rule(sum_of_slices, tags=("reduction",))
def sum_of_slices_shape(gradient: Any, dim: int, index: Any) -> TensorMeta:
    """Sums the slices of `gradient` along `dim` that `index` names, each once."""
    return TensorMeta((), (), gradient.dtype, gradient.device)


@shape_rule(prod_gradient, tags=("reduction",))
def prod_gradient_shape(gradient: Any, factors: Any, product: Any, dim: int, whole: bool) -> TensorMeta:
    """The gradient of product = factors.prod(dim, keepdim=True), in eager's layout for factors without zeros. whole:
    product = factors.prod() and `dim` is unused; two zeros then give a gradient of zeros."""
    strides = _prod_gradient_strides(gradient, factors, product)
    return TensorMeta(tuple(factors.shape), strides, gradient.dtype, gradient.device)


@decomposition(sum_where)
def _sum_of_all(gradient: Any, mask: Any) -> Any:
    return aten.sum.default(aten.masked_fill.Scalar(gradient, aten.logical_not.default(mask), 0))


@decomposition(sum_where_to)
def _sum_of_all_to(gradient: Any, mask: Any, lead: int, shape: Sequence[Any]) -> Any:
    sizes, rank = tuple(gradient.shape), len(mask.shape)
    mask = aten.reshape.default(mask, [*mask.shape, *[1] * (len(sizes) - lead - rank)])
    kept = aten.where.ScalarOther(mask, gradient, 0)
    flat = aten.reshape.default(kept, [*sizes[:lead], -1, *sizes[lead + rank :]])
    added = len(flat.shape) - len(shape)
    summed = [
        *range(added),
        *(at + added for at, size in enumerate(shape) if size == 1 and flat.shape[at + added] != 1),
    ]
    total = aten.sum.dim_IntList(flat, summed, True) if summed else flat
    return aten.reshape.default(total, list(shape))


@decomposition(sum_of_slices)
def _sum_of_slices_and_zeros(gradient: Any, dim: int, index: Any) -> Any:
    if not len(gradient.shape):
        gradient = aten.reshape.default(gradient, [1])
    rank = len(gradient.shape)
    dim = dim % rank
    hit = aten.zeros.default([gradient.shape[dim]], dtype=torch.bool, device=gradient.device)
    hit = aten.index_fill.int_Scalar(hit, 0, index, True)
    hit = aten.reshape.default(hit, [-1, *[1] * (rank - dim - 1)])
    return aten.sum.default(aten.where.ScalarOther(hit, gradient, 0))


@decomposition(prod_gradient)
def _prod_gradient_by_others(gradient: Any, factors: Any, product: Any, dim: int, whole: bool) -> Any:
    """Compute gradient * (product of all factors before) * (product of all factors after)."""
    shape, strides = list(factors.shape), _prod_gradient_strides(gradient, factors, product)
    if whole:
        factors, dim = aten.reshape.default(factors, [-1]), 0
    found = aten.reshape.default(_times_others(gradient, factors, dim), shape)
    if strides == contiguous_strides(tuple(shape)):
        return aten.clone.default(found, memory_format=torch.contiguous_format)
    slowest_first = sorted(range(len(shape)), key=lambda at: (strides[at], shape[at]), reverse=True)
    copy = aten.clone.default(aten.permute.default(found, slowest_first), memory_format=torch.contiguous_format)
    return aten.permute.default(copy, [slowest_first.index(at) for at in range(len(shape))])


def _times_others(gradient: Any, factors: Any, dim: int) -> Any:
    size = factors.shape[dim]
    if size == 1:
        return aten.expand.default(gradient, list(factors.shape))
    ones = aten.ones_like.default(aten.narrow.default(factors, dim, 0, 1))
    before = aten.cumprod.default(aten.cat.default([ones, aten.narrow.default(factors, dim, 0, size - 1)], dim), dim)
    behind = aten.flip.default(aten.narrow.default(factors, dim, 1, size - 1), [dim])
    behind = aten.flip.default(aten.cumprod.default(aten.cat.default([ones, behind], dim), dim), [dim])
    others = aten.mul.Tensor(before, behind)
    others = aten._conj_physical.default(others) if others.dtype.is_complex else others
    # In this order: inside of autograd's formula, gradient * others would be replaced by this very operator.
    return aten.mul.Tensor(others, gradient)
