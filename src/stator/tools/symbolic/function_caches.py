"""functools caches around a run of a program on tensors without data, which must not stay in them: the program would
get them in later calls."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from stator.graph.fake.fake_tensor import FakeTensor

_Cache = type(functools.lru_cache(int))
_SYMBOLIC = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_CONTAINERS = (dict, list, tuple, set)
_DEEPEST = 4  # containers in one another


def caches_of_functions() -> list[Any]:
    """The functions of the process under functools.cache or functools.lru_cache, but for those behind a gc.freeze()."""
    return [one for one in gc.get_objects() if type(one) is _Cache]


@contextmanager
def results_without_data_dropped(caches: Sequence[Any]) -> Iterator[None]:
    """Clear each cache to which the block added a tensor without data, or a symbolic number."""
    before = [cache.cache_info().misses for cache in caches]
    try:
        yield
    finally:
        for cache, misses in zip(caches, before, strict=True):
            if cache.cache_info().misses != misses and _holds_symbols(gc.get_referents(cache), _DEEPEST):
                cache.cache_clear()


def _holds_symbols(values: Sequence[Any], depth: int) -> bool:
    """Whether a symbolic value is among these, or in containers and objects among them."""
    for value in values:
        if isinstance(value, _SYMBOLIC):
            return True
        if isinstance(value, _CONTAINERS):
            parts = gc.get_referents(value)
        elif isinstance(value, type) or (callable(value) and not isinstance(value, torch.nn.Module)):
            continue
        else:
            parts = list(getattr(value, "__dict__", {}).values())
        if depth and _holds_symbols(parts, depth - 1):
            return True
    return False
