"""Flags of torch.backends: captured code reads them under a guard, and sets those of cuDNN."""

from __future__ import annotations

import pytest
import torch

import stator
from stator.base import counters


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    """torch's own test tools, once imported, forbid to assign to the attributes of torch.backends.cudnn. What says so
    is a global of the module that `torch.backends` stands in front of."""
    before, onednn = (torch._C._get_cudnn_enabled(), torch._C._get_cudnn_benchmark()), torch._C._get_mkldnn_enabled()
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    yield
    torch._C._set_mkldnn_enabled(onednn)
    torch._C._set_cudnn_enabled(before[0])
    torch._C._set_cudnn_benchmark(before[1])


def in_a_block(x: torch.Tensor) -> torch.Tensor:
    with torch.backends.cudnn.flags(enabled=False, benchmark=True):
        y = x * (2 if torch._C._get_cudnn_enabled() else 3)
    return y + (1 if torch._C._get_cudnn_enabled() else 7)


def test_behind_a_block_the_flags_are_as_before() -> None:
    compiled = stator.compile(in_a_block, backend="eager", fullgraph=True)
    x = torch.randn(3)
    counters.clear()
    for enabled in (True, False, True):
        torch._C._set_cudnn_enabled(enabled)
        assert torch.equal(compiled(x), in_a_block(x))
        assert torch.backends.cudnn.enabled is enabled and not torch.backends.cudnn.benchmark


def left_set(x: torch.Tensor) -> torch.Tensor:
    torch._C._set_cudnn_benchmark(True)
    return x + 1


def test_a_switch_left_set_is_set_for_the_program() -> None:
    compiled = stator.compile(left_set, backend="eager")
    for _ in range(2):
        torch._C._set_cudnn_benchmark(False)
        compiled(torch.randn(3))
        assert torch.backends.cudnn.benchmark


def switched_by_attributes(x: torch.Tensor) -> tuple[torch.Tensor, list[object]]:
    seen: list[object] = [torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled]
    torch.backends.cudnn.benchmark = True
    y = x * (2 if torch.backends.cudnn.benchmark else 3)
    torch.backends.mkldnn.enabled = False
    y = torch.nn.functional.linear(y, y)
    seen += [torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled]
    with torch.backends.cudnn.flags(enabled=False):
        seen.append(torch.backends.cudnn.enabled)
    torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled = seen[:2]
    return y + 1, [*seen, torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled]


def test_attributes_of_the_backends_are_the_switches() -> None:
    compiled = stator.compile(switched_by_attributes, backend="eager")
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    for benchmark, onednn in ((False, True), (True, True), (False, False)):
        torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled = benchmark, onednn
        actual, expected = compiled(x), switched_by_attributes(x)
        assert torch.equal(actual[0], expected[0]) and actual[1] == expected[1]
        assert (torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled) == (benchmark, onednn)


def switches_on_the_way(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch.backends.mkldnn.enabled = False
    y = torch._C._nn.linear(y, y)
    torch.backends.mkldnn.enabled = True
    return y * 2


def test_the_graph_ends_where_onednn_is_switched() -> None:
    compiled = stator.compile(switches_on_the_way, backend="eager")
    x = torch.randn(3, 4)
    counters.clear()
    assert torch.equal(compiled(x), switches_on_the_way(x))
    assert counters.counts["graph_breaks"] == 2 and counters.counts["graphs"] == 3


def sets_the_precision(x: torch.Tensor) -> tuple[torch.Tensor, str, str]:
    before = torch.get_float32_matmul_precision()
    y = x + 1
    torch.set_float32_matmul_precision("medium")
    y, inside = y * 2, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    return y + 1, inside, torch.get_float32_matmul_precision()


def test_the_graph_ends_where_a_precision_is_set() -> None:
    compiled = stator.compile(sets_the_precision, backend="eager")
    x = torch.randn(3, 4)
    before = torch.get_float32_matmul_precision()
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        try:
            actual, expected = compiled(x), sets_the_precision(x)
            assert torch.get_float32_matmul_precision() == precision
        finally:
            torch.set_float32_matmul_precision(before)
        assert torch.equal(actual[0], expected[0]) and actual[1:] == expected[1:] == ("medium", precision)
