"""Recurrent layers under autocast, traced without oneDNN: their operators get the dtypes that oneDNN's layers would
have. Torch itself decomposes the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.onednn import onednn_depth, onednn_enabled

from .data_dependent_functions import stand_ins

_OF_ONEDNN = (torch.float32, torch.bfloat16, torch.float16)


@stand_ins.register(torch.lstm)
def _lstm(input: Any, states: Any, weights: Any, *rest: Any) -> Any:
    """Convert states and weights to the autocast dtype, as autocast does for oneDNN's layers; plain matrix products
    would keep the states' dtype. Packed sequences (a tensor `states` holds batch sizes) never run in oneDNN."""
    if isinstance(states, torch.Tensor) or not _would_be_onednn(input, states, weights):
        return torch.lstm(input, states, weights, *rest)
    dtype = torch.get_autocast_dtype("cpu")
    states, weights = ([tensor.to(dtype) for tensor in given] for given in (states, weights))
    return torch.lstm(input.to(dtype), states, weights, *rest)


def _would_be_onednn(input: Any, states: Sequence[Any], weights: Sequence[Any]) -> bool:
    """Whether eager's autocast would run this layer in oneDNN; a transcription of ATen's condition."""
    return (
        torch.is_autocast_enabled("cpu")
        and bool(onednn_depth())
        and onednn_enabled()
        and input.dtype in _OF_ONEDNN
        and 0 not in input.shape
        and states[0].shape[2] == states[1].shape[2]  # no projections
        and all(tensor.device.type == "cpu" for tensor in (input, *states, *weights))
    )
