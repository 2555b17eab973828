"""Values of a traced program as autograd knows them: which of them can be differentiated, what was hooked, and how what
the caller gets is linked. What they lead to, and their gradients, are found in joint.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.functionalization.outputs import DescribedOutputs
from stator.graph.ir.traced import Fresh, Output, ViewOfInput, ViewOfOutput
from stator.graph.subgraphs.differentiated import Failure, failure_without_gradient

from .multi_output_nodes import Beside, Handle, OtherResult, find_others
from .output_autograd_nodes import Link, find_links


@dataclass(frozen=True, slots=True)
class Values:
    """See `Joint` for what has the same name there.

    handles: by position, the tensor through which autograd knows each of the `count` forward values, each output that
    is a view, and, from `first_hidden` on, what was hooked, then `others`; None where it knows none. known: those that
    are there.
    """

    handles: Sequence[FakeTensor | OtherResult | None]
    known: Mapping[int, FakeTensor | OtherResult]
    count: int
    first_hidden: int
    differentiable: tuple[int, ...]
    results: tuple[int, ...]
    links: tuple[Link, ...]
    written: dict[int, int]
    hooked: tuple[int, ...]
    hidden: tuple[int, ...]
    others: dict[int, Beside]
    parts: tuple[tuple[int | None, ...], ...]
    hooks_inside: bool

    @property
    def visible(self) -> tuple[int, ...]:
        """What can be differentiated and is not hidden."""
        return tuple([at for at in self.differentiable if at < self.first_hidden])

    @property
    def differentiated(self) -> dict[int, FakeTensor | OtherResult]:
        return {at: self.known[at] for at in self.differentiable}

    def failures(self) -> dict[int, Failure]:
        hooked = {at: self.known[at] for at in (*self.hooked, *self.hidden)}
        found = {at: failure_without_gradient(one) for at, one in hooked.items() if isinstance(one, torch.Tensor)}
        return {at: failure for at, failure in found.items() if failure is not None}

    def together(self, links: Sequence[Link]) -> tuple[tuple[int | None, ...], ...]:
        """The positions of what operators with several results have made, in the order of these; `parts` has views."""
        views = {*range(self.count, self.first_hidden), *[at for one in self.parts for at in one]}
        return _by_node({one.position: self.known[one.position] for one in links if one.position not in views})


def find_values(
    described: DescribedOutputs,
    known: Sequence[FakeTensor | None],
    leaves: Sequence[Any],
    hooks: Sequence[torch.Tensor],
) -> Values:
    """known: the tensors through which autograd knows the forward values. leaves: what the program returns. hooks: what
    it has hooked."""
    count = len(known)
    differentiable = [position for position, handle in enumerate(known) if handle is not None]
    fresh, hooked = _fresh(described, known)
    views, bases = _views(described, leaves, count)
    handles = [*known, *[views.get(count + at) for at in range(len(leaves))]]
    first = len(handles)
    inner = _hooked_inside(hooks, handles) if differentiable else []
    seen = {_place_of(handle) for at in hooked if (handle := handles[at]) is not None}
    seen.update(_place_of(handle) for handle in inner if handle is not None)
    handles += inner
    views_of_several = [at for at in views if _is_part(described.outputs[at - count])]
    among = (*fresh, *views_of_several, *range(first, len(handles)))
    others = find_others(handles, among if differentiable else ())
    beside = dict(enumerate([place for _, place in others], len(handles)))
    all_handles: list[FakeTensor | OtherResult | None] = [*handles, *[one for one, _ in others]]
    hidden_parts = [at for at, (known_at, _) in beside.items() if count <= known_at < first]
    bases.update({at: bases[beside[at][0]] for at in hidden_parts if beside[at][0] in bases})
    all_parts = {at: one for at in (*views_of_several, *hidden_parts) if (one := all_handles[at]) is not None}
    results, links, written = _linked(described, all_handles, fresh, views, bases, first, all_parts)
    links = _reached(links, first)
    linked = {one.position for one in links}
    alone = [at for at in fresh if at in hooked or _is_one_of_several(handles[at])]  # whose node hooks see as eager's
    links += tuple(Link(at, ()) for at in alone if at not in linked)
    linked = {one.position for one in links}
    hidden = sorted(at for at in linked if at >= first and at not in hidden_parts)  # as tangents are
    return Values(
        all_handles,
        {at: handle for at, handle in enumerate(all_handles) if handle is not None},
        count,
        first,
        (*differentiable, *hidden),
        tuple(results),
        links,
        written,
        tuple(hooked),
        tuple(hidden),
        {at: place for at, place in beside.items() if at in linked},
        _by_node({at: one for at, one in all_parts.items() if at in linked}),
        not {_place_of(one) for one in hooks} <= seen,
    )


def _fresh(described: DescribedOutputs, handles: Sequence[FakeTensor | None]) -> tuple[list[int], list[int]]:
    """Positions of values that the caller gets, or that what it gets are views of if these are hooked; and of those of
    them that are hooked."""
    fresh = dict.fromkeys(output.position for output in described.outputs if isinstance(output, Fresh))
    viewed = [output.position for output in described.outputs if isinstance(output, ViewOfOutput)]
    with_hooks = {at for at, handle in enumerate(handles) if handle is not None and handle._backward_hooks}
    fresh.update(dict.fromkeys(at for at in viewed if at in with_hooks))
    return list(fresh), [at for at in fresh if at in with_hooks]


def _linked(
    described: DescribedOutputs,
    handles: Sequence[Handle | None],
    fresh: Sequence[int],
    views: Mapping[int, FakeTensor],
    bases: Mapping[int, int],
    first: int,
    parts: Mapping[int, Handle],
) -> tuple[list[int], tuple[Link, ...], dict[int, int]]:
    """Results, links and what is written to inputs, as `Joint` has them. first: where what is hidden begins.
    parts: views that are results of operators with several, hidden ones too."""
    count = len(described.handles)
    results = [at for at in fresh if handles[at] is not None]
    written = {at: index for index, at in described.mutated if handles[at] is not None}
    inside = [at for at, handle in enumerate(handles) if at >= first and handle is not None]
    links = find_links(handles, (*results, *written, *views, *inside), bases)
    together = len({one.grad_fn for one in parts.values()}) < len(parts)
    views_behind = {*range(count, first), *parts}
    if together or any(
        at in views_behind or (at in written and one.position < count) for one in links for at in one.behind
    ):
        return [*results, *[one.position for one in links if count <= one.position < first]], links, written
    # nothing that the graph returns was computed from these, as far as autograd knows
    seen = [None if at in views_behind else handle for at, handle in enumerate(handles)]
    return results, find_links(seen, (*results, *[at for at in inside if at not in parts])), {}


def _views(
    described: DescribedOutputs, leaves: Sequence[Any], count: int
) -> tuple[dict[int, FakeTensor], dict[int, int]]:
    """Outputs that are views for autograd too, by their positions behind `count` values; and of which values."""
    contents = dict(described.mutated)
    views: dict[int, FakeTensor] = {}
    bases: dict[int, int] = {}
    for at, (leaf, output) in enumerate(zip(leaves, described.outputs, strict=True), count):
        if isinstance(output, (ViewOfOutput, ViewOfInput)) and leaf.grad_fn is not None:
            views[at] = leaf
            base = output.position if isinstance(output, ViewOfOutput) else contents.get(output.index)
            if base is not None:
                bases[at] = base
    return views, bases


def _hooked_inside(hooks: Sequence[torch.Tensor], handles: Sequence[FakeTensor | None]) -> list[FakeTensor | None]:
    """What was hooked, at the first of its hooks, where autograd does not know one of the `handles` by it."""
    taken = {_place_of(handle) for handle in handles if handle is not None}
    found: list[FakeTensor | None] = []
    for one in hooks:
        place = _place_of(one)
        found.append(one if isinstance(one, FakeTensor) and place not in taken else None)
        taken.add(place)
    return found


def _is_part(output: Output) -> bool:
    """Of a view: whether an operator with several results makes it."""
    steps = output.geometry.steps if isinstance(output, (ViewOfOutput, ViewOfInput)) else ()
    return bool(steps) and steps[-1].whole is not None


def _by_node(handles: Mapping[int, Handle]) -> tuple[tuple[int | None, ...], ...]:
    """The positions of what operators with several results have made, in the order of these; None for others."""
    found: dict[Any, list[int | None]] = {}
    for position, handle in handles.items():
        node: Any = handle.grad_fn
        if node is not None and len(node._input_metadata) > 1:
            places = found.setdefault(node, [None] * len(node._input_metadata))
            if places[handle.output_nr] is None:
                places[handle.output_nr] = position
    return tuple(map(tuple, found.values()))


def _is_one_of_several(handle: FakeTensor | None) -> bool:
    node: Any = None if handle is None else handle.grad_fn
    return node is not None and len(node._input_metadata) > 1


def _place_of(tensor: torch.Tensor) -> tuple[Any, int]:
    """For autograd."""
    return tensor.grad_fn, tensor.output_nr


def _reached(links: Sequence[Link], first: int) -> tuple[Link, ...]:
    """Without those of hidden positions, from `first` on, that nothing which the graph returns was computed from."""
    behind = {one.position: one.behind for one in links}
    reached = {position for position in behind if position < first}
    todo = list(reached)
    while todo:
        for position in behind.get(todo.pop(), ()):
            if position not in reached:
                reached.add(position)
                todo.append(position)
    return tuple([one for one in links if one.position in reached])
