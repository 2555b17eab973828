"""A custom function that autograd does not see write."""

from __future__ import annotations

from typing import Any

import torch


class Assign(torch.autograd.Function):
    """Writes into a buffer behind autograd's back, and returns the buffer, as solvers of differential equations do."""

    @staticmethod
    def forward(ctx: Any, buffer: torch.Tensor, value: torch.Tensor, index: Any) -> torch.Tensor:  # type: ignore[override]
        ctx.index = index
        buffer.data[index] = value
        return buffer

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad, grad[ctx.index], None
