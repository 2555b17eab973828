"""What torch.optim and the clipping of gradients call in C, as plain Python; and what decides by the data of a tensor
whether to update others, without the jump."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn, get_swa_multi_avg_fn
from torch.utils._foreach_utils import (
    _get_foreach_kernels_supported_devices,
    _group_tensors_by_device_and_dtype,
)

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


@polyfill(AveragedModel.update_parameters)
def update_parameters(self: AveragedModel, model: torch.nn.Module) -> None:
    """The first time a copy of the model, and its average with what there is afterwards."""
    if self.use_buffers:
        own = [*self.module.parameters(), *self.module.buffers()]
        others = [*model.parameters(), *model.buffers()]
    else:
        own, others = list(self.parameters()), list(model.parameters())
    pairs = list(zip(own, others, strict=False))
    averaged = [one.detach() for one, _ in pairs]
    current = [other.detach().to(one.device) for one, other in pairs]
    first = self.n_averaged == 0
    run_unless(torch.logical_not(first), _copy_all, averaged, current)
    run_unless(self.n_averaged <= 0, _average, self, averaged, current)
    if not self.use_buffers:
        for mine, other in zip(self.module.buffers(), model.buffers(), strict=True):
            mine.detach().copy_(other.detach().to(mine.device))
    self.n_averaged += 1


def _copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _average(self: AveragedModel, averaged: list[torch.Tensor], current: list[torch.Tensor]) -> None:
    if self.multi_avg_fn is None and self.avg_fn is not None:
        for one, other in zip(averaged, current, strict=True):
            one.detach().copy_(self.avg_fn(one.detach(), other, self.n_averaged.to(one.device)))
        return
    groups = _group_tensors_by_device_and_dtype([averaged, current])  # type: ignore[list-item]
    for (device, _), ((ones, others), _) in groups.items():
        count = self.n_averaged.to(device)
        if self.multi_avg_fn:
            self.multi_avg_fn(ones, others, count)  # type: ignore[arg-type]
        elif device is not None and device.type in _get_foreach_kernels_supported_devices():
            _average_lists(ones, others, count)  # type: ignore[arg-type]
        else:
            for one, other in zip(ones, others, strict=True):  # type: ignore[assignment]
                one.copy_(_average_tensors(one, other, count))  # type: ignore[union-attr,arg-type]


_average_tensors, _average_lists = get_swa_avg_fn(), get_swa_multi_avg_fn()


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
