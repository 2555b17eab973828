"""Python versions of C functions that torch.optim and the clipping of gradients call, and of `zero_grad`."""

from __future__ import annotations

from typing import Any

import torch

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


def optimizer_zero_grad(self: torch.optim.Optimizer) -> None:
    """`Optimizer.zero_grad` that does not look whether gradients exist, so that one version serves the first step and
    the later ones."""
    for group in self.param_groups:
        for one in group["params"]:
            one.grad = None


def module_zero_grad(self: torch.nn.Module) -> None:
    """`Module.zero_grad` that does not look whether gradients exist."""
    for one in self.parameters():
        one.grad = None
