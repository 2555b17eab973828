"""Placements of distributed tensors (Shard, Replicate, Partial): objects that never change, and equal others of their
class with equal numbers. Their classes belong to a module that only programs with distributed tensors import."""

from __future__ import annotations

from typing import Any

import torch

from .guard_tree import register_plain_type

# the common base, which is in torch's C++; None where torch is built without distributed tensors
Placement: type | None = getattr(getattr(torch._C, "_distributed", None), "Placement", None)


def is_placement_class(cls: type) -> bool:
    """Whether objects of this class are placements that C++ compares. Others, such as the placement of an embedding
    whose rows are sharded, hold data."""
    if Placement is None or not issubclass(cls, Placement):
        return False
    comparing = next(base for base in cls.__mro__ if "__eq__" in vars(base))
    return comparing.__module__.startswith("torch._C.")


def is_placement(obj: Any) -> bool:
    """Whether an object is such a placement; then guards can compare its class."""
    if not is_placement_class(type(obj)) or vars(obj):
        return False
    register_plain_type(type(obj))
    return True
