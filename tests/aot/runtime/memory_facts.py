"""How tensors lie in memory, and which of them are views, to be compared between eager and compiled calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def memory_facts(tensors: Sequence[torch.Tensor | None], *, bases: bool = True) -> list[Any]:
    """Layout and version of each tensor; which of them share memory or are one object. bases: also their bases."""
    known = [one for one in tensors if one is not None]
    return [
        (
            (one.stride(), one.storage_offset(), one._version, one.requires_grad, one.is_leaf),
            [one is other for other in known],
            [one.untyped_storage()._cdata == other.untyped_storage()._cdata for other in known],
            (one._is_view(), [one._base is other._base for other in known]) if bases else None,
        )
        for one in known
    ]
