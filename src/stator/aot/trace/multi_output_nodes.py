"""Results of an operator with several that nobody has a tensor of any more, while another of them is known: places of
autograd's, which it differentiates by and from as it does by tensors.

Which of them matter for the hooks of what a graph returns is decided here; how they are linked, in values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta

from .autograd_reachability import NOTHING, Edge, reached

# One of several results: the position of another one that is known, and its number among the results of the operator
Beside = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class OtherResult:
    """The result with this number of a node, named as tensors name theirs."""

    grad_fn: Any
    output_nr: int

    @property
    def edge(self) -> GradientEdge:
        return GradientEdge(self.grad_fn, self.output_nr)

    @property
    def meta(self) -> TensorMeta:
        """As autograd knows it, that is without strides."""
        known = self.grad_fn._input_metadata[self.output_nr]
        shape = tuple(known.shape)
        return TensorMeta(shape, contiguous_strides(shape), known.dtype, known.device)

    @contextmanager
    def hooked(self, hook: Callable[[torch.Tensor | None], torch.Tensor | None]) -> Iterator[None]:
        """With a hook, of those that are called after `torch.autograd.grad` has noted what arrives here."""
        number = self.output_nr

        def before_node(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
            changed = hook(gradients[number])
            return gradients if changed is None else (*gradients[:number], changed, *gradients[number + 1 :])

        handle = self.grad_fn.register_prehook(before_node)
        try:
            yield
        finally:
            handle.remove()


# What autograd knows a value by
Handle = torch.Tensor | OtherResult


def differentiable_place(handle: Handle) -> torch.Tensor | GradientEdge:
    """As `torch.autograd.grad` takes it."""
    return handle.edge if isinstance(handle, OtherResult) else handle


def find_others(handles: Sequence[torch.Tensor | None], among: Iterable[int]) -> list[tuple[OtherResult, Beside]]:
    """Results of the operators that made the handles at the positions `among` which are no handles, and which some of
    the handles were computed from: what flows through them alone is seen by the hooks of the operator's node."""
    several: dict[Any, int] = {}
    for at in among:
        handle = handles[at]
        node: Any = None if handle is None else handle.grad_fn
        if node is not None and len(node._input_metadata) > 1:
            several.setdefault(node, at)
    if not several:
        return []
    starts = [handle.grad_fn for handle in handles if handle is not None]
    taken = {(handle.grad_fn, handle.output_nr) for handle in handles if handle is not None}
    used: set[Edge] = set()

    def noted(edge: Edge) -> tuple[int, bool]:
        if edge[0] in several:
            used.add(edge)
        return NOTHING

    reached([one for one in starts if one is not None], passes=noted)
    return [
        (OtherResult(node, number), (at, number))
        for node, at in several.items()
        for number in range(len(node._input_metadata))
        if (node, number) in used and (node, number) not in taken
    ]


# So many results, and others of their operators: of which of the results, and the number
Shown = tuple[int, tuple[Beside, ...]]


def split_shown(
    shown: Collection[int], others: Mapping[int, Beside], beside: Mapping[int, Collection[int | None]]
) -> tuple[list[int], dict[int, Beside]]:
    """Positions of results, and those of `others` beside one of these, as `Shown` has them. beside: of results of one
    operator, the positions of all."""
    visible = [at for at in shown if at not in others]
    found: dict[int, Beside] = {}
    for at in shown:
        if at in others:
            known = next((one for one in beside.get(at, ()) if one in visible), None)
            if known is not None:
                found[at] = visible.index(known), others[at][1]
    return visible, found


def others_again(handles: Mapping[int, torch.Tensor], others: Mapping[int, Beside]) -> dict[int, OtherResult]:
    """Those at the same positions, of another run of the program."""
    return {position: OtherResult(handles[at].grad_fn, number) for position, (at, number) in others.items()}
