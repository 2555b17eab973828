"""The rule that chooses attention kernels: what was timed becomes a launch, everything else stays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from all_sizes import symbolic_fakes

from stator.graph.tracing.tracer import trace
from stator.inductor import devices
from stator.inductor.codegen.triton.tiled.attention_tiles import choose_attention
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes, with_expressions
from stator.inductor.schedule import schedule
from stator.inductor.schedule.attention import fuse_attention
from stator.inductor.schedule.groups import AttentionGroup, AttentionTile
from stator.inductor.schedule.verifier import verify_schedule
from stator.shapes.environment import Environment

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.TRAITS, "cpu", devices.GPU)


def by_hand(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def called(q: Any, k: Any, v: Any) -> Any:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, False, False)[0]


def called_causally(q: Any, k: Any, v: Any) -> Any:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, True, False)[0]


def for_a_backward(q: Any, k: Any, v: Any) -> Any:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, False, False)[:2]


def with_dropout(q: Any, k: Any, v: Any) -> Any:
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.1, False, False)[0]


def at_odd_addresses(q: Any, k: Any, v: Any) -> Any:
    return by_hand(q[..., 1:], k[..., 1:], v[..., 1:])


def sides(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Memory is never touched: only sizes matter."""
    batch, heads, rows, count, width = sizes
    return [torch.empty(batch, one, heads, width, dtype=dtype).transpose(1, 2) for one in (rows, count, count)]


def launches(function: Callable[..., Any], tensors: list[torch.Tensor], marks: Any = ()) -> list[AttentionTile]:
    fakes = symbolic_fakes(tensors, [marks] * len(tensors), Environment())
    graph, sizes = with_expressions(trace(function, fakes, keep=can_lower).graph)
    lowered = lower(run_passes(graph, False), False, sizes)
    scheduled, lowered = fuse_attention(schedule(lowered), lowered, partial(choose_attention, lowered=lowered))
    verify_schedule(scheduled, lowered)
    found = [step.attention.tile for step in scheduled.steps if isinstance(step, AttentionGroup)]
    return [tile for tile in found if tile is not None]


def test_few_rows_have_small_tiles_and_many_have_large_ones() -> None:
    (few,) = launches(by_hand, sides(1, 12, 128, 128, 64))
    (many,) = launches(by_hand, sides(8, 8, 1024, 1024, 64))
    assert few.rows < 64 <= many.rows


def test_few_rows_with_many_keys_share_these() -> None:
    (one,) = launches(by_hand, sides(1, 8, 1, 4096, 64))
    (many,) = launches(by_hand, sides(64, 8, 1, 4096, 64))
    (causal,) = launches(called_causally, sides(1, 1, 1024, 1024, 64))
    assert one.parts > many.parts == causal.parts == 1


def test_calls_with_much_work_stay_and_products_do_not() -> None:
    tensors = sides(8, 12, 1024, 1024, 64)
    assert launches(by_hand, tensors) and not launches(called, tensors)


@pytest.mark.parametrize("function", (for_a_backward, with_dropout))
def test_calls_that_give_more_stay(function: Any) -> None:
    assert launches(called, sides(1, 12, 128, 128, 64)) and not launches(function, sides(1, 12, 128, 128, 64))


@pytest.mark.parametrize(
    "tensors",
    (
        sides(1, 12, 128, 128, 64, dtype=torch.float64),
        sides(8, 12, 1024, 1024, 64, dtype=torch.float32),
        sides(1, 12, 128, 128, 20),
        sides(2, 4, 1, 1, 64),
        sides(2, 4, 1, 1, 64, dtype=torch.float32),
        sides(1, 2, 128, 128, 512),
    ),
)
@pytest.mark.parametrize("function", (by_hand, called))
def test_what_was_not_timed_stays(function: Any, tensors: list[torch.Tensor]) -> None:
    assert not launches(function, tensors)


def test_rows_at_odd_addresses_stay() -> None:
    assert not launches(at_odd_addresses, sides(1, 12, 128, 128, 65))
