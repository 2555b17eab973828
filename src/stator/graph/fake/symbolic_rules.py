"""Results of shape rules on symbolic sizes. Layers repeat with equal sizes, and every calculation with a torch.SymInt
crosses torch's slow operators. Rules on numbers are quicker than a key for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.onednn import onednn_enabled
from stator.prims.record import ShapeRule
from stator.shapes.environment import Environment
from stator.shapes.sym_node import SymbolicNode

from .fake_tensor import FakeTensor

_PLAIN = frozenset(
    (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)


def by_rule(rule: ShapeRule, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of `rule(*args, **kwargs)`, which depends on arguments, the default dtype, facts about sizes, and (of
    convolutions) on the backend that eager chooses by its setting and by the number of threads."""
    key: list[Any] = [rule, torch.get_default_dtype(), onednn_enabled(), torch.get_num_threads()]
    environments: list[Environment] = []
    if not _describe((*args, *kwargs, *kwargs.values()), key, environments) or not environments:
        return rule(*args, **kwargs)
    return environments[0].remember(tuple(key), lambda: rule(*args, **kwargs))


def has_symbols(tensors: Sequence[FakeTensor]) -> bool:
    """Whether the layout of a tensor is symbolic."""
    return any(torch.SymInt in map(type, (*one.meta.shape, *one.meta.stride)) for one in tensors)


def _describe(values: Sequence[Any], key: list[Any], environments: list[Environment]) -> bool:
    """Append what a rule can see of its arguments, and the environments of their symbols. False if an argument cannot
    be described."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            meta = value.meta
            key += (kind, meta.dtype, meta.device, value.is_conj(), value.is_neg())
            if not _describe((meta.shape, meta.stride, meta.offset), key, environments):
                return False
        elif kind is tuple or kind is list:
            key += (kind, len(value))
            if not _describe(value, key, environments):
                return False
        elif kind is torch.SymInt and type(value.node) is SymbolicNode:
            key.append(value.node.value)
            environments.append(value.node.environment)
        elif kind in _PLAIN:
            key += (kind, value)
        else:
            return False
    return True
