"""How autograd says that a view was made, which decides whether it may be written to: as one of several results of an
operator, or under no_grad. Compiled code makes views of results by other operators and in other modes than the
program."""

from __future__ import annotations

from typing import Any

import torch

_get: Any = torch._C._autograd._get_creation_meta  # type: ignore[attr-defined]
_set: Any = torch._C._autograd._set_creation_meta  # type: ignore[attr-defined]
_PLAIN: Any = torch._C._autograd.CreationMeta.DEFAULT  # type: ignore[attr-defined]


def origin_of(tensor: torch.Tensor) -> Any:
    """What `with_origin` takes, for a view that autograd refuses some writes to; None for other tensors."""
    if not tensor.requires_grad or not tensor._is_view():
        return None
    found = _get(tensor)
    return None if found == _PLAIN else found


def with_origin(tensor: torch.Tensor, origin: Any) -> torch.Tensor:
    """The tensor itself, for autograd a view that was made like the one `origin` was read from."""
    if tensor._is_view():
        _set(tensor, origin)
    return tensor
