"""Memory of large tensors is asked for in huge pages, and no other memory is."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import pytest
import torch

import stator
from stator.runtime.memory.huge_pages import HUGE_PAGE, LARGE, in_huge_pages_if_large

_SMAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()
    or not _SMAPS.exists()
    or "VmFlags" not in _SMAPS.read_text(),
    reason="the system has no transparent huge pages, or does not tell of them",
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


def part(pages: mmap.mmap, offset: int, size: int) -> torch.Tensor:
    return torch.frombuffer(pages, dtype=torch.uint8, offset=offset, count=size)


def test_memory_outside_of_a_large_tensor_is_left_alone() -> None:
    pages = mmap.mmap(-1, 2 * LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = part(pages, LARGE // 2, LARGE)
    assert in_huge_pages_if_large(lambda size, stride: tensor)((), ()) is tensor
    assert asked_for_huge_pages(middle(tensor))
    assert not asked_for_huge_pages(tensor.data_ptr() - HUGE_PAGE)
    assert not asked_for_huge_pages(tensor.data_ptr() + tensor.nbytes + HUGE_PAGE)


@pytest.mark.parametrize("size", [LARGE - 1, LARGE])
def test_smaller_tensors_are_left_alone(size: int) -> None:
    pages = mmap.mmap(-1, LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    make = in_huge_pages_if_large(lambda size, stride: part(pages, 0, size[0]))
    assert asked_for_huge_pages(middle(make((size,), (1,)))) == (size == LARGE)
