"""Bytes of storages. Some of eager's CPU kernels make a storage larger than the result needs, because they write
intermediate values there first. Never here: lifetimes of storages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from stator.graph.fake.fake_tensor import FakeTensor
from stator.prims.layout import broadcast_shapes
from stator.prims.record import TensorMeta
from stator.shapes.expr import as_expr
from stator.shapes.extrema import Max
from stator.shapes.sym_node import to_expression

aten = torch.ops.aten


def storage_bytes(func: OpOverload, args: tuple[Any, ...], position: int, result: FakeTensor) -> Any:
    """The bytes of the storage behind one tensor of an operator's result, where the operator allocated it."""
    meta = result.fake_storage.meta
    rule = _LARGER.get(func) if result.device.type == "cpu" else None
    return layout_bytes(meta) if rule is None else rule(meta, args, position)


def layout_bytes(meta: TensorMeta) -> Any:
    """The bytes that a fresh tensor of this layout takes."""
    reach = as_expr(1)
    count = as_expr(1)
    for size, stride in zip(meta.shape, meta.stride, strict=True):
        size, stride = to_expression(size), to_expression(stride)
        reach = reach + (as_expr(size) - 1) * stride
        count = count * size
    return (as_expr(0) if count == 0 else reach) * meta.dtype.itemsize


def _product(shape: Sequence[Any]) -> Any:
    count = as_expr(1)
    for size in shape:
        count = count * to_expression(size)
    return count


def _unreduced_loss(meta: TensorMeta, args: tuple[Any, ...], position: int) -> Any:
    """The sum or mean of a loss takes the storage of its terms."""
    terms = _product(broadcast_shapes(tuple(args[0].shape), tuple(args[1].shape)))
    return Max.of(terms * meta.dtype.itemsize, layout_bytes(meta))


def _windows(meta: TensorMeta, args: tuple[Any, ...], position: int) -> Any:
    """Columns of an image, and an image of columns, begin with the argument's layout."""
    return Max.of(_product(args[0].shape) * meta.dtype.itemsize, layout_bytes(meta))


def _bags(meta: TensorMeta, args: tuple[Any, ...], position: int) -> Any:
    """The number of each index's bag is a running sum that begins with one more element."""
    own = layout_bytes(meta)
    return own + meta.dtype.itemsize if position == 1 and own != 0 else own


_LARGER: dict[OpOverload, Callable[[TensorMeta, tuple[Any, ...], int], Any]] = {
    aten.mse_loss.default: _unreduced_loss,
    aten.smooth_l1_loss.default: _unreduced_loss,
    aten.soft_margin_loss.default: _unreduced_loss,
    aten.binary_cross_entropy.default: _unreduced_loss,
    aten.im2col.default: _windows,
    aten.col2im.default: _windows,
    aten._embedding_bag.default: _bags,
    aten._embedding_bag_forward_only.default: _bags,
}
