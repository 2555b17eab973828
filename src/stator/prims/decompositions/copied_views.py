"""`*_copy` operators: the view, then a copy of it."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import Decomposition
from stator.prims.shape_rules.copied_views import COPIES
from stator.prims.shape_rules.operands import overload

from .decomposition_decorator import decomposes

aten = torch.ops.aten


def copy_of(view: torch._ops.OpOverload) -> Decomposition:
    def copied(*args: Any, **kwargs: Any) -> Any:
        result = view(*args, **kwargs)
        if isinstance(result, (tuple, list)):
            return [_contiguous_copy(part) for part in result]
        return _contiguous_copy(result)

    return copied


def _contiguous_copy(tensor: Any) -> Any:
    return aten.clone.default(tensor, memory_format=torch.contiguous_format)


for _name in COPIES.split():
    _base, _, _variant = _name.partition(".")
    _view = aten.reshape.default if _name == "view" else overload(_name)
    if _view is not None:
        decomposes(f"{_base}_copy.{_variant}" if _variant else f"{_base}_copy", wide=False)(copy_of(_view))
