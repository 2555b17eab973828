"""Which inputs of a graph each of its values leads to, for autograd: groups of inputs, and the nodes of these groups,
and what is known of them in the backward that is running.

Autograd decides by where a node leads what it runs, which hooks it calls, and whether a gradient that is asked for has
been through them. So a value must lead to the inputs it depends on and to no others. What is
computed is not known here.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .autograd_reachability import leaf_places, reached
from .multi_output_nodes import Handle

# A leaf that nothing depends on: its node runs unless only some leaves are asked for. So would that of a leaf which the
# program made and nobody has: this one takes its place.
with torch._C._InferenceMode(False):
    nobody = torch.zeros((), device="cpu", requires_grad=True)


@dataclass(frozen=True, slots=True)
class InputGroup:
    """Inputs that the same values lead to: the positions of both. Leaves that the program made are one more input,
    behind the others."""

    primals: tuple[int, ...]
    positions: tuple[int, ...]


def find_groups(
    handles: Mapping[int, Handle], primals: Mapping[int, torch.Tensor], made_leaves: int
) -> tuple[tuple[InputGroup, ...], tuple[int, ...]]:
    """The groups of primals, those that most values lead to last, and the primals that none leads to.

    handles: what autograd knows the values by, by position. primals: those that require grad, by place.
    made_leaves: the place of other leaves, behind all of these.
    """
    masks = reached([handle.grad_fn for handle in handles.values()], leaf_places(primals, made_leaves))
    leading: dict[tuple[int, ...], list[int]] = {}
    for at in (*sorted(primals), made_leaves):
        positions = tuple([position for position, handle in handles.items() if masks[handle.grad_fn] >> at & 1])
        leading.setdefault(positions, []).append(at)
    unreached = tuple(leading.pop((), ()))
    groups = [InputGroup(tuple(found), positions) for positions, found in leading.items()]
    return tuple(sorted(groups, key=lambda group: len(group.positions))), unreached


def run_in_one_thread(groups: Sequence[InputGroup], devices: Mapping[int, torch.device]) -> bool:
    """Whether autograd runs the nodes of all groups one after the other: it has a thread for each accelerator, and runs
    a node in that of the first that its gradients are on. devices: of the values, by position."""
    threads = set()
    for group in groups:
        found = [devices[position] for position in group.positions]
        threads.add(next((device for device in found if device.type != "cpu"), torch.device("cpu")))
    return len(threads) < 2


class NotLedTo:
    """An argument that autograd does not see."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class GroupFunction(torch.autograd.Function):
    """apply(holder, index, layouts, *primals of a group): for each value that leads there a tensor of its shape,
    without contents, that stands before the group.

    holder: a tuple of one tensor, whose node is that of the call, and which keeps it alive.
    """

    @staticmethod
    def forward(ctx: Any, holder: tuple[torch.Tensor], index: int, layouts: Sequence[Any], *primals: Any) -> Any:
        ctx.holder, ctx.index = holder, index
        ctx.set_materialize_grads(False)
        return tuple(
            [
                torch.empty_strided(shape, (0,) * len(shape), dtype=dtype, device=device)
                for shape, dtype, device in layouts
            ]
        )

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        step_node: Any = ctx.holder[0].grad_fn
        return None, None, None, *step_node.step.gradients_of_group(step_node, ctx.index, tangents)


apply_group = super(torch.autograd.Function, GroupFunction).apply  # without preparations for functions of other kinds


def will_run(node: Any) -> bool:
    """Whether the running backward executes this node, or needs what the node of a leaf gets."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # so it answers for a leaf if, and only if, `torch.autograd.grad` was asked for its gradient
        if node.next_functions:
            raise
        return True


def asked_for(node: Any, primals: Sequence[int]) -> int:
    """The primals, as bits, whose gradients the running backward asks of a node; of all, if none is running.

    primals: those that the node leads to, in order.
    """
    running = torch._C._current_graph_task_id() != -1
    found = 0
    for at, (edge, _) in zip(primals, node.next_functions, strict=False):
        if edge is not None and (not running or will_run(edge)):
            found |= 1 << at
    return found


@dataclass(slots=True, weakref_slot=True, eq=False)
class Progress:
    """How far one backward has come with one call. It ends with that backward, also where that raises.

    open: groups whose gradients it will need and that were not computed yet. arrived: tangents of values whose nodes
    have run, by position; they are not kept alive, the nodes of groups that wait for them do that. done: groups that
    were computed. found: gradients of groups whose nodes did not run yet. asked: the primals whose gradients it needs,
    as bits.
    """

    open: set[int]
    arrived: dict[int, weakref.ref[torch.Tensor] | None] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    found: dict[int, list[torch.Tensor | None]] = field(default_factory=dict)
    asked: int = 0

    def kept(self) -> None:
        """Called by the running backward when it ends; as its callback it is kept alive until then."""


def progress(step_node: Any) -> Progress:
    """Of the call with this node in the backward that is running. There are several while one runs inside of another,
    or in another thread."""
    task = torch._C._current_graph_task_id()
    all_known: Mapping[int, weakref.ref[Progress]] = step_node.progress
    reference = all_known.get(task)
    known = None if reference is None else reference()
    if known is None:
        nodes = [group() for group in step_node.groups]
        known = Progress({at for at, node in enumerate(nodes) if node is not None and will_run(node)})
        for at in known.open:
            known.asked |= asked_for(nodes[at], step_node.step.groups[at].primals)
        torch.autograd.Variable._execution_engine.queue_callback(known.kept)
        left = {at: one for at, one in step_node.progress.items() if one() is not None}
        step_node.progress = {**left, task: weakref.ref(known)}
    return known


def note_tangent(step_node: Any, position: int, tangent: torch.Tensor | None) -> None:
    """To be called when the node of the value at `position` runs, with what it passes on to the nodes of groups."""
    progress(step_node).arrived[position] = None if tangent is None else weakref.ref(tangent)


def all_tangents(
    step_node: Any, known: Progress, groups: Sequence[InputGroup]
) -> dict[int, torch.Tensor | None] | None:
    """The tangents of all values, when no more can come for groups whose nodes run; None when some can."""
    found: dict[int, torch.Tensor | None] = {position: None for group in groups for position in group.positions}
    nodes: Mapping[int, weakref.ref[Any]] = step_node.value_nodes
    for position in {position for at in known.open for position in groups[at].positions}:
        if position in known.arrived:
            arrived = known.arrived[position]
            tangent = found[position] = None if arrived is None else arrived()
            if arrived is not None and tangent is None:
                return None
        elif position in nodes:  # otherwise it was computed before, in another step
            node = nodes[position]()
            if node is not None and will_run(node):
                return None
    return found


def runs(step_node: Any) -> bool:
    """Whether the running backward computes gradients of inputs of the call with this node."""
    groups: Sequence[weakref.ref[Any]] = step_node.groups
    nodes = [reference() for reference in groups] if groups else [step_node]
    return any(node is not None and will_run(node) for node in nodes)
