"""Folds constants: computes subgraphs without inputs at compile time (position tables, bucket indices, masks; casts and
other changes of frozen weights)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from stator.graph.ir.cleanup import remove_dead
from stator.graph.ir.memory import memory_root, output_memory
from stator.graph.ir.schema import has_effects
from stator.inductor.devices import COMPRESSED, traits_of
from stator.prims.layout import numel
from stator.prims.record import TensorMeta
from stator.runtime.matrix_products import onednn_takes
from stator.runtime.tile_products import is_quicker
from stator.shapes.expr import Expr
from stator.shapes.floats import FloatExpr

from .frozen_inputs import is_frozen

aten = torch.ops.aten

_TRANSPOSES = (aten.t.default, aten.permute.default, aten.transpose.int)

# A constant occupies memory for good and is read at each use; index arithmetic in a loop costs next to nothing.
MAX_ELEMENTS = 1 << 18
# Chains of fewer operators than this are as cheap to compute where they are used.
MIN_OPERATORS = 4
# Constants made of frozen tensors have at most so many times their elements.
_LARGEST_GROWTH = 2
# Up to so many rows, a product with a quantized weight waits for memory: half the bytes are read in half the time.
_WAITING_ROWS = 2
_PREFIX = "_folded_"


def fold_constants(gm: fx.GraphModule) -> fx.GraphModule:
    """Replace maximal subgraphs without inputs by constants of the module, where that saves work in each call."""
    found = _constant_nodes(gm.graph)
    returned = output_memory(gm.graph)
    values: dict[fx.Node, Any] = {node: getattr(gm, str(node.target)) for node in found if is_frozen(node)}
    for node in list(gm.graph.nodes):
        if node in returned or node not in found or not found[node].saves_work() or not _is_frontier(node, found):
            continue
        if _is_read_quicker(node, found[node]):
            continue
        with torch.no_grad(), torch._C._DisableAutocast(), torch._C._InferenceMode(False):
            value = _evaluate(node, values)
        name = f"{_PREFIX}{node.name}"
        gm.register_buffer(name, value, persistent=False)
        with gm.graph.inserting_before(node):
            constant = gm.graph.get_attr(name)
        constant.meta.update(node.meta)
        values[constant] = value
        node.replace_all_uses_with(constant)
        gm.graph.erase_node(node)
    remove_dead(gm.graph)
    return gm


def is_constant(node: fx.Node) -> bool:
    """Whether the node is a frozen tensor, or was folded to a constant."""
    return is_frozen(node) or (node.op == "get_attr" and str(node.target).startswith(_PREFIX))


@dataclass(frozen=True, slots=True)
class _Constant:
    """What leads to a constant: an upper bound of the number of operators, the elements of frozen tensors among them,
    and whether only views of one frozen tensor do."""

    operators: int
    frozen_elements: int = 0
    frozen_bytes: int = 0
    is_view: bool = False

    def saves_work(self) -> bool:
        return not self.is_view and (self.operators >= MIN_OPERATORS or self.frozen_elements > 0)


def _constant_nodes(graph: fx.Graph) -> dict[fx.Node, _Constant]:
    """Nodes that depend on no input."""
    found: dict[fx.Node, _Constant] = {}
    for node in graph.nodes:
        if is_frozen(node):
            elements = numel(node.meta["val"].shape)
            found[node] = _Constant(0, elements, elements * node.meta["val"].dtype.itemsize, True)
            continue
        # any other tensor attribute is not constant: the user may hold it and change it
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if has_effects(node.target, node.args, node.kwargs):
            continue
        sources = node.all_input_nodes
        meta = node.meta.get("val")
        if isinstance(meta, TensorMeta) and all(source in found for source in sources):
            frozen = sum(found[source].frozen_elements for source in sources)
            if _is_exact(node, max(MAX_ELEMENTS, _LARGEST_GROWTH * frozen)):
                is_view = is_frozen(memory_root(node))
                operators = 1 + sum(found[source].operators for source in sources)
                found[node] = _Constant(operators, frozen, sum(found[one].frozen_bytes for one in sources), is_view)
    return found


def _is_exact(node: fx.Node, most: int) -> bool:
    """True if every process computes equal values (uninitialised memory differs), for all sizes of inputs, and the size
    at most `most` elements."""
    name = str(node.target)
    meta: TensorMeta = node.meta["val"]
    if any(isinstance(value, Expr | FloatExpr) for value in tree_leaves((node.args, node.kwargs, meta.shape))):
        return False
    return "empty" not in name and meta.device.type == "cpu" and numel(meta.shape) <= most


def _is_frontier(node: fx.Node, found: dict[fx.Node, _Constant]) -> bool:
    """True if a node that is not constant uses it. Views of constants are left to their users' loops."""
    if any(user.op == "output" for user in node.users):
        return False
    return any(user not in found for user in node.users)


def evaluate_constant(gm: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """The value of a node that depends on frozen tensors alone."""
    values: dict[fx.Node, Any] = {one: getattr(gm, str(one.target)) for one in gm.graph.nodes if is_frozen(one)}
    return _evaluate(node, values)


def _is_read_quicker(node: fx.Node, constant: _Constant) -> bool:
    """True for a quantized weight of products that dequantize as they read it: of a few rows, or in tiles."""
    meta: TensorMeta = node.meta["val"]
    if not 0 < constant.frozen_bytes <= COMPRESSED * numel(meta.shape) * meta.dtype.itemsize:
        return False
    converts = _converts_int8(node)
    return all(_multiplies_quantized(user, node, converts) for user in node.users)


def _converts_int8(node: fx.Node) -> bool:
    """True for a frozen matrix of int8 that is converted, and nothing else."""
    while node.target in _TRANSPOSES or node.target is aten._to_copy.default:
        (node,) = node.all_input_nodes
    return is_frozen(node) and node.meta["val"].dtype is torch.int8


def _multiplies_quantized(user: fx.Node, matrix: fx.Node, converts: bool) -> bool:
    if user.target in _TRANSPOSES:
        return all(_multiplies_quantized(reader, user, converts) for reader in user.users)
    if user.target not in (aten.mm.default, aten.addmm.default) or user.args[-1] is not matrix:
        return False
    rows, meta = user.meta["val"].shape[0], matrix.meta["val"]
    if not isinstance(rows, int):
        return False
    along, across = traits_of(meta.device).quantized_rows
    by_column = meta.stride[0] == 1
    in_tiles = converts and by_column and is_quicker(rows, meta.shape[0], meta.shape[1], meta.dtype, constant=True)
    # products of more rows do not wait for memory, where the processor has instructions for their half floats
    packed = rows > _WAITING_ROWS and meta.dtype.itemsize == 2 and onednn_takes(meta.dtype)
    return in_tiles or (not packed and rows <= (along if by_column else across))


def _evaluate(node: fx.Node, values: dict[fx.Node, Any]) -> torch.Tensor:
    pending = [node]
    while pending:
        at = pending[-1]
        if at in values:
            pending.pop()
            continue
        missing = [source for source in at.all_input_nodes if source not in values]
        if missing:
            pending.extend(missing)
            continue
        args = fx.map_arg(at.args, values.__getitem__)
        kwargs = fx.map_arg(at.kwargs, values.__getitem__)
        values[at] = at.target(*args, **kwargs)  # type: ignore[operator]
        pending.pop()
    meta: TensorMeta = node.meta["val"]
    # an expanded result keeps all elements of a dimension at one address, which is written once
    once = tuple(min(size, 1) if stride == 0 else size for size, stride in zip(meta.shape, meta.stride, strict=True))
    result = torch.empty_strided(once, meta.stride, dtype=meta.dtype, device=meta.device)
    result.copy_(values[node][tuple(slice(0, size) for size in once)])
    return result.as_strided(meta.shape, meta.stride)
