"""A graph that a stage behind capture refuses runs as it is, with one warning; the frames around it stay compiled."""

from __future__ import annotations

import warnings

import pytest
import torch

import stator
from stator.base import config, counters
from stator.base.errors import Unsupported
from stator.dynamo.cache.entry import cache_of


def step(buffer: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Changes the layout of an input that autograd follows."""
    buffer.t_()
    return x.sum(0), x * 3


def advance(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    buffer = x * 1
    stator.graph_break()
    result, more = step(buffer, x)
    stator.graph_break()
    return result + more[1] * 2


def solve(x: torch.Tensor) -> torch.Tensor:
    return advance(x * 3).sum()


def test_one_refusal_is_one_warning_and_leaves_all_frames_compiled() -> None:
    expected, got = (torch.ones(2, 3, requires_grad=True) for _ in range(2))
    solve(expected).backward()
    counters.counts.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = stator.compile(solve)
        for _ in range(2):
            got.grad = None
            compiled(got).backward()
    assert [str(one.message).count("input-layout-mutation") > 0 for one in caught] == [True]
    assert counters.counts["refused_graphs"] == 1 and not counters.counts["dynamo.failed_frames"]
    torch.testing.assert_close(got.grad, expected.grad)


def test_a_frame_without_other_graphs_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", False)
    compiled = stator.compile(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            given, own = (torch.ones(2, 3, requires_grad=True) for _ in range(2))
            for one, other in zip(compiled(given * 2, given), step(own * 2, own), strict=True):
                assert torch.equal(one, other)
    assert [version.code for version in cache_of(compiled).versions] == [None]


def test_a_refusal_is_raised_under_fullgraph() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(Unsupported, match="input-layout-mutation"):
        stator.compile(step, fullgraph=True)(x * 2, x)
