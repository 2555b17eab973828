"""Products of half floats as products of float32, where these are quicker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stator.runtime import choices, half_floats
from stator.runtime.half_floats import HALVES, WIDENED, is_float32_quicker

HALF = torch.float16


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(half_floats, "onednn_takes", lambda dtype: dtype is torch.bfloat16)
    monkeypatch.setattr(choices, "_known", {})
    monkeypatch.setattr(choices, "_seconds_waited", 0.0)
    monkeypatch.setattr(choices, "stored_choice", lambda key: None)
    monkeypatch.setattr(choices, "keep_choice", lambda key, choice: None)
    half_floats._is_float32_quicker.cache_clear()
    yield
    half_floats._is_float32_quicker.cache_clear()


@pytest.mark.parametrize("quickest", [HALVES, WIDENED])
def test_the_quicker_one(quickest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(alternatives: choices.Alternatives) -> dict[str, list[float]]:
        return {name: [1.0 if name == quickest else 2.0] * 3 for name in alternatives}

    monkeypatch.setattr(choices, "_times", times)
    assert is_float32_quicker(128, 768, 768, HALF, False) == (quickest == WIDENED)


@pytest.mark.parametrize("asked", [(128, 768, 768, torch.bfloat16, False), (0, 768, 768, HALF, False)])
def test_not_timed(asked: tuple[int, int, int, torch.dtype, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where oneDNN takes the dtype, and where there is nothing to multiply."""
    monkeypatch.setattr(choices, "_times", lambda alternatives: pytest.fail("timed"))
    assert not is_float32_quicker(*asked)


def test_where_waiting_is_over_products_stay_as_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_seconds_waited", 1.0)
    noted, asked = len(choices.provisional), (128, 768, 768, HALF, False)
    assert not is_float32_quicker(*asked)
    assert choices.provisional[noted:] == [(is_float32_quicker, asked, False)]


@pytest.mark.parametrize("by_rows", [False, True])
def test_what_is_timed_multiplies(by_rows: bool) -> None:
    for run in half_floats._runs_of_product(4, 16, 24, HALF, by_rows).values():
        assert torch.equal(next(iter(run))(), torch.full((4, 24), 4.0, dtype=HALF))
