"""Products and convolutions of dequantized numbers become products of the integers, if the weight is frozen.

A graph of static quantization dequantizes what it has just quantized, and multiplies floats. That is slower than
without quantization; the integers are multiplied two to eight times as fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.graph.ir.cleanup import remove_dead
from stator.prims.layout import numel
from stator.prims.record import TensorMeta
from stator.runtime.integer_products import MOST_SUMMANDS, dequantized_weight, multiplies_integers

from .constants import evaluate_constant
from .frozen_inputs import PREFIX, is_frozen

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default)
_TRANSPOSES = (aten.t.default, aten.permute.default, aten.transpose.int)
# Nodes that lead from frozen tensors to a weight
_MOST_NODES = 16
_BOUNDS = {torch.uint8: (0, 255), torch.int8: (-128, 127)}


@dataclass(frozen=True, slots=True)
class _Numbers:
    """(integers - zero_point) * scale, under views that the node of the numbers has."""

    integers: fx.Node
    scale: float | fx.Node
    zero_point: int | fx.Node
    views: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True)
class _Weight:
    integers: fx.Node
    scales: torch.Tensor


def multiply_integers(gm: fx.GraphModule) -> fx.GraphModule:
    """Rewrite the products and convolutions, in place."""
    if not any(is_frozen(node) for node in gm.graph.nodes) or not multiplies_integers():
        return gm
    for node in list(gm.graph.nodes):
        if node.target is aten.mm.default:
            _rewrite_product(gm, node, None, *node.args)
        elif node.target is aten.addmm.default and not node.kwargs and node.args[0].meta["val"].dtype is torch.float32:
            _rewrite_product(gm, node, *node.args)
        elif node.target is aten.convolution.default:
            _rewrite_convolution(gm, node)
    remove_dead(gm.graph)
    return gm


def _rewrite_product(gm: fx.GraphModule, node: fx.Node, bias: Any, rows: fx.Node, matrix: fx.Node) -> None:
    weight = matrix.args[0] if matrix.target in _TRANSPOSES and len(matrix.meta["val"].shape) == 2 else None
    if bias is not None and bias.meta["val"].shape != matrix.meta["val"].shape[1:]:
        return
    _rewrite(gm, node, torch.ops.stator.integer_product, rows, weight, bias, ())


def _rewrite_convolution(gm: fx.GraphModule, node: fx.Node) -> None:
    images, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    found = _numbers(images)
    # oneDNN's convolution takes uint8 alone
    plain = found is not None and found.integers.meta["val"].dtype is torch.uint8
    if plain and not transposed and len(node.meta["val"].shape) == 4:
        window = (stride, padding, dilation, groups)
        _rewrite(gm, node, torch.ops.stator.integer_convolution, images, weight, bias, window)


def _rewrite(
    gm: fx.GraphModule, node: fx.Node, packet: Any, numbers: Any, weight: Any, bias: Any, window: tuple[Any, ...]
) -> None:
    meta: TensorMeta = node.meta["val"]
    found = _numbers(numbers) if meta.dtype is torch.float32 and meta.device.type == "cpu" else None
    quantized = None if found is None or weight is None else _weight(gm, weight)
    if found is None or quantized is None:
        return
    chosen = "tensor" if isinstance(found.scale, fx.Node) else "default"
    if chosen not in packet.overloads():
        return
    name = f"{PREFIX}{node.name}_scales"
    gm.register_buffer(name, quantized.scales, persistent=False)
    with gm.graph.inserting_before(node):
        integers = found.integers
        for view in reversed(found.views):
            dtype = integers.meta["val"].dtype
            integers = gm.graph.call_function(view.target, (integers, *view.args[1:]))  # type: ignore[arg-type]
            shown: TensorMeta = view.meta["val"]
            integers.meta["val"] = TensorMeta(shown.shape, shown.stride, dtype, shown.device)
        scales = gm.graph.get_attr(name)
        scales.meta["val"] = TensorMeta(tuple(quantized.scales.shape), (1,), torch.float32, meta.device)
        given = (integers, found.scale, found.zero_point, quantized.integers, scales, bias, *window)
        made = gm.graph.call_function(getattr(packet, chosen), given)
    made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)


def _numbers(node: Any) -> _Numbers | None:
    """The integers that a node dequantizes, by one scale and zero point, numbers or tensors of one element."""
    views: list[fx.Node] = []
    while node.target in _VIEWS:
        views.append(node)
        node = node.args[0]
    if node.target is not aten.mul.Tensor:
        return None
    shifted, scale = node.args
    zero_point: Any = 0 if isinstance(scale, float) else None
    if shifted.target is aten.sub.Tensor and not shifted.kwargs:
        shifted, zero_point = shifted.args
    if shifted.target is not aten._to_copy.default or shifted.meta["val"].dtype is not torch.float32:
        return None
    integers = shifted.args[0]
    low, high = _BOUNDS.get(integers.meta["val"].dtype, (1, 0))
    if isinstance(scale, float):
        fits = isinstance(zero_point, int) and low <= zero_point <= high and 0 < scale < float("inf")
    else:
        fits = low < high and _is_single(scale) and _is_single(zero_point) and _is_integral(zero_point)
    same = integers.meta["val"].stride == node.meta["val"].stride
    return _Numbers(integers, scale, zero_point, tuple(views)) if fits and same else None


def _is_single(node: Any) -> bool:
    return isinstance(node, fx.Node) and numel(node.meta["val"].shape) == 1 and node.meta["val"].dtype is torch.float32


def _is_integral(node: Any) -> bool:
    """True for a tensor of floats that is converted from integers."""
    while node.target in _VIEWS or node.target is aten._to_copy.default:
        node = node.args[0]
    return not node.meta["val"].dtype.is_floating_point


def _weight(gm: fx.GraphModule, node: fx.Node) -> _Weight | None:
    """The integers and the scales of a weight that the graph dequantizes; the channels are its first dimension."""
    leaves = _frozen_leaves(node)
    if leaves is None:
        return None
    shape = node.meta["val"].shape
    integers = [leaf for leaf in leaves if leaf.meta["val"].dtype is torch.int8 and leaf.meta["val"].shape == shape]
    scales = [leaf for leaf in leaves if leaf.meta["val"].dtype.is_floating_point]
    if len(integers) != 1 or len(scales) != 1 or numel(shape[1:]) > MOST_SUMMANDS:
        return None
    weight, scale = (getattr(gm, str(leaf.target)) for leaf in (integers[0], scales[0]))
    if scale.numel() not in (1, shape[0]):
        return None
    with torch.no_grad(), torch._C._InferenceMode(False):
        values = scale.reshape(-1).to(torch.float32).expand(shape[0]).contiguous()
        product = dequantized_weight(weight, values)
        # whatever the graph computes, it computes this
        equal = bool(values.isfinite().all()) and torch.equal(evaluate_constant(gm, node), product)
    return _Weight(integers[0], values) if equal else None


def _frozen_leaves(node: fx.Node) -> list[fx.Node] | None:
    """The frozen tensors that a node of float32 is made of; None if it is made of others, too, or by many nodes."""
    if node.op != "call_function" or node.meta["val"].dtype is not torch.float32:
        return None
    seen, pending = {node}, [node]
    while pending:
        at = pending.pop()
        if is_frozen(at):
            continue
        if not at.all_input_nodes or len(seen) > _MOST_NODES:
            return None
        pending.extend(one for one in at.all_input_nodes if one not in seen)
        seen.update(at.all_input_nodes)
    return [one for one in seen if is_frozen(one)]
