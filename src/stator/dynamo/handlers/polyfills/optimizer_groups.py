"""Groups tensors for the foreach code of torch.optim like eager. Under compilation torch makes one group without the
dtypes that some optimizers need."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from stator.dynamo.interpreter.calling import polyfill


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
