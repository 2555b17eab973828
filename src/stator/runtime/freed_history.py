"""Tensors whose backward has been run: what compiled code returns for them when their history is used up."""

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
    """The tensor, requiring grad as a result whose graph a backward has freed does: a second backward raises
    RuntimeError, as does a gradient by one of `leads_to`. `tensor` must not require grad; it is changed in place."""
    with torch.enable_grad():
        return _Freed.apply(tensor.detach(), torch.empty(0, device="cpu", requires_grad=True), *leads_to)
