"""Half floats by float32: attention by the quickest of ATen's kernel, products of float32 and products of half floats;
products as products of float32, where these are quicker."""

from __future__ import annotations

import pytest
import torch

from stator.runtime import choices, half_floats
from stator.runtime.half_floats import (
    HALVES,
    KERNEL,
    WIDENED,
    are_products_quicker,
    is_float32_quicker,
    is_operator_quicker,
)

HALF, FLOAT16 = torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN takes bfloat16 alone."""
    monkeypatch.setattr(half_floats, "onednn_takes", lambda dtype: dtype is HALF)
    for name in ("_known", "_answered"):
        monkeypatch.setattr(choices, name, {})
    monkeypatch.setattr(choices, "_seconds_waited", 0.0)
    monkeypatch.setattr(choices, "stored_choice", lambda key: None)
    monkeypatch.setattr(choices, "keep_choice", lambda key, choice: None)


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


# ---- products


@pytest.mark.parametrize("quickest", [HALVES, WIDENED])
def test_the_quicker_product(quickest: str, timed: dict[str, float]) -> None:
    timed[quickest] = 0.5
    assert is_float32_quicker(128, 768, 768, FLOAT16, False) == (quickest == WIDENED)


@pytest.mark.parametrize("asked", [(128, 768, 768, HALF, False), (0, 768, 768, FLOAT16, False)])
def test_products_that_are_not_timed(
    asked: tuple[int, int, int, torch.dtype, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where oneDNN takes the dtype, and where there is nothing to multiply."""
    monkeypatch.setattr(choices, "_times", lambda alternatives: pytest.fail("timed"))
    assert not is_float32_quicker(*asked)


def test_where_waiting_is_over_products_stay_as_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_seconds_waited", 1.0)
    noted, asked = len(choices.provisional), (128, 768, 768, FLOAT16, False)
    assert not is_float32_quicker(*asked)
    assert choices.provisional[noted:] == [(is_float32_quicker, asked, False)]


@pytest.mark.parametrize("by_rows", [False, True])
def test_what_is_timed_multiplies(by_rows: bool) -> None:
    for run in half_floats._runs_of_product(4, 16, 24, FLOAT16, by_rows).values():
        assert torch.equal(next(iter(run))(), torch.full((4, 24), 4.0, dtype=FLOAT16))
