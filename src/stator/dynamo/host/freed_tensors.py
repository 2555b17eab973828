"""Parameters and buffers whose memory was given back because compiled code has what it needs of them. Any use of one
raises an error that says so."""

from __future__ import annotations

from typing import Any

import torch

from stator.base.errors import UsageError


def _answer(func: Any) -> int:
    if func is torch.Tensor.numel:
        return 0  # checks for inputs that overlap ask for it
    name = getattr(getattr(func, "__self__", None), "__name__", None) or getattr(func, "__name__", func)
    raise UsageError(
        f"the data of this parameter or buffer were freed by stator.freeze, so that {name} cannot use them. "
        "A frozen module with free_parameters serves only calls like its first one: pass dynamic=True for inputs of "
        "other sizes, take the state_dict before the first call, and keep another copy of the model for all else"
    )


class FreedTensor(torch.Tensor):
    """A buffer without data."""

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "buffer freed by stator.freeze"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _answer(func)


class FreedParameter(torch.nn.Parameter):
    """A parameter without data."""

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "parameter freed by stator.freeze"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _answer(func)


def free_tensor(tensor: torch.Tensor) -> type:
    """Give back the tensor's memory, which lives on where others share it. The object stays; returns its new type."""
    freed = FreedParameter if isinstance(tensor, torch.nn.Parameter) else FreedTensor
    with torch._C._InferenceMode(False), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        tensor.grad = None
        tensor.data = torch.empty(0, dtype=tensor.dtype)
    tensor.__class__ = freed  # as torch.nn.UninitializedParameter changes its class
    return freed
