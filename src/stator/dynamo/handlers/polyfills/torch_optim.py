"""What torch.optim and the clipping of gradients call in C, as plain Python; and what decides by the data of a tensor
whether to update others, without the jump."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from stator.dynamo.handlers.torch_calls.conditional import run_unless, unchanged
from stator.dynamo.interpreter.calling import polyfill

_NO_TENSORS = (
    "Expected !nested_tensorlist[0].empty() to be true, but got false.  (Could this error message be improved?  If so, "
    "please report an enhancement request to PyTorch.)"
)


@polyfill(torch._C._group_tensors_by_device_and_dtype)
def group_tensors_by_device_and_dtype(
    tensorlistlist: list[list[torch.Tensor | None]], with_indices: bool = False
) -> dict[Any, Any]:
    """Positions of the lists by device and dtype of the first list's tensors: {(device, dtype): (lists, positions)}."""
    if not tensorlistlist[0]:
        raise RuntimeError(_NO_TENSORS)
    groups: dict[Any, Any] = {}
    for position, first in enumerate(tensorlistlist[0]):
        key = (first.device, first.dtype)  # type: ignore[union-attr]
        if key not in groups:
            groups[key] = ([[] for _ in tensorlistlist], [])
        lists, positions = groups[key]
        for at, tensors in enumerate(tensorlistlist):
            if len(tensors) > 0:
                lists[at].append(tensors[position])
        if with_indices:
            positions.append(position)
    return groups


@polyfill(GradScaler._maybe_opt_step)
def maybe_opt_step(
    self: GradScaler, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    """A step of the optimizer unless a gradient holds an infinity or NaN. Captured for steps that return None.

    In a step that is skipped the optimizer sees zeros: so all of its arithmetic comes after the decision, and nothing
    of it is done, and kept, while gradients are still being looked through.
    """
    found = list(optimizer_state["found_inf_per_device"].values())
    skip = sum([one.to(found[0].device) for one in found[1:]], found[0]) != 0
    graded = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    gradients = [one.grad for one in graded]
    seen = [one.masked_fill(skip.to(one.device), 0) for one in gradients]
    for one, gradient in zip(graded, seen, strict=True):
        one.grad = gradient
    run_unless(skip, optimizer.step, *args, **kwargs)
    unchanged(seen)
    for one, gradient in zip(graded, gradients, strict=True):
        one.grad = gradient


def optimizer_without_gradients(self: torch.optim.Optimizer) -> None:
    """zero_grad of an optimizer, which does not look at first whether there are gradients: steps are then the same
    whether there were any before."""
    for group in self.param_groups:
        for one in group["params"]:
            one.grad = None


def module_without_gradients(self: torch.nn.Module) -> None:
    """zero_grad of a module, likewise."""
    for one in self.parameters():
        one.grad = None
