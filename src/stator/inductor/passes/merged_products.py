"""Merges products of one matrix with several constant weights (queries, keys and values; gate and up) into one product
with the weights side by side. Each of its readers reads some of the columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.graph.ir.memory import fixed_memory, memory_root
from stator.prims.layout import numel
from stator.prims.record import TensorMeta
from stator.shapes.expr import Expr

from .constants import is_constant
from .frozen_inputs import add_frozen

aten = torch.ops.aten

# A merged result keeps the memory of all its parts until the last one is read. Larger results gain 1 % or less.
_MOST_BYTES = 4 << 20
# The number of products that are merged for a number of rows that is a symbol
_MOST_OF_UNKNOWN_ROWS = 3

_PRODUCTS = (aten.mm.default, aten.addmm.default)
_TURNS: tuple[Any, ...] = (aten.t.default, aten.transpose.int, aten.permute.default)


@dataclass(frozen=True, slots=True)
class _Part:
    """A product: its node, its weight [inner, columns], its bias [columns], if any."""

    node: fx.Node
    weight: torch.Tensor
    bias: torch.Tensor | None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What parts of one product have in common."""
        bias = None if self.bias is None else self.bias.dtype
        return self.node.args[-2], self.weight.shape[0], self.weight.dtype, self.weight.stride(0) == 1, bias


def merge_products(gm: fx.GraphModule) -> fx.GraphModule:
    """Merge products that read one matrix, in place."""
    fixed = fixed_memory(gm.graph)
    by_kind: dict[tuple[Any, ...], list[_Part]] = {}
    for node in gm.graph.nodes:
        part = None if node in fixed or _feeds_products(node) else _part(gm, node)
        if part is not None:
            by_kind.setdefault(part.kind, []).append(part)
    for parts in by_kind.values():
        for some in _divided(parts):
            _merge(gm, some)
    return gm


def _part(gm: fx.GraphModule, node: fx.Node) -> _Part | None:
    if node.op != "call_function" or node.target not in _PRODUCTS or node.kwargs:
        return None
    weight = _constant_matrix(gm, node.args[-1])
    bias = _constant(gm, node.args[0]) if node.target is aten.addmm.default else None
    if weight is None or (node.target is aten.addmm.default and (bias is None or bias.shape != weight.shape[1:])):
        return None
    return _Part(node, weight, bias) if 1 in weight.stride() else None


def _constant(gm: fx.GraphModule, node: Any) -> torch.Tensor | None:
    return getattr(gm, str(node.target)) if isinstance(node, fx.Node) and is_constant(node) else None


def _constant_matrix(gm: fx.GraphModule, node: Any) -> torch.Tensor | None:
    """A constant, or a transposed constant."""
    if isinstance(node, fx.Node) and node.target in _TURNS:
        source = _constant(gm, node.args[0])
        return None if source is None else node.target(source, *node.args[1:])  # type: ignore[operator]
    return _constant(gm, node)


def _feeds_products(node: fx.Node) -> bool:
    """Whether a product reads the result, which would copy columns with gaps between rows."""
    return any(
        user.target in _PRODUCTS or (memory_root(user) is memory_root(node) and _feeds_products(user))
        for user in node.users
    )


def _divided(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Groups of two parts or more, in order."""
    some: list[_Part] = []
    for part in parts:
        if some and not _fit_together([*some, part]):
            if len(some) > 1:
                yield some
            some = []
        some.append(part)
    if len(some) > 1:
        yield some


def _fit_together(parts: Sequence[_Part]) -> bool:
    metas: list[TensorMeta] = [part.node.meta["val"] for part in parts]
    if any(isinstance(size, Expr) for meta in metas for size in meta.shape):
        return len(parts) <= _MOST_OF_UNKNOWN_ROWS
    return sum(numel(meta.shape) * meta.dtype.itemsize for meta in metas) <= _MOST_BYTES


def _merge(gm: fx.GraphModule, parts: Sequence[_Part]) -> None:
    first, target = parts[0].node, aten.mm.default if parts[0].bias is None else aten.addmm.default
    meta: TensorMeta = first.meta["val"]
    columns = [part.weight.shape[1] for part in parts]
    merged_meta = TensorMeta((meta.shape[0], sum(columns)), (sum(columns), 1), meta.dtype, meta.device)
    with gm.graph.inserting_before(first):
        weight = _side_by_side(gm, first, parts)
        if parts[0].bias is None:
            product = gm.graph.call_function(target, (first.args[0], weight))
        else:
            bias = _joined_biases(gm, first, [part.bias for part in parts if part.bias is not None])
            product = gm.graph.call_function(target, (bias, first.args[1], weight))
        product.meta.update(first.meta, val=merged_meta)
        start = 0
        for part, count in zip(parts, columns, strict=True):
            some = gm.graph.call_function(aten.slice.Tensor, (product, 1, start, start + count))
            some.meta.update(part.node.meta)
            part.node.replace_all_uses_with(some)
            start += count
    for part in parts:
        gm.graph.erase_node(part.node)


def _side_by_side(gm: fx.GraphModule, first: fx.Node, parts: Iterable[_Part]) -> fx.Node:
    """The weights as one constant, in their own layout."""
    weights = [part.weight for part in parts]
    by_columns = weights[0].stride(0) == 1
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C._InferenceMode(False):
        joined = torch.cat([weight.t() for weight in weights]).t() if by_columns else torch.cat(weights, 1)
    return add_frozen(gm, f"{first.name}_weights", joined)


def _joined_biases(gm: fx.GraphModule, first: fx.Node, biases: list[torch.Tensor]) -> fx.Node:
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C._InferenceMode(False):
        return add_frozen(gm, f"{first.name}_bias", torch.cat(biases))
