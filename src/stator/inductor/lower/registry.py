"""Which operators have a lowering, and the decorator that registers one. The handlers live in the sibling files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stator.base.registry import Registry

# Called with (builder, *args, **kwargs), the op's own arguments with tensors as `lower.tensor.Tensor`. Gives a Tensor,
# a tuple or list of them, a number, or NotImplemented when it does not cover the case (the library is called then).
Lowering = Callable[..., Any]

lowerings: Registry[torch._ops.OpOverload, Lowering] = Registry("lowering")

# Lowerings that only relabel memory: their users count as users of their input.
view_targets: set[Any] = set()


def lowers(*targets: torch._ops.OpOverload) -> Callable[[Lowering], Lowering]:
    """Decorator: register the lowering of overloads; duplicates are refused."""
    return lowerings.register(*targets)


def lowers_view(*targets: torch._ops.OpOverload) -> Callable[[Lowering], Lowering]:
    """Decorator: like `lowers`, for operators whose result is a view of their first argument."""
    view_targets.update(targets)
    return lowerings.register(*targets)


def can_lower(target: Any) -> bool:
    """Is there a lowering, so that the op need not be decomposed before?"""
    return target in lowerings
