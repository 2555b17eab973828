"""Which values of a traced program autograd can differentiate, and how its results are linked.

joint.py computes what the values lead to, and their gradients.
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
class DifferentiableValues:
    """Fields named as in `Joint` mean what they mean there.

    handles: by position, the tensor through which autograd knows each of the `count` forward values, then each output
    that is a view; None where autograd knows none.
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


def find_values(
    described: DescribedOutputs, known: Sequence[FakeTensor | None], leaves: Sequence[Any]
) -> DifferentiableValues:
    """known: the tensors through which autograd knows the forward values. leaves: the results of the program."""
    count = len(known)
    fresh = list(dict.fromkeys(output.position for output in described.outputs if isinstance(output, Fresh)))
    views, bases = _views(described, leaves, count)
    handles = [*known, *[views.get(count + at) for at in range(len(leaves))]]
    results, links, written = _linked(described, handles, fresh, views, bases)
    return DifferentiableValues(
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
    """Results, links and written inputs, as `Joint` has them."""
    count = len(described.handles)
    results = [at for at in fresh if handles[at] is not None]
    written = {at: index for index, at in described.mutated if handles[at] is not None}
    links = find_links(handles, (*results, *written, *views), bases)
    if any(at >= count or (at in written and one.position < count) for one in links for at in one.behind):
        return [*results, *[one.position for one in links if one.position >= count]], links, written
    # for autograd, no result was computed from these
    return results, find_links(handles[:count], results), {}


def _views(
    described: DescribedOutputs, leaves: Sequence[Any], count: int
) -> tuple[dict[int, FakeTensor], dict[int, int]]:
    """Outputs that autograd sees as views, by their positions behind `count` values; and the values they view."""
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
