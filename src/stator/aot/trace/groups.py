"""Results of a graph that depend on different inputs: a node for each group of inputs that the same results lead to.

Autograd decides by where a node leads what it runs, which hooks it calls, and whether a gradient that is asked for has
been through them. So a value must lead to the inputs it depends on and to no others. The edges carry nothing: tangents
and gradients are handed over in `Progress`. What is computed is not known here.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .autograd_reachability import leaf_places, reached

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
    handles: Mapping[int, torch.Tensor], primals: Mapping[int, torch.Tensor], made_leaves: int
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


class NotLedTo:
    """An argument that autograd does not see."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class GroupFunction(torch.autograd.Function):
    """apply(holder, index, *primals of a group): an empty tensor, which stands before the group.

    holder: a tuple of one tensor, whose node is that of the call, and which keeps it alive.
    """

    @staticmethod
    def forward(ctx: Any, holder: tuple[torch.Tensor], index: int, *primals: Any) -> Any:
        ctx.holder, ctx.index = holder, index
        ctx.set_materialize_grads(False)
        return torch.empty(0, device="cpu")  # so that autograd runs the nodes of all groups in one thread

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        step_node: Any = ctx.holder[0].grad_fn
        return None, None, *step_node.step.gradients_of_group(step_node, ctx.index)


apply_group = super(torch.autograd.Function, GroupFunction).apply  # without preparations for functions of other kinds


def will_run(node: Any) -> bool:
    """Whether the running backward executes this node, or needs what the node of a leaf gets."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # so it answers for a leaf if, and only if, `torch.autograd.grad` was asked for its gradient
        if node.next_functions:
            raise
        return True


@dataclass(slots=True, weakref_slot=True, eq=False)
class Progress:
    """How far one backward has come with one call. It ends with that backward, also where that raises.

    open: groups whose gradients it will need and that were not computed yet. arrived: tangents of values whose nodes
    have run, by position, until they are used. done: groups that were computed. found: gradients of groups whose nodes
    did not run yet.
    """

    open: set[int]
    arrived: dict[int, torch.Tensor | None] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    found: dict[int, list[torch.Tensor | None]] = field(default_factory=dict)

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
        torch.autograd.Variable._execution_engine.queue_callback(known.kept)
        left = {at: one for at, one in step_node.progress.items() if one() is not None}
        step_node.progress = {**left, task: weakref.ref(known)}
    return known


def pending(step_node: Any, state: Progress) -> set[int]:
    """The values whose tangents may still arrive: their nodes will run, and have not."""
    nodes: Mapping[int, weakref.ref[Any]] = step_node.value_nodes
    waiting = set()
    for position, reference in nodes.items():
        node = reference() if position not in state.arrived else None
        if node is not None and will_run(node):
            waiting.add(position)
    return waiting
