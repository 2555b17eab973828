"""Gradients of hooked results that autograd would give as they were before the hooks, where eager's have been through.

Autograd takes the gradient that is asked for (`torch.autograd.grad`) before the tensor's hooks if its node leads to
something else that is asked for, and behind them otherwise. One node leads from all results of a graph to all of its
inputs, so that a result seems to lead to inputs that it does not depend on. What hooks do is not known here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch


def partly_reached(handles: Mapping[int, torch.Tensor], primals: Sequence[torch.Tensor]) -> dict[int, tuple[int, ...]]:
    """The handles that not all primals which require grad are reached from, and the places of those that are."""
    bits = {id(primal): 1 << at for at, primal in enumerate(primals) if primal.requires_grad}
    masks: dict[Any, int] = {}
    todo = [handle.grad_fn for handle in handles.values()]
    while todo:
        node = todo[-1]
        edges = [edge[0] for edge in node.next_functions if edge[0] is not None]  # type: ignore[union-attr]
        waiting = [] if node in masks else [one for one in edges if one not in masks]
        todo += waiting
        if not waiting:
            mask = 0 if edges else bits.get(id(getattr(node, "variable", None)), 0)
            for one in edges:
                mask |= masks[one]
            masks[node] = mask
            todo.pop()
    everything = sum(bits.values())
    return {
        position: tuple([at for at in range(len(primals)) if masks[handle.grad_fn] >> at & 1])
        for position, handle in handles.items()
        if masks[handle.grad_fn] != everything
    }


def register_watched(
    register: Callable[[torch.Tensor], None], tensor: torch.Tensor, step_node: Any, reached: Iterable[int]
) -> None:
    """Register the hooks of a tensor, which leads to these inputs of the step only, between two of ours that raise when
    hooks changed a gradient that autograd took before them, and would not have in eager.

    It is taken before them if somebody still holds it afterwards. (So may a hook, where the result is only passed; and
    with one more result in front that is asked for, eager takes it before them as well. That raises needlessly.)
    """
    watch = _Watch(step_node, tuple(reached))
    hooks = tensor._backward_hooks
    try:
        for one in ({0: watch.before}, hooks, {0: watch.after}):
            tensor._backward_hooks = one  # type: ignore[assignment]
            register(tensor)
    finally:
        tensor._backward_hooks = hooks


class _Watch:
    __slots__ = ("noted", "reached", "step_node")

    def __init__(self, step_node: Any, reached: tuple[int, ...]) -> None:
        self.step_node, self.reached = weakref.ref(step_node), reached  # which leads here
        self.noted: dict[int, tuple[Any, int]] = {}  # by the running backward

    def before(self, gradient: torch.Tensor | None) -> None:
        if gradient is not None and self._only_seems_to_lead_on():
            task = torch._C._current_graph_task_id()
            self.noted[task] = torch._C._WeakTensorRef(gradient), gradient._cdata  # type: ignore[attr-defined]

    def after(self, gradient: torch.Tensor | None) -> None:
        noted = self.noted.pop(torch._C._current_graph_task_id(), None)
        if noted is None:
            return
        reference, place = noted
        if not reference.expired() and (gradient is None or gradient._cdata != place):  # type: ignore[attr-defined]
            raise RuntimeError(
                "stator: the gradient of a hooked result of a compiled graph is asked for together with that of an "
                "input that the result does not depend on, and its hooks change it: autograd would give what it was "
                "before them; ask for one at a time (retain_graph=True), or run this part eagerly (stator.disable)"
            )

    def _only_seems_to_lead_on(self) -> bool:
        step_node = self.step_node()
        if step_node is None or not torch._C._will_engine_execute_node(step_node):
            return False
        nodes = step_node.next_functions
        return not any(nodes[at][0] is not None and _is_asked(nodes[at][0]) for at in self.reached)


def _is_asked(node: Any) -> bool:
    """Whether the running backward needs what this node of an input gets."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # so it answers for a leaf if, and only if, `torch.autograd.grad` was asked for its gradient
        if node.next_functions:
            raise
        return True
