"""The product of all positions is chosen in place of a convolution of one tap by timing sizes like it, once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stator.runtime import choices, pointwise_convolutions
from stator.runtime.matrix_products import onednn_takes
from stator.runtime.pointwise_convolutions import CONVOLUTION, PRODUCT, is_product_quicker

SIZES = (8, 196, 512, 512)
LIKE_THESE = (16, 200, 1024, 512)  # timed as those are
OTHER = (8, 49, 512, 512)

pytestmark = pytest.mark.skipif(not onednn_takes(torch.float32), reason="this torch has no oneDNN")


class Timings:
    """Stands in for the timing of alternatives: the convolution takes one second, the product `ratio`."""

    def __init__(self) -> None:
        self.ratio, self.count = 0.5, 0

    def __call__(self, runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        self.count += 1
        assert list(runs) == [CONVOLUTION, PRODUCT]
        return {CONVOLUTION: [1.0] * 3, PRODUCT: [self.ratio] * 3}


@pytest.fixture(autouse=True)
def timings(monkeypatch: pytest.MonkeyPatch) -> Timings:
    """No choice is known, neither of this process nor of others, and it has not waited yet."""
    made = Timings()
    monkeypatch.setattr(choices, "_times", made)
    monkeypatch.setattr(choices, "_known", {})
    monkeypatch.setattr(choices, "_seconds_waited", 0.0)
    monkeypatch.setattr(pointwise_convolutions, "_KIND", f"test {time.time_ns()}")
    monkeypatch.setattr(choices, "_answered", {})
    return made


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("ratio", "chosen"), [(0.5, True), (2.0, False), (0.99, False)])
def test_timing_decides(ratio: float, chosen: bool, channels_last: bool, timings: Timings) -> None:
    timings.ratio = ratio
    assert is_product_quicker(*SIZES, channels_last) == chosen


def test_sizes_like_these_are_timed_once_for_each_format(timings: Timings) -> None:
    for channels_last, count in ((False, 1), (True, 2)):
        assert is_product_quicker(*SIZES, channels_last)
        assert is_product_quicker(*LIKE_THESE, channels_last)
        assert timings.count == count
    assert is_product_quicker(*OTHER, channels_last=False)
    assert timings.count == 3


def test_small_products_are_the_librarys(timings: Timings) -> None:
    assert not is_product_quicker(2, 49, 16, 16, channels_last=False)
    assert timings.count == 0


def test_a_later_process_times_what_this_one_had_no_patience_for(
    timings: Timings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "_seconds_waited", 1.0)
    monkeypatch.setattr(choices, "provisional", [])
    assert not is_product_quicker(*SIZES, channels_last=False)
    assert choices.provisional == [(is_product_quicker, (*SIZES, False), False)]
    assert timings.count == 0


@pytest.mark.parametrize("channels_last", [False, True])
def test_alternatives_multiply_the_same_numbers(channels_last: bool) -> None:
    runs = pointwise_convolutions._runs(3, 5, 48, 32, channels_last)
    for (run,) in runs.values():
        result = run()
        assert result.numel() == 3 * 25 * 32
        torch.testing.assert_close(result, torch.full_like(result, 0.25 * 48))
