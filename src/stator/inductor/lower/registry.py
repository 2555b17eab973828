"""The registry of lowerings, and the decorators that register them. The handlers live in neighbouring files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from stator.base.registry import Registry

# Called with (builder, *args, **kwargs), the operator's own arguments with tensors as `lower.tensor.Tensor`. Returns a
# Tensor, a tuple or list of Tensors, a number, or NotImplemented for unsupported arguments (then the library is
# called).
Lowering = Callable[..., Any]

lowerings: Registry[torch._ops.OpOverload, Lowering] = Registry("lowering")

# Lowerings that only relabel memory. Users of their results count as users of their input.
view_targets: set[Any] = set()


def lowers(*targets: torch._ops.OpOverload) -> Callable[[Lowering], Lowering]:
    """Decorator: register the lowering of overloads. Refuses duplicates."""
    return lowerings.register(*targets)


def lowers_view(*targets: torch._ops.OpOverload) -> Callable[[Lowering], Lowering]:
    """Decorator: like `lowers`, for operators that return a view of their first argument."""
    view_targets.update(targets)
    return lowerings.register(*targets)


def is_read_again(node: fx.Node) -> bool:
    """True if several nodes compute with the value, looking through views."""
    return _count_readers(node, 2) > 1


def _count_readers(node: fx.Node, most: int) -> int:
    found = 0
    for user in node.users:
        if found < most:
            found += _count_readers(user, most - found) if user.target in view_targets else 1
    return found


def can_lower(target: Any) -> bool:
    """True if a lowering exists, so that the operator need not be decomposed before."""
    return target in lowerings
