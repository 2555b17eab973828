"""Products by any matrix: kernels of ours are chosen by timing them beside libraries, after the first process."""

from __future__ import annotations

import time

import pytest
import torch

import stator
from stator.inductor.codegen import cpp
from stator.inductor.lower import direct_convolution, products_by_matrix
from stator.inductor.lower.products_by_matrix import is_kernel_quicker
from stator.runtime import choices
from stator.runtime.toolchain import float_lanes

pytestmark = pytest.mark.skipif(
    float_lanes() not in direct_convolution._TILES, reason="products are the library's on this processor"
)
SIZES = (64, 256, 128)


class Timing:
    """Stands in for the timing of alternatives: kernels of ours take `ratio` times as long as libraries."""

    def __init__(self) -> None:
        self.ratio, self.count = 1.0, 0

    def __call__(self, alternatives: choices.Alternatives) -> dict[str, list[float]]:
        self.count += 1
        *libraries, tiles = alternatives
        return {**dict.fromkeys(libraries, [1.0] * 3), tiles: [self.ratio] * 3}


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> Timing:
    """No choice is known yet, and a rule says libraries."""
    made = Timing()
    monkeypatch.setattr(choices, "_times", made)
    monkeypatch.setattr(products_by_matrix, "_KIND", f"test {time.time_ns()}")
    monkeypatch.setattr(products_by_matrix, "is_tuned_blas", lambda: True)
    new_process(monkeypatch)
    return made


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_known", {})
    monkeypatch.setattr(choices, "_untimed", set())
    monkeypatch.setattr(choices, "_seconds_waited", 0.0)
    monkeypatch.setattr(choices, "_answered", {})


@pytest.mark.parametrize(("ratio", "chosen"), [(0.8, True), (0.95, False)])
def test_the_second_process_times(ratio: float, chosen: bool, timing: Timing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel must win by what compiling it costs."""
    timing.ratio = ratio
    asked = len(choices.provisional)
    assert not is_kernel_quicker(cpp.compiled_convolutions, *SIZES, by_rows=False)
    assert not is_kernel_quicker(cpp.compiled_convolutions, *SIZES, by_rows=False)
    assert timing.count == 0
    assert len(choices.provisional) == asked + 2
    function, arguments, answer = choices.provisional[-1] or pytest.fail("nobody could ask again")
    new_process(monkeypatch)
    assert function(*arguments) == chosen
    assert (timing.count, answer) == (1, False)
    new_process(monkeypatch)
    assert function(*arguments) == chosen
    assert timing.count == 1


def test_max_autotune_times_at_once(timing: Timing) -> None:
    timing.ratio = 0.8
    assert is_kernel_quicker(cpp.compiled_convolutions, *SIZES, by_rows=False, tunes=True)


@pytest.mark.parametrize("tuned", [False, True])
def test_a_rule_decides_where_calls_take_longer_than_products(
    tuned: bool, timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products_by_matrix, "is_tuned_blas", lambda: tuned)
    assert is_kernel_quicker(cpp.compiled_convolutions, 8, 64, 64, by_rows=False, tunes=True) != tuned
    assert timing.count == 0


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("rows", [1, 48])
def test_both_alternatives_compute_the_product(rows: int, by_rows: bool) -> None:
    alternatives = products_by_matrix._runs(cpp.compiled_convolutions, rows, 768, 1536, by_rows)
    for (run,) in alternatives.values():
        assert torch.equal(run(), torch.full((rows, 1536), 768 / 4))


@pytest.mark.parametrize("by_rows", (False, True))
def test_products_of_one_factor_are_timed(by_rows: bool, timing: Timing) -> None:
    timing.ratio = 2.0
    assert not is_kernel_quicker(cpp.compiled_convolutions, 1 << 16, 1, 64, by_rows, tunes=True)
    assert timing.count == 1


@pytest.mark.parametrize(("rows", "inner", "columns"), [(0, 64, 48), (3, 0, 50), (50, 64, 0)])
@pytest.mark.parametrize("by_rows", [False, True])
def test_products_of_nothing(rows: int, inner: int, columns: int, by_rows: bool) -> None:
    x, matrix = torch.randn(rows, inner), torch.randn(columns, inner).t()
    matrix = matrix.contiguous() if by_rows else matrix
    found = stator.compile(torch.mm, fullgraph=True)(x, matrix)
    assert torch.equal(found, x @ matrix)
