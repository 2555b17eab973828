"""Lowerings of cat and stack: the loops that compute a part write it straight into its slice of the result.

Dense networks concatenate growing lists of features. A cat whose parts are the first parts of a later cat becomes a
slice of the later cat's buffer, so that every part is written only once.

On devices where a kernel costs more than masked loads, a cat of few parts that loops read has no memory at all: each
element is loaded from its part where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from stator.inductor.devices import traits_of
from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder, dense_like
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Index, Stored, Strides, Tensor, cloned
from stator.prims.layout import same_strides, wrap_dim

from .creation import filled
from .library import only_feeds_loops
from .pointwise import cast
from .views import slice_dim, unsqueeze

aten = torch.ops.aten
_FEW_PARTS, _PAGE = 4, 4096


@dataclass(slots=True)
class SharedResult:
    """The buffer of the last cat of a growing list, and the number of its parts that are written."""

    buffer: Tensor
    parts: int = 0
    extent: Any = 0


@lowers(aten.cat.default)
def _cat(builder: LoweringBuilder, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    meta = builder.meta
    # as in eager, an empty 1-d tensor may be concatenated with tensors of any shape
    parts = [part for part in tensors if not (part.rank == 1 and part.shape[0] == 0 and meta.shape != (0,))]
    dim = wrap_dim(dim, len(meta.shape))
    if len(parts) == 1 and parts[0].dtype is meta.dtype:
        return cloned(parts[0], parts[0].strides if parts[0].deviates else meta.stride)
    if _needs_no_memory(builder, parts):
        return _selected(builder, parts, dim)
    if builder.growing_cats is None:
        builder.growing_cats = _growing_lists(builder.node.graph)
    last = builder.growing_cats.get(builder.node)
    if last is None or len(parts) != len(tensors):
        return _joined(builder, parts, dim)
    return _joined_in_place(builder, parts, dim, last)


@lowers(aten.stack.default)
def _stack(builder: LoweringBuilder, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    dim = wrap_dim(dim, tensors[0].rank + 1)
    parts = [unsqueeze(part, dim) for part in tensors]
    return _selected(builder, parts, dim) if _needs_no_memory(builder, parts) else _joined(builder, parts, dim)


def _needs_no_memory(builder: LoweringBuilder, parts: Sequence[Tensor]) -> bool:
    return 0 < len(parts) <= traits_of(builder.meta.device).lazy_parts and only_feeds_loops(builder.node)


def _selected(builder: LoweringBuilder, parts: Sequence[Tensor], dim: int) -> Tensor:
    """An unevaluated cat: each element is loaded from the part that has it."""
    for part in parts:
        if part.resolved() is None and part.heavy:
            builder.realize(part)
    parts = [cast(builder, part, builder.meta.dtype) for part in parts]
    ends: list[Any] = []
    for part in parts:
        ends.append(part.shape[dim] + (ends[-1] if ends else 0))
    starts = [0, *ends[:-1]]

    def inner(ops: Any, index: Index) -> Ref:
        at = ops.index_value(index[dim], torch.int64)

        def before(end: Any) -> Ref:
            return ops.elementwise("lt", at, ops.constant(end, torch.int64))

        def within(start: Any, end: Any) -> Ref:
            if start == 0:
                return before(end)
            behind = ops.elementwise("ge", at, ops.constant(start, torch.int64))
            return behind if end is ends[-1] else ops.bitwise_and(behind, before(end))

        found: Ref | None = None
        for part, start, end in reversed([*zip(parts, starts, ends, strict=True)]):
            moved = (*index[:dim], index[dim] - start, *index[dim + 1 :])
            value = ops.masked(within(start, end), partial(part.load, ops, moved), 0, part.dtype)
            found = value if found is None else ops.elementwise("where", before(end), value, found)
        assert found is not None
        return found

    meta = builder.meta
    result = builder.computed(inner, parts, meta.shape, meta.dtype, meta.device)
    result.strides = _strides(builder, parts, meta)
    result.deviates = not same_strides(meta.shape, result.strides, meta.stride)
    return result


def _joined(builder: LoweringBuilder, parts: Sequence[Tensor], dim: int) -> Tensor:
    if builder.meta.shape[dim] == 0 or not any(part.numel != 0 for part in parts):
        return filled(builder, 0)
    target = _result(builder, parts, builder.meta)
    _write(builder, target, parts, dim, 0)
    return target


def _joined_in_place(builder: LoweringBuilder, parts: Sequence[Tensor], dim: int, last: fx.Node) -> Tensor:
    shared: SharedResult | None = builder.shared_results.get(last)
    if shared is None:
        shared = SharedResult(_result(builder, parts, last.meta["val"]))
        builder.shared_results[last] = shared
    missing = parts[shared.parts :]
    _write(builder, shared.buffer, missing, dim, shared.extent)
    shared.parts = max(shared.parts, len(parts))
    shared.extent = sum((part.shape[dim] for part in missing), shared.extent)
    return slice_dim(shared.buffer, dim, 0, builder.meta.shape[dim])


def _result(builder: LoweringBuilder, parts: Sequence[Tensor], meta: Any) -> Tensor:
    """Uninitialised memory for the whole result."""
    strides = _strides(builder, parts, meta)
    target = builder.new_buffer(meta.shape, strides, meta.dtype, meta.device)
    target.deviates = not same_strides(meta.shape, strides, meta.stride)
    return target


def _strides(builder: LoweringBuilder, parts: Sequence[Tensor], meta: Any) -> Strides:
    """The layout of a part with a layout that lowering chose, else eager's."""
    deviating = next((part for part in parts if part.deviates and part.numel != 0), None)
    return meta.stride if deviating is None else dense_like(meta.shape, builder.sizes.hints(deviating.strides))  # type: ignore[no-any-return]


def _write(builder: LoweringBuilder, target: Tensor, parts: Sequence[Tensor], dim: int, start: Any) -> None:
    pairs = []
    for part in parts:
        if part.numel != 0:
            pairs.append((slice_dim(target, dim, start, part.shape[dim]), cast(builder, part, target.dtype)))
        start = start + part.shape[dim]
    if _are_short_runs(builder, [place for place, _ in pairs], dim):
        builder.store_parts(pairs)
        return
    for place, part in pairs:
        builder.store(place, part)


def _are_short_runs(builder: LoweringBuilder, places: Sequence[Tensor], dim: int) -> bool:
    """True for a few parts of equal shape that alternate in memory, each time for less than a page. One pass writes
    them in order, whereas each of several passes would visit all pages."""
    if not 1 < len(places) <= _FEW_PARTS or traits_of(places[0].device).programs:
        return False
    memory: Stored = places[0].source  # type: ignore[assignment]
    run = builder.sizes.hint(memory.strides[dim] * places[0].shape[dim]) * places[0].dtype.itemsize
    rows = builder.sizes.hint(places[0].numel) * places[0].dtype.itemsize > run
    return rows and run <= _PAGE and all(place.shape == places[0].shape for place in places)


def _growing_lists(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Maps each cat, whose parts are the first parts of a later cat along one dimension, to the longest such cat.

    Only generated loops may read the shorter cats: they accept a slice of memory as well as a whole buffer.
    """
    longest: dict[tuple[int, fx.Node, int], fx.Node] = {}  # by position in a trie of shared prefixes
    position: dict[tuple[int, fx.Node, int], int] = {}
    found: dict[fx.Node, fx.Node] = {}
    for node in reversed(graph.nodes):
        if node.target is not aten.cat.default or not _is_uniform(node):
            continue
        parts: Sequence[fx.Node] = node.args[0]  # type: ignore[assignment]
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        at = 0
        keys = []
        for part in parts:
            keys.append((at, part, dim))
            at = position.setdefault(keys[-1], len(position) + 1)  # type: ignore[arg-type]
        host = longest.get(keys[-1])  # type: ignore[arg-type]
        if host is not None and only_feeds_loops(node):
            found[node] = found[host] = host
            continue
        for key in keys[1:]:
            longest.setdefault(key, node)  # type: ignore[arg-type]
    return found


def _is_uniform(cat: fx.Node) -> bool:
    """True if all parts have the result's dtype."""
    parts: Sequence[fx.Node] = cat.args[0]  # type: ignore[assignment]
    return all(part.meta["val"].dtype is cat.meta["val"].dtype for part in parts)
