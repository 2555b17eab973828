"""Lower a function, check every rule, evaluate it with the reference interpreters, and compare with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.inductor.lowered_evaluator import run

from stator.base import counters
from stator.graph.tracing.tracer import trace
from stator.inductor.buffers import Extern, Loops, Lowered
from stator.inductor.lower import can_lower, lower, verify_lowered


def lowered_of(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Lowered:
    traced = trace(function, inputs, keep=can_lower)
    result = lower(traced.graph)
    verify_lowered(result)
    return result


def assert_lowers(
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    tolerance: float = 2e-6,
    library: int = 0,
    strides: bool = True,
) -> Lowered:
    """`library` is how many library calls are expected; fallbacks must never be counted unless they are among them."""
    before = sum(number for name, number in counters.counts.items() if name.startswith("inductor_fallback"))
    lowered = lowered_of(function, inputs)
    after = sum(number for name, number in counters.counts.items() if name.startswith("inductor_fallback"))
    calls = sum(isinstance(node, Extern) for node in lowered.nodes)
    assert calls == library, [node.target for node in lowered.nodes if isinstance(node, Extern)]
    assert after - before <= library
    expected = function(*inputs)
    expected = list(expected) if isinstance(expected, tuple | list) else [expected]
    actual = run(lowered, inputs)
    assert len(actual) >= len(expected)
    for got, want in zip(actual, expected, strict=False):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
        if strides:
            same = [a == b or size == 1 for a, b, size in zip(got.stride(), want.stride(), want.shape, strict=True)]
            assert all(same) or 0 in want.shape, (got.stride(), want.stride())
    return lowered


def loop_nodes(lowered: Lowered) -> list[Loops]:
    return [node for node in lowered.nodes if isinstance(node, Loops)]


def library_calls(lowered: Lowered) -> list[Extern]:
    return [node for node in lowered.nodes if isinstance(node, Extern)]
