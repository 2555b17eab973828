"""Autograd's record of a view's creation (one of several results, or under no_grad), which decides whether the view may
be written to. Compiled code makes views by other operators and modes than the program, and restores that record."""

from __future__ import annotations

from typing import Any

import torch

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
