"""Values of a traced program as autograd knows them: which can be differentiated, and how results are linked.

What they lead to, and their gradients, are found in joint.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.functionalization.outputs import DescribedOutputs
from stator.graph.ir.traced import Fresh, ViewOfInput, ViewOfOutput

from .output_autograd_nodes import Link, find_links


@dataclass(frozen=True, slots=True)
class Values:
    """See `Joint` for what has the same name there.

    handles: by position, the tensor through which autograd knows each of the `count` forward values, and each output
    that is a view; None where it knows none.
    """

    handles: Sequence[FakeTensor | None]
    count: int
    differentiable: tuple[int, ...]
    results: tuple[int, ...]
    links: tuple[Link, ...]
    written: dict[int, int]

    @property
    def differentiated(self) -> dict[int, FakeTensor]:
        found = ((at, self.handles[at]) for at in self.differentiable)
        return {at: handle for at, handle in found if handle is not None}


def find_values(described: DescribedOutputs, known: Sequence[FakeTensor | None], leaves: Sequence[Any]) -> Values:
    """known: the tensors through which autograd knows the forward values. leaves: what the program returns."""
    count = len(known)
    fresh = list(dict.fromkeys(output.position for output in described.outputs if isinstance(output, Fresh)))
    views, bases = _views(described, leaves, count)
    handles = [*known, *[views.get(count + at) for at in range(len(leaves))]]
    results, links, written = _linked(described, handles, fresh, views, bases)
    return Values(
        handles,
        count,
        tuple([position for position, handle in enumerate(known) if handle is not None]),
        tuple(results),
        links,
        written,
    )


def _linked(
    described: DescribedOutputs,
    handles: Sequence[FakeTensor | None],
    fresh: Sequence[int],
    views: Mapping[int, FakeTensor],
    bases: Mapping[int, int],
) -> tuple[list[int], tuple[Link, ...], dict[int, int]]:
    """Results, links and what is written to inputs, as `Joint` has them."""
    count = len(described.handles)
    results = [at for at in fresh if handles[at] is not None]
    written = {at: index for index, at in described.mutated if handles[at] is not None}
    links = find_links(handles, (*results, *written, *views), bases)
    if any(at >= count or (at in written and one.position < count) for one in links for at in one.behind):
        return [*results, *[one.position for one in links if one.position >= count]], links, written
    # nothing that the graph returns was computed from these, as far as autograd knows
    return results, find_links(handles[:count], results), {}


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
