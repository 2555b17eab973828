"""The library for a product is chosen by timing sizes like it, once, or else by a rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.inductor.lower import products_by_matrix
from stator.runtime import choices, matrix_products
from stator.runtime.matrix_products import BLAS, ONEDNN, is_known_quicker, is_onednn_quicker

ROWS, INNER, COLUMNS = 100, 500, 700  # timed as 96, 384 and 512
NEAR = (127, 384, 767)
OTHER = (2000, 500, 700)

pytestmark = pytest.mark.skipif(not matrix_products.onednn_takes(torch.float32), reason="this torch has no oneDNN")


class Timings:
    """Stands in for the timing of alternatives: the first is `ratio` times as quick as the last."""

    def __init__(self, ratio: float) -> None:
        self.ratio, self.count, self.agree = ratio, 0, 1.0

    def __call__(self, runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        self.count += 1
        first, last = runs
        return {first: [1.0, self.agree, 1.0], last: [self.ratio, self.ratio * self.agree, self.ratio]}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Knows no choice, neither of this process nor of others, and has not waited yet."""
    monkeypatch.setattr(choices, "_known", {})
    monkeypatch.setattr(matrix_products, "_KIND", f"test {time.time_ns()}")
    monkeypatch.setattr(choices, "_seconds_waited", 0.0)
    monkeypatch.setattr(matrix_products, "is_tuned_blas", lambda: True)
    monkeypatch.setattr(products_by_matrix, "_WORK", 1 << 62)  # no kernels of ours
    monkeypatch.setattr(choices, "_answered", {})
    matrix_products._is_known_quicker.cache_clear()
    yield
    matrix_products._is_known_quicker.cache_clear()


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> Timings:
    made = Timings(0.5)
    monkeypatch.setattr(choices, "_times", made)
    return made


RULED = (8, 2048, 2048)  # where the rule says oneDNN


@pytest.mark.parametrize(
    ("ratio", "sizes", "chosen"),
    [
        *((0.5, (ROWS, INNER, COLUMNS), True), (0.9, (ROWS, INNER, COLUMNS), False)),
        *((2.0, (ROWS, INNER, COLUMNS), False), (0.9, RULED, True), (1.1, RULED, False)),
    ],
)
def test_timing_decides(ratio: float, sizes: tuple[int, int, int], chosen: bool, timings: Timings) -> None:
    timings.ratio = ratio
    assert is_onednn_quicker(*sizes) == chosen
    assert is_known_quicker(*sizes) == chosen


def test_sizes_like_these_are_timed_once(timings: Timings) -> None:
    for _ in range(2):
        assert is_onednn_quicker(ROWS, INNER, COLUMNS)
    assert is_onednn_quicker(*NEAR)
    assert timings.count == 1
    for count, (sizes, by_rows) in enumerate((((ROWS, INNER, COLUMNS), True), (OTHER, False)), start=2):
        is_onednn_quicker(*sizes, by_rows)
        assert timings.count == count


def test_tuning_times_these_very_sizes(timings: Timings) -> None:
    is_onednn_quicker(ROWS, INNER, COLUMNS)
    for count, sizes in enumerate(((ROWS, INNER, COLUMNS), NEAR), start=2):
        is_onednn_quicker(*sizes, tunes=True)
        assert timings.count == count


def test_small_products_are_not_timed(timings: Timings) -> None:
    assert not is_onednn_quicker(16, 64, 64)
    assert not is_onednn_quicker(16, 64, 64, tunes=True)
    assert timings.count == 0


@pytest.mark.parametrize("tuned", [False, True])
def test_small_products_are_of_blas(tuned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rule: they are too small for timing."""
    monkeypatch.setattr(matrix_products, "is_tuned_blas", lambda: tuned)
    assert not is_onednn_quicker(127, 128, 128)


def test_a_process_does_not_wait_long(timings: Timings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_onednn_quicker(ROWS, INNER, COLUMNS)
    monkeypatch.setattr(choices, "_seconds_waited", 1.0)
    assert is_onednn_quicker(ROWS, INNER, COLUMNS)
    assert not is_onednn_quicker(*OTHER)
    assert timings.count == 1
    assert is_onednn_quicker(*OTHER, tunes=True)


def test_a_rule_decides_where_timing_was_disturbed(timings: Timings) -> None:
    timings.agree = 3.0
    assert not is_onednn_quicker(ROWS, INNER, COLUMNS)
    assert is_onednn_quicker(*RULED)
    assert not is_onednn_quicker(*RULED, by_rows=True)
    assert timings.count == 3


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("sizes", [(8, 200, 300), (1, 2048, 2048), (1000, 96, 64)])
def test_alternatives_compute_products(sizes: tuple[int, int, int], by_rows: bool) -> None:
    runs = matrix_products._runs(*sizes, by_rows)
    assert list(runs) == [BLAS, ONEDNN]
    for (run,) in runs.values():
        torch.testing.assert_close(run(), torch.full((sizes[0], sizes[2]), 0.25 * sizes[1]))


@pytest.mark.parametrize("sizes", [(1, 1 << 20, 1), (128, 768, 30522), (4096, 64, 1 << 16), (3, 5, 1 << 20)])
def test_timed_sizes_are_like_those_asked_for(sizes: tuple[int, int, int]) -> None:
    work = matrix_products._TIMED_WORK
    timed = matrix_products.typical_sizes(*sizes, work)
    assert all(1 <= one <= asked for one, asked in zip(timed, sizes, strict=True))
    rows, inner, columns = timed
    assert rows * inner * columns <= work
    assert matrix_products.typical_sizes(*timed, work) == timed


def test_answers_stay(timings: Timings) -> None:
    assert is_onednn_quicker(ROWS, INNER, COLUMNS)
    choices._known.clear()
    timings.ratio = 2.0
    assert is_onednn_quicker(ROWS, INNER, COLUMNS)


def test_calls_keep_their_choice_and_wait_for_no_timing(timings: Timings) -> None:
    x, matrix = torch.randn(ROWS, INNER), torch.randn(COLUMNS, INNER).t()
    before = matrix_products.linear_product(x, matrix)
    assert timings.count == 0
    assert is_onednn_quicker(ROWS, INNER, COLUMNS)
    assert torch.equal(matrix_products.linear_product(x, matrix), before)


@pytest.mark.parametrize(("mode", "again"), [(None, 0), ("max-autotune", 1)])
def test_modes(mode: str | None, again: int, timings: Timings) -> None:
    """A layer like one that was timed before is timed by max-autotune alone."""
    is_onednn_quicker(128, 256, 192)
    layer = torch.nn.Linear(256, 200)
    x = torch.randn(128, 256)
    torch.testing.assert_close(stator.compile(layer, mode=mode)(x), layer(x), rtol=1e-5, atol=1e-5)
    assert timings.count == 1 + again


def test_libraries_are_warm_before_they_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first runs of a process take so long that a library would be timed no further."""
    ran: list[str] = []
    monkeypatch.setattr(matrix_products, "_warm", set())
    monkeypatch.setattr(matrix_products, "product_by", lambda name, x, columns: lambda weight: ran.append(name))
    matrix_products._runs(4, 8, 8, False)
    assert min(ran.count(BLAS), ran.count(ONEDNN)) >= 3
    ran.clear()
    matrix_products._runs(4, 8, 16, False)
    assert not ran
