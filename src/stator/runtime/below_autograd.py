"""The context of library functions in compiled code: below autograd and autocast."""

from __future__ import annotations

from typing import Any

import torch


def _library_keys() -> torch._C.DispatchKeySet:
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet
    # AutogradFunctionality covers the autograd keys of all backends. A backend's own key must not be named here: up to
    # torch 2.12 its bit would stay in the thread's state after the context ends.
    names = ("AutogradOther", "ADInplaceOrView", "AutocastCPU", "AutocastCUDA")
    excluded = keys(key.AutogradFunctionality)
    for name in names:
        if hasattr(key, name):
            excluded = excluded | keys(getattr(key, name))
    return excluded


_BELOW = _library_keys()


def below_autograd() -> Any:
    """Return a context that runs operators as they were traced: without autograd and autocast, which are already
    compiled in."""
    return torch._C._ExcludeDispatchKeyGuard(_BELOW)
