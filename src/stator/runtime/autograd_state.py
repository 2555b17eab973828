"""Autograd around compiled code: the context below autograd and autocast, the creation records of views, and results
whose backward has already run.

Autograd's record of a view's creation (one of several results, or under no_grad) decides whether the view may be
written to. Compiled code makes views by other operators and modes than the program, and restores that record.
"""

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


_get: Any = torch._C._autograd._get_creation_meta  # type: ignore[attr-defined]
_set: Any = torch._C._autograd._set_creation_meta  # type: ignore[attr-defined]
_PLAIN: Any = torch._C._autograd.CreationMeta.DEFAULT  # type: ignore[attr-defined]


def view_creation_of(tensor: torch.Tensor) -> Any:
    """Return the creation record of a view that autograd protects from some writes; None for other tensors."""
    if not tensor.requires_grad or not tensor._is_view():
        return None
    found = _get(tensor)
    return None if found == _PLAIN else found


def with_view_creation(tensor: torch.Tensor, origin: Any) -> torch.Tensor:
    """Return the tensor, with the given creation record."""
    if tensor._is_view():
        _set(tensor, origin)
    return tensor


_MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


class _Freed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        raise RuntimeError(_MESSAGE)


def with_freed_history(tensor: torch.Tensor, *leads_to: torch.Tensor) -> torch.Tensor:
    """Make `tensor` (which must not require grad) require grad, in place, like a result whose graph a backward has
    freed: a second backward, or a gradient by one of `leads_to`, raises RuntimeError."""
    with torch.enable_grad():
        return _Freed.apply(tensor.detach(), torch.empty(0, device="cpu", requires_grad=True), *leads_to)
