"""Accumulates gradients of a tensor with several uses: each gradient is added to the sum of the earlier ones at once.

Rows of a table are added to another gradient instead of to zeros, and a product of matrices to another product.
The passes here rewrite graphs; lowering decides whether memory is written in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from stator.graph.ir.cleanup import remove_dead
from stator.graph.ir.memory import output_memory
from stator.prims.record import TensorMeta

aten = torch.ops.aten


def accumulate_into_sums(gm: fx.GraphModule) -> fx.GraphModule:
    """`y + index_put(zeros, indices, values, accumulate=True)` becomes `index_put(y, indices, values, True)`."""
    returned = output_memory(gm.graph)
    for node in list(gm.graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        for put, other in (node.args, reversed(node.args)):
            if _adds_rows_to_zeros(put) and put not in returned and _same_layout(put, other, node):
                with gm.graph.inserting_before(node):
                    sum_ = gm.graph.call_function(aten.index_put.default, (other, *put.args[1:]))
                sum_.meta.update(node.meta)
                node.replace_all_uses_with(sum_)
                gm.graph.erase_node(node)
                break
    remove_dead(gm.graph)
    return gm


def accumulate_products(gm: fx.GraphModule) -> fx.GraphModule:
    """`mm(a, b) + mm(c, d)` becomes `addmm(mm(a, b), c, d)` for products that look like gradients of weights.

    The gradient of a weight that several layers share is a sum of one product for each layer. A single sum at the end
    would keep every product alive until the last; the library adds to an existing matrix at no cost.
    """
    returned = output_memory(gm.graph)
    order = {node: at for at, node in enumerate(gm.graph.nodes)}
    for node in list(gm.graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        one, other = (_sole_product(part, node, returned) for part in node.args)
        if one is None or other is None or one is other:
            continue
        first, last = sorted((one, other), key=order.__getitem__)
        if last.target is not aten.mm.default:  # an addmm: `first` would have to stay alive until it
            continue
        with gm.graph.inserting_before(last):
            sum_ = gm.graph.call_function(aten.addmm.default, (first, *last.args))
        sum_.meta.update(node.meta)
        order[sum_] = order[last]
        node.replace_all_uses_with(sum_)
        gm.graph.erase_node(node)
    remove_dead(gm.graph)
    return gm


_PRODUCTS = (aten.mm.default, aten.addmm.default)


def _sole_product(part: Any, total: fx.Node, returned: set[fx.Node]) -> fx.Node | None:
    """The product with `total` as its only reader, looking through pairs of transpositions; else None."""
    reader, turned = total, False
    while isinstance(part, fx.Node) and part.target is aten.t.default and list(part.users) == [reader]:
        reader, part, turned = part, part.args[0], not turned
    if not isinstance(part, fx.Node) or part.target not in _PRODUCTS or list(part.users) != [reader] or turned:
        return None
    meta, of_total = part.meta.get("val"), total.meta.get("val")
    if part in returned or part.kwargs or not isinstance(meta, TensorMeta) or not isinstance(of_total, TensorMeta):
        return None
    same = (meta.shape, meta.stride, meta.dtype) == (of_total.shape, of_total.stride, of_total.dtype)
    return part if same and meta.dtype in _ACCUMULATED and _is_transposed(part.args[-2]) else None


# dtypes for which the library rounds a sum once, or as often as eager does
_ACCUMULATED = (torch.float32, torch.float64)


def _is_transposed(matrix: Any) -> bool:
    meta = matrix.meta.get("val") if isinstance(matrix, fx.Node) else None
    return isinstance(meta, TensorMeta) and meta.stride[0] == 1 and meta.shape[0] not in (0, 1)


def _adds_rows_to_zeros(node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.target is not aten.index_put.default or len(node.users) != 1:
        return False
    zeros = node.args[0]
    return (
        node.args[3:] == (True,)
        and isinstance(zeros, fx.Node)
        and zeros.target in (aten.full.default, aten.zeros.default)
        and (zeros.target is aten.zeros.default or bool(zeros.args[1] == 0))
    )


def _same_layout(put: fx.Node, other: Any, total: fx.Node) -> bool:
    if not isinstance(other, fx.Node) or other is put:
        return False
    metas = [node.meta.get("val") for node in (put, other, total)]
    described = {(meta.shape, meta.dtype, meta.device) for meta in metas if isinstance(meta, TensorMeta)}
    return len(described) == 1 and all(isinstance(meta, TensorMeta) for meta in metas)
