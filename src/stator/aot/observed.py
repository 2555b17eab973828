"""Results that other results of the same graph were computed from, when somebody looks at their gradients.

In eager the gradient of such a result holds what flows back from the others, and its hooks change what flows on. In a
compiled graph one autograd function makes all results and knows nothing of that: so then the gradients are taken by
running the program itself. What is compiled is not known here.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Watched = dict[int, weakref.ref[torch.Tensor]]  # position of a forward value -> the tensor that the caller got


def inner_positions(handles: Sequence[torch.Tensor | None]) -> tuple[int, ...]:
    """Positions of the tensors whose history leads on to others of them. None entries have no history."""
    followed: set[Any] = set()
    todo = [handle.grad_fn for handle in handles if handle is not None]
    seen = set(todo)
    while todo:
        for node, _ in todo.pop().next_functions:  # type: ignore[union-attr]
            if node is not None:
                followed.add(node)
                if node not in seen:
                    seen.add(node)
                    todo.append(node)
    return tuple(at for at, handle in enumerate(handles) if handle is not None and handle.grad_fn in followed)


class _Shown(torch.autograd.Function):
    """A node of its own for a result, which runs only when a gradient comes from outside: so do the result's hooks."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def show(values: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    for position in positions:
        with torch.autograd._unsafe_preserve_version_counter(values[position]):  # nothing is written
            _Shown.apply(values[position])
    return values


def watch(values: Sequence[Any], positions: Sequence[int]) -> Watched:
    return {position: weakref.ref(values[position]) for position in positions}


def observed(watched: Watched) -> dict[int, torch.Tensor]:
    """Those whose gradient somebody looks at: by hooks, or because it is retained."""
    alive = ((position, reference()) for position, reference in watched.items())
    return {
        position: tensor
        for position, tensor in alive
        if tensor is not None and (tensor._backward_hooks or tensor.retains_grad)
    }


def attach(handles: Mapping[int, torch.Tensor], tensors: Mapping[int, torch.Tensor], given: Sequence[int]) -> None:
    """Let the hooks of `tensors` see the gradients of the tensors that stand for them.

    given: positions that have a gradient from outside of the graph, which the hooks have seen already: RuntimeError.
    """
    both = [position for position in tensors if position in given]
    if both:
        raise RuntimeError(
            "stator: a result of a compiled function has hooks or retains its gradient, and is used outside of the "
            "function as well as for another of its results; its whole gradient is not known at one place. "
            "Register the hook inside, or run this part eagerly (stator.disable)"
        )
    for position, tensor in tensors.items():
        for hook in (tensor._backward_hooks or {}).values():
            handles[position].register_hook(hook)
        if tensor.retains_grad:
            handles[position].register_hook(_retainer(tensor))


def _retainer(tensor: torch.Tensor) -> Any:
    def retain(gradient: torch.Tensor) -> None:
        tensor.grad = gradient.clone() if tensor.grad is None else tensor.grad + gradient

    return retain
