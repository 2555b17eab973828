"""stator.check of programs with functions under functools.cache and functools.lru_cache."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
import torch

import stator
from stator import TensorSpec


@dataclass
class Table:
    values: torch.Tensor


def positions_of(rows):
    return torch.arange(rows)[:, None] * torch.ones(4)


class Cached:
    """Functions that are made in the test, because the tests freeze the objects that exist before."""

    def __init__(self) -> None:
        self.positions = functools.cache(positions_of)
        self.table = functools.lru_cache(maxsize=8)(lambda rows: Table(positions_of(rows)))
        self.settings = functools.lru_cache(lambda name: [name])

    def adds(self, x):
        return x + self.positions(16)

    def adds_table(self, x):
        return x + self.table(16).values

    def fails(self, x):
        return self.adds(x) @ self.adds_table(x)

    def by_size(self, x):
        return x + self.positions(x.shape[1])

    def with_settings(self, x):
        self.settings("b")
        return self.adds(x)


@pytest.mark.parametrize("program", ["adds", "adds_table", "fails"])
@pytest.mark.parametrize("tool", [stator.check, stator.flops, stator.memory])
def test_no_tensor_without_data_stays_in_a_cache(program: str, tool) -> None:
    cached = Cached()
    try:
        tool(getattr(cached, program), TensorSpec(("batch", "rows", 4)))
    except stator.ProgramError:
        assert program == "fails"
    for found in (cached.positions(16), cached.table(16).values):
        assert type(found) is torch.Tensor
        assert torch.equal(found, positions_of(16))


def test_other_results_stay() -> None:
    cached = Cached()
    kept, before = cached.positions(16), cached.settings("a")
    assert stator.check(cached.with_settings, TensorSpec(("batch", 16, 4))).ok
    assert cached.positions(16) is kept
    assert cached.settings("a") is before
    assert cached.settings.cache_info().misses == 2


def test_a_size_as_a_key_is_not_judged() -> None:
    cached = Cached()
    result = stator.check(cached.by_size, TensorSpec(("batch", "rows", 4)))
    assert result.ok is None
    assert "a size is a key of a dictionary, a set or a functools cache" in result.unknown
    assert "return x + self.positions(x.shape[1])" in result.unknown
    assert stator.check(cached.by_size, TensorSpec(("batch", 16, 4))).ok
    with pytest.raises(stator.ProgramError, match=r"cannot be followed .* a size is a key"):
        stator.flops(cached.by_size, TensorSpec(("batch", "rows", 4)))
