"""Memory of large tensors is asked for in huge pages, and no other memory is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import stator
from stator.runtime.memory.huge_pages import HUGE_PAGE, LARGE, in_huge_pages_if_large

_SMAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists() or not _SMAPS.exists(),
    reason="the system has no transparent huge pages",
)


def asked_for_huge_pages(address: int) -> bool:
    """Whether the mapping of an address has the flag `hg` (proc(5), VmFlags)."""
    inside = False
    for line in _SMAPS.read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError("no mapping has this address")


def middle(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() + tensor.nbytes // 2


def test_large_results_lie_in_huge_pages() -> None:
    x = torch.randn(LARGE // 4)
    double = stator.compile(lambda x: x * 2)
    for _ in range(2):
        result = double(x)
        assert asked_for_huge_pages(middle(result))
    assert torch.equal(result, x * 2)


def test_results_of_sizes_that_are_known_late_lie_in_huge_pages() -> None:
    x = torch.ones(LARGE // 8 + 5)
    nonzero = stator.compile(lambda x: torch.nonzero(x) * 2)
    result = nonzero(x)
    assert result.nbytes >= LARGE
    assert asked_for_huge_pages(middle(result))
    assert torch.equal(result, torch.nonzero(x) * 2)


def test_memory_outside_of_a_large_tensor_is_left_alone() -> None:
    memory = torch.empty(2 * LARGE, dtype=torch.uint8)
    inner = memory[LARGE // 2 : -(LARGE // 2)]
    tensor = torch.frombuffer(inner.numpy(), dtype=torch.uint8)
    assert in_huge_pages_if_large(lambda size, stride: tensor)((), ()) is tensor
    assert asked_for_huge_pages(middle(tensor))
    assert not asked_for_huge_pages(inner.data_ptr() - HUGE_PAGE)
    assert not asked_for_huge_pages(inner.data_ptr() + inner.nbytes + HUGE_PAGE)


def test_smaller_tensors_are_left_alone() -> None:
    make = in_huge_pages_if_large(lambda size, stride: torch.empty_strided(size, stride, dtype=torch.uint8))
    assert not asked_for_huge_pages(middle(make((LARGE - 1,), (1,))))
    assert asked_for_huge_pages(middle(make((LARGE,), (1,))))
