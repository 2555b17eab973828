"""Results of compiled code whose backward has already run: tensors with a freed autograd graph."""

from __future__ import annotations

from typing import Any

import torch

_MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


class _Freed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        raise RuntimeError(_MESSAGE)


def with_freed_history(tensor: torch.Tensor, *leads_to: torch.Tensor) -> torch.Tensor:
    """Make `tensor` (which must not require grad) require grad, in place, like a result whose graph a backward has
    freed: a second backward, or a gradient by one of `leads_to`, raises RuntimeError."""
    with torch.enable_grad():
        return _Freed.apply(tensor.detach(), torch.empty(0, device="cpu", requires_grad=True), *leads_to)
