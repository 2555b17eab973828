"""The program's marks on tensors: which sizes will change, and which will not. Marks of torch.compile are attributes of
tensors, which are read without importing torch's compiler.

ir/input_sizes.py obeys the marks; nothing here captures.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

_OURS = "_stator_size_marks"


class Kind(enum.Enum):
    """What the program says about a size."""

    DYNAMIC = "it changes: a compilation for one value is an error"
    PREFERRED = "it changes, but may be compiled for one value"
    STATIC = "it does not change"
    UNBACKED = "it changes, and nothing may depend on its value in the call that compiles"


@dataclass(frozen=True, slots=True)
class SizeMark:
    """`low` and `high` are inclusive."""

    kind: Kind
    low: float = -math.inf
    high: float = math.inf


def mark_size(tensor: torch.Tensor, dim: int, mark: SizeMark) -> None:
    """Mark a dimension; a later mark replaces an earlier one."""
    marks = dict(getattr(tensor, _OURS, {}))
    marks[dim] = mark
    setattr(tensor, _OURS, marks)


def size_marks(tensor: torch.Tensor) -> Mapping[int, SizeMark]:
    """The marks by dimension. stator's marks precede those of torch.compile."""
    given = getattr(tensor, "__dict__", None)
    if not given:
        return {}
    return {**_marks_of_torch(given), **given.get(_OURS, {})}


def _marks_of_torch(given: dict[str, Any]) -> dict[int, SizeMark]:
    found = {dim: SizeMark(Kind.PREFERRED) for dim in given.get("_dynamo_weak_dynamic_indices", ())}
    found.update((dim, SizeMark(Kind.DYNAMIC)) for dim in given.get("_dynamo_dynamic_indices", ()))
    for ends in given.get("_dynamo_dynamic_range", ()):
        low = -math.inf if ends.min is None else ends.min
        found[ends.dim] = SizeMark(Kind.DYNAMIC, low, math.inf if ends.max is None else ends.max)
    found.update((dim, SizeMark(Kind.UNBACKED)) for dim in given.get("_dynamo_unbacked_indices", ()))
    found.update((dim, SizeMark(Kind.STATIC)) for dim in given.get("_dynamo_static_indices", ()))
    return found
