"""Groups inputs by the results that depend on them, and gives each group an autograd node of its own.

Autograd looks at edges to decide which nodes run, which hooks it calls, and whether a requested gradient depends on
them. So a result must lead to exactly the inputs it depends on. The edges carry no gradients: tangents and gradients
are handed over in `BackwardProgress`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stator.aot.runtime.autograd_reachability import leaf_places, reachable_places

# A leaf that nothing depends on. Its node runs unless only some leaves are asked for, like that of a leaf which the
# program made and dropped, which this leaf replaces.
with torch._C._InferenceMode(False):
    dummy_leaf = torch.zeros((), device="cpu", requires_grad=True)
    nothing = torch.empty(0, device="cpu")


@functools.cache
def _nothing_on(device: torch.device) -> torch.Tensor:
    with torch._C._InferenceMode(False), torch._C._DisableTorchDispatch():  # not fake in a user's fake mode
        return torch.empty(0, device=device)


@dataclass(frozen=True, slots=True)
class InputGroup:
    """Inputs that the same values lead to: the positions of the inputs and of the values. All leaves that the program
    made count as one more input, behind the others."""

    primals: tuple[int, ...]
    positions: tuple[int, ...]


def find_groups(
    handles: Mapping[int, torch.Tensor], primals: Mapping[int, torch.Tensor], made_leaves: int
) -> tuple[tuple[InputGroup, ...], tuple[int, ...]]:
    """The groups of primals, those that most values lead to last, and the primals that no value leads to.

    handles: the tensors through which autograd knows the values, by position. primals: those that require grad, by
    place.
    made_leaves: the place of the leaves that the program made, behind all primals.
    """
    masks = reachable_places([handle.grad_fn for handle in handles.values()], leaf_places(primals, made_leaves))
    leading: dict[tuple[int, ...], list[int]] = {}
    for at in (*sorted(primals), made_leaves):
        positions = tuple([position for position, handle in handles.items() if masks[handle.grad_fn] >> at & 1])
        leading.setdefault(positions, []).append(at)
    unreached = tuple(leading.pop((), ()))
    groups = [InputGroup(tuple(found), positions) for positions, found in leading.items()]
    return tuple(sorted(groups, key=lambda group: len(group.positions))), unreached


class HiddenFromAutograd:
    """Wraps a tensor argument so that autograd does not see it."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class GroupFunction(torch.autograd.Function):
    """apply(holder, index, device, *primals of a group): an empty tensor whose node stands before the group.

    holder: a tuple of one tensor, whose node is that of the call; the tuple keeps the node alive.
    device: of the values. The engine has a thread for each device, which runs the node made last first. So the nodes of
    the groups run behind those of the values. Two threads would start on groups before all tangents have arrived.
    """

    @staticmethod
    def forward(ctx: Any, holder: tuple[torch.Tensor], index: int, device: torch.device, *primals: Any) -> Any:
        ctx.holder, ctx.index = holder, index
        ctx.materialize_grads = False
        return _nothing_on(device).detach()

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        step_node: Any = ctx.holder[0].grad_fn
        return None, None, None, *step_node.step.gradients_of_group(step_node, ctx.index)


# skips the handling of functorch and of setup_context
apply_group = super(torch.autograd.Function, GroupFunction).apply
# the engine calls it without a look at other ways to define a backward
GroupFunction._backward_cls.apply = GroupFunction.backward  # type: ignore[attr-defined]


def will_run(node: Any) -> bool:
    """Whether the running backward executes this node, or computes the gradient of this leaf."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    # The engine raises for a leaf if and only if `torch.autograd.grad` was asked for that leaf's gradient.
    except RuntimeError:
        if node.next_functions:
            raise
        return True


@dataclass(slots=True, weakref_slot=True, eq=False)
class BackwardProgress:
    """How far one running backward has come with one call. It ends with that backward, also by an error.

    open: groups whose gradients are needed and not yet computed. arrived: tangents of values whose nodes have run, by
    position, until they are used. done: computed groups. found: gradients of groups whose nodes have not run yet.
    """

    open: set[int]
    arrived: dict[int, torch.Tensor | None] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    found: dict[int, list[torch.Tensor | None]] = field(default_factory=dict)

    def kept(self) -> None:
        """The engine calls this when the backward ends; as its callback, this object lives until then."""


def progress_of(step_node: Any) -> BackwardProgress:
    """The progress of the running backward with this node's call. Nested or concurrent backwards each have one."""
    task = torch._C._current_graph_task_id()
    all_known: Mapping[int, weakref.ref[BackwardProgress]] = step_node.progress
    reference = all_known.get(task)
    known = None if reference is None else reference()
    if known is None:
        nodes = [group() for group in step_node.groups]
        known = BackwardProgress({at for at, node in enumerate(nodes) if node is not None and will_run(node)})
        torch.autograd.Variable._execution_engine.queue_callback(known.kept)
        left = {at: one for at, one in step_node.progress.items() if one() is not None}
        step_node.progress = {**left, task: weakref.ref(known)}
    return known


def pending_values(step_node: Any, state: BackwardProgress) -> set[int]:
    """The values whose tangents may still arrive: their nodes will run and have not yet."""
    nodes: Mapping[int, weakref.ref[Any]] = step_node.value_nodes
    waiting = set()
    for position, reference in nodes.items():
        node = reference() if position not in state.arrived else None
        if node is not None and will_run(node):
            waiting.add(position)
    return waiting
