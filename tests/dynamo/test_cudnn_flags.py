"""torch.backends.cudnn.flags in captured code: set while the block runs, put back behind it, relied on where read."""

from __future__ import annotations

import pytest
import torch

import stator
from stator.base import counters


@pytest.fixture(autouse=True)
def put_back():
    """torch's own test tools, once imported, forbid to assign to the attributes of torch.backends.cudnn."""
    before = torch._C._get_cudnn_enabled(), torch._C._get_cudnn_benchmark()
    yield
    torch._C._set_cudnn_enabled(before[0])
    torch._C._set_cudnn_benchmark(before[1])


def in_a_block(x: torch.Tensor) -> torch.Tensor:
    with torch.backends.cudnn.flags(enabled=False, benchmark=True):
        y = x * (2 if torch._C._get_cudnn_enabled() else 3)
    return y + (1 if torch._C._get_cudnn_enabled() else 7)


def test_a_block_is_one_graph_and_the_switches_are_as_before() -> None:
    compiled = stator.compile(in_a_block, backend="eager")
    x = torch.randn(3)
    counters.clear()
    for enabled in (True, False, True):
        torch._C._set_cudnn_enabled(enabled)
        assert torch.equal(compiled(x), in_a_block(x))
        assert torch.backends.cudnn.enabled is enabled and not torch.backends.cudnn.benchmark
    assert counters.counts["graphs"] == 2 and not counters.counts["graph_breaks"]


def left_set(x: torch.Tensor) -> torch.Tensor:
    torch._C._set_cudnn_benchmark(True)
    return x + 1


def test_a_switch_left_set_is_set_for_the_program() -> None:
    compiled = stator.compile(left_set, backend="eager")
    for _ in range(2):
        torch._C._set_cudnn_benchmark(False)
        compiled(torch.randn(3))
        assert torch.backends.cudnn.benchmark
