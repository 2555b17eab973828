"""Tensors during lowering: memory, an unevaluated closure, or a view of another tensor. Knows no operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge, product
from stator.prims.layout import contiguous_strides, same_strides
from stator.shapes.expr import ExprLike, Ranges

Index = tuple[ExprLike, ...]
Strides = tuple[ExprLike, ...]
Remap = Callable[[Index, Ranges], Index]
# (strides, offset) of the base to (strides, offset) of the view, or None when strides cannot express it
Relayout = Callable[[Strides, ExprLike], "tuple[Strides, ExprLike] | None"]


@dataclass(frozen=True, slots=True)
class Stored:
    """Elements of a buffer; the offset counts from the buffer's element 0."""

    buffer: str
    strides: Strides
    offset: ExprLike = 0


@dataclass(frozen=True, slots=True)
class Computed:
    """A closure `inner(ops, index)` that returns a value of the tensor's dtype. `work`: the FX nodes inlined in it."""

    inner: Callable[[Any, Index], Ref]
    work: frozenset[str]
    reads: frozenset[str]
    heavy: bool = False


@dataclass(frozen=True, slots=True)
class Viewed:
    """Another tensor under an index map. If the base is stored later, the view follows.

    `copies`: the graph asked for fresh memory (a clone), which matters only if the view leaves the graph. `reused`: a
    clone that has several users.
    """

    base: Tensor
    remap: Remap
    relayout: Relayout
    copies: bool = False
    reused: bool = False


class Tensor:
    """A value of the graph. `strides` is its present or future layout in memory. `deviates`: this layout is not
    eager's, because lowering chose a layout upstream that consumers should follow. `has_gaps`: it is to be stored with
    gaps between rows, by exactly `strides`. `sizes` knows about symbolic sizes.
    """

    __slots__ = ("deviates", "device", "dtype", "has_gaps", "shape", "sizes", "source", "strides")

    def __init__(
        self,
        shape: Sequence[ExprLike],
        dtype: torch.dtype,
        device: torch.device,
        source: Stored | Computed | Viewed,
        strides: Strides | None = None,
        deviates: bool = False,
        *,
        sizes: SizeKnowledge = NUMBERS_ONLY,
    ) -> None:
        self.shape: tuple[Any, ...] = tuple(shape)
        self.sizes = sizes
        self.dtype, self.device, self.source = dtype, device, source
        if strides is None:
            strides = source.strides if isinstance(source, Stored) else contiguous_strides(self.shape)
        self.strides: Strides = strides
        self.deviates = deviates
        self.has_gaps = False

    def lay_out(self, strides: Strides) -> None:
        """Have a closure stored with these strides, which may leave gaps."""
        self.strides, self.has_gaps = strides, True

    @property
    def own_strides(self) -> Strides:
        """The strides of memory of its own."""
        return self.strides if self.has_gaps else self.sizes.preserved_strides(self.shape, self.strides)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Any:
        return product(self.shape)

    def load(self, ops: Any, index: Index) -> Ref:
        """The element at an index, as a value of the handler `ops`."""
        source = self.source
        if isinstance(source, Stored):
            position: Any = source.offset
            for at, stride, size in zip(index, source.strides, self.shape, strict=True):
                if size != 1:
                    position = at * stride + position
            return ops.load(source.buffer, position)
        if isinstance(source, Viewed):
            return source.base.load(ops, source.remap(index, ops.ranges))
        key = (id(self), index, ops.mask)
        found = ops.memo.get(key)
        if found is None:
            found = ops.memo[key] = source.inner(ops, index)
        return found

    def resolved(self) -> Stored | None:
        """The elements' place in memory, if they are in memory and strides can express it."""
        source = self.source
        if isinstance(source, Viewed):
            base = source.base.resolved()
            layout = None if base is None else source.relayout(base.strides, base.offset)
            return None if base is None or layout is None else Stored(base.buffer, *layout)
        return source if isinstance(source, Stored) else None

    def planned(self) -> tuple[Strides, ExprLike] | None:
        """Strides and offset of the view over present or future memory; None when strides cannot express it."""
        source = self.source
        if isinstance(source, Stored):
            return source.strides, source.offset
        if isinstance(source, Viewed):
            base = source.base.planned()
            return None if base is None else source.relayout(*base)
        return self.own_strides, 0

    @property
    def copies(self) -> bool:
        """True if this must not share memory with the base of the view."""
        source = self.source
        return isinstance(source, Viewed) and (source.copies or source.base.copies)

    def clone_with(self, strides: Strides) -> Tensor | None:
        """The clone with several users of which this is a view that has these strides once the clone is stored in its
        own layout."""
        views: list[Viewed] = []
        tensor = self
        while isinstance(tensor.source, Viewed):
            if tensor.source.reused:
                layout: tuple[Strides, ExprLike] | None = tensor.strides, 0
                for view in reversed(views):
                    layout = None if layout is None else view.relayout(*layout)
                dense = self.sizes.is_dense(tensor.shape, tensor.strides)
                return tensor if dense and layout and same_strides(self.shape, layout[0], strides) else None
            views.append(tensor.source)
            tensor = tensor.source.base
        return None

    @property
    def root(self) -> Tensor:
        """The tensor under all views."""
        tensor = self
        while isinstance(tensor.source, Viewed):
            tensor = tensor.source.base
        return tensor

    @property
    def work(self) -> frozenset[str]:
        source = self.root.source
        return source.work if isinstance(source, Computed) else frozenset()

    @property
    def reads(self) -> frozenset[str]:
        source = self.root.source
        return source.reads if isinstance(source, Computed) else frozenset((source.buffer,))  # type: ignore[union-attr]

    @property
    def heavy(self) -> bool:
        source = self.root.source
        return isinstance(source, Computed) and source.heavy


def view(base: Tensor, shape: Sequence[ExprLike], remap: Remap, relayout: Relayout) -> Tensor:
    """A view. It becomes plain memory when strides can express it."""
    stored = base.source
    if isinstance(stored, Stored):
        layout = relayout(stored.strides, stored.offset)
        if layout is not None:
            place = Stored(stored.buffer, *layout)
            return Tensor(shape, base.dtype, base.device, place, deviates=base.deviates, sizes=base.sizes)
    hint = relayout(base.strides, 0)
    strides = hint[0] if hint else None
    deviates = base.deviates and hint is not None
    return Tensor(shape, base.dtype, base.device, Viewed(base, remap, relayout), strides, deviates, sizes=base.sizes)


def cloned(base: Tensor, strides: Strides, reused: bool = False) -> Tensor:
    """A clone: equal elements, laid out by `strides` if they are ever stored."""
    source = Viewed(base, lambda index, ranges: index, lambda own, offset: (own, offset), True, reused)
    return Tensor(base.shape, base.dtype, base.device, source, strides, base.deviates, sizes=base.sizes)
