"""Python versions of C functions that torch.optim and the clipping of gradients call, and of `zero_grad`; the
grouping of tensors for foreach code like eager (under compilation torch makes one group without the dtypes that some
optimizers need)."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

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


@polyfill(torch.optim.Optimizer._group_tensors_by_device_and_dtype)
def group_tensors_for_foreach(tensorlistlist: list[list[torch.Tensor | None]], with_indices: bool = False) -> Any:
    """Lists by device and dtype of the first list's tensors: {(device, dtype): (lists, positions)}.

    Groups appear in the order of their first tensors; eager's order is unspecified.
    """
    first = tensorlistlist[0]
    if len(first) == 0:
        raise RuntimeError("Expected !nested_tensorlist[0].empty() to be true, but got false.")
    device, dtype = first[0].device, first[0].dtype  # type: ignore[union-attr]
    for tensor in first:
        if tensor.dtype != dtype or tensor.device != device:  # type: ignore[union-attr]
            return _group_tensors_by_device_and_dtype(tensorlistlist, with_indices)  # type: ignore[arg-type]
    return {(device, dtype): (tensorlistlist, list(range(len(first))))}
