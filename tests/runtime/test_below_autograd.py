"""The context in which compiled graphs call operators: no autograd and no autocast, and a thread left as it was."""

from __future__ import annotations

import torch

from stator.runtime import autograd_state


def test_no_autograd_and_no_autocast_below() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), autograd_state.below_autograd():
        result = x @ x
    assert result.dtype is torch.float32 and not result.requires_grad


def test_no_backend_is_excluded() -> None:
    """Up to torch 2.12 a backend's bit would stay behind in the thread's state, for which versions would not fit."""
    first_functionality = torch._C.DispatchKeySet(torch._C.DispatchKey.Dense).raw_repr()
    assert autograd_state._BELOW.raw_repr() % first_functionality == 0
