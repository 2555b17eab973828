"""Attention of half floats by the quickest of ATen's kernel, products of float32 and products of half floats."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stator.runtime import choices, half_floats
from stator.runtime.half_floats import HALVES, KERNEL, WIDENED, are_products_quicker, is_operator_quicker

HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(choices, "_known", {})
    monkeypatch.setattr(choices, "_seconds_waited", 0.0)
    monkeypatch.setattr(choices, "stored_choice", lambda key: None)
    monkeypatch.setattr(choices, "keep_choice", lambda key, choice: None)
    half_floats._quickest.cache_clear()
    yield
    half_floats._quickest.cache_clear()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds that each implementation takes, and, with none, those that were timed."""
    seconds = {KERNEL: 1.0, WIDENED: 1.0, HALVES: 1.0}

    def times(alternatives: choices.Alternatives) -> dict[str, list[float]]:
        seconds.update({f"timed {name}": 0.0 for name in alternatives})
        return {name: [seconds[name]] * 3 for name in alternatives}

    monkeypatch.setattr(choices, "_times", times)
    return seconds


@pytest.mark.parametrize("quickest", [KERNEL, WIDENED])
def test_the_quicker_one_of_kernel_and_products(quickest: str, timed: dict[str, float]) -> None:
    timed[quickest] = 0.5
    assert are_products_quicker(12, 64, 64, 64, HALF) == (quickest == WIDENED)
    assert f"timed {HALVES}" not in timed


@pytest.mark.parametrize("quickest", [KERNEL, WIDENED, HALVES])
def test_the_operator_stands_for_both(quickest: str, timed: dict[str, float]) -> None:
    timed[quickest] = 0.5
    assert is_operator_quicker(12, 64, 64, 64, HALF, False) == (quickest != HALVES)


def test_products_of_float32_have_no_more_scores_than_caches_hold(timed: dict[str, float]) -> None:
    timed[WIDENED] = 0.1
    assert not are_products_quicker(12, 1024, 1024, 64, HALF)
    assert not is_operator_quicker(12, 1024, 1024, 64, HALF, False)
    assert f"timed {WIDENED}" not in timed


def test_where_nothing_is_timed_attention_stays_as_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_seconds_waited", 1.0)
    noted = len(choices.provisional)
    assert not are_products_quicker(12, 64, 64, 64, HALF)
    assert not is_operator_quicker(12, 64, 64, 64, HALF, False)
    assert choices.provisional[noted:] == [(are_products_quicker, (12, 64, 64, 64, HALF), False)]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_timed_computes_attention(dtype: torch.dtype, biased: bool) -> None:
    runs = half_floats._runs((KERNEL, WIDENED, HALVES), 3, 8, 12, 16, dtype, biased)
    results = {name: next(iter(each))() for name, each in runs.items()}
    results[KERNEL] = results[KERNEL][0][0]
    for result in results.values():
        torch.testing.assert_close(result, torch.full((3, 8, 16), 0.5, dtype=dtype))
