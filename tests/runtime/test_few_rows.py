"""Products of few rows by our kernel: right for all sizes, threads and instruction sets, and used where it is quick."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.differential import FUSED, assert_same
from tests.runtime.vec_library import TARGETS, build_library
from torch import nn

import stator
from stator.inductor.lower import constant_weights
from stator.runtime import choices, few_rows, host, matrix_products
from stator.runtime.few_rows import few_rows_product
from stator.runtime.matrix_products import are_few_rows_quicker

SIZES = [(768, 96), (1, 1), (15, 24), (16, 25), (17, 47), (1000, 71), (3000, 50), (5, 300), (4096, 24)]


def exact(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    found = x.double() @ matrix.double()
    return (found if bias is None else found + bias.double()).float()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_products_in_float64(threads: int, with_bias: bool, set_threads: Callable[[int], None]) -> None:
    set_threads(threads)
    for rows in range(1, 18):
        for inner, columns in (SIZES[rows % len(SIZES)], SIZES[(rows + 3) % len(SIZES)]):
            x, matrix = torch.randn(rows, inner), torch.randn(columns, inner).t()
            bias = torch.randn(columns) if with_bias else None
            torch.testing.assert_close(
                few_rows_product(x, matrix, bias), exact(x, matrix, bias), rtol=1e-5, atol=2e-6 * inner**0.5
            )


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_results_do_not_depend_on_threads(set_threads: Callable[[int], None]) -> None:
    x, matrix = torch.randn(7, 900), torch.randn(333, 900).t()
    found = []
    for threads in (1, 2, 3):
        set_threads(threads)
        found.append(few_rows_product(x, matrix))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_special_numbers_stay_in_their_row_and_column(special: float) -> None:
    x, matrix, bias = torch.randn(5, 100), torch.randn(60, 100).t(), torch.randn(60)
    for place in (0, 99):
        rows, columns = x.clone(), matrix.clone(memory_format=torch.preserve_format)
        rows[2, place], columns[place, 7] = special, special
        assert_same(few_rows_product(rows, matrix, bias), torch.addmm(bias, rows, matrix), FUSED)
        assert_same(few_rows_product(x, columns, bias), torch.addmm(bias, x, columns), FUSED)


@pytest.mark.parametrize("with_bias", [False, True])
def test_other_layouts(with_bias: bool) -> None:
    """Rows with gaps, and matrices that do not lie column by column."""
    bias = torch.randn(300) if with_bias else None
    for x in (torch.randn(6, 400)[:, :256], torch.randn(256, 6).t()):
        for matrix in (torch.randn(300, 256).t(), torch.randn(256, 300), torch.randn(300, 300)[:, :256].t()):
            found = few_rows_product(x, matrix, bias)
            torch.testing.assert_close(found, exact(x, matrix, bias), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_instruction_sets(target: str, tmp_path: Path) -> None:
    source = '#include "vec.h"\n#include "vec_products.h"\n' + "\n".join(
        f'extern "C" void {name}{m}(const float *x, const float *w, const float *b, float *y, int64_t k, int64_t n)'
        f" {{ product_rows<{m}, {factors}>(x, k, w, k, b, y, n, k, n); }}"
        for m in (1, 2, 4, 6, 8)
        for name, factors in (("rows", "1, 1"), ("whole_rows", "LANES, 24"))
    )
    source += (
        'extern "C" void by_rows(const float *x, const float *w, float *y, int64_t m, int64_t k, int64_t n)'
        " { multiply_by_rows(x, k, w, n, y, m, k, n); }"
    )
    library = build_library(source, target, tmp_path)
    for rows in (1, 2, 4, 6, 8):
        for inner, columns in SIZES:
            x, weight, bias = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns)
            out = torch.empty(rows, columns)
            pointers = [ctypes.c_void_p(one.data_ptr()) for one in (x, weight, bias, out)]
            for name in ("rows",) if inner % 16 or columns % 24 else ("rows", "whole_rows"):
                getattr(library, f"{name}{rows}")(*pointers, ctypes.c_int64(inner), ctypes.c_int64(columns))
                torch.testing.assert_close(out, exact(x, weight.t(), bias), rtol=1e-5, atol=2e-6 * inner**0.5)
            x, weight = torch.randn(rows, inner), torch.randn(inner, 192)
            out = torch.empty(rows, 192)
            pointers = [ctypes.c_void_p(one.data_ptr()) for one in (x, weight, out)]
            library.by_rows(*pointers, *map(ctypes.c_int64, (rows, inner, 192)))
            torch.testing.assert_close(out, exact(x, weight, None), rtol=1e-5, atol=1e-7 * inner + 1e-6)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sizes for which programs are bound to the kernel, on a processor for which it was measured, where nothing was
    timed."""
    monkeypatch.setattr(matrix_products, "_FEW_ROWS_KIND", f"test {time.time_ns()}")
    monkeypatch.setattr(choices, "_answered", {})
    matrix_products._are_few_rows_known_quicker.cache_clear()
    seen: list[tuple[int, ...]] = []
    make = few_rows.few_rows_product_of_sizes

    def noted(*sizes: Any) -> Any:
        seen.append((*sizes[0], sizes[1][1]))
        return make(*sizes)

    monkeypatch.setitem(host.OF_SIZES, "stator.few_rows_product.default", noted)
    monkeypatch.setattr(matrix_products, "few_rows_product_of_sizes", noted)
    monkeypatch.setattr(few_rows, "cpu_features", lambda: {"avx512f"})
    monkeypatch.setattr(few_rows, "WORTHWHILE", 256 * 300)
    return seen


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 300), nn.GELU(), nn.Linear(300, 256, bias=False)).eval()


@pytest.mark.parametrize(("ours", "rows"), [(0.5, 1), (0.5, 8), (2.0, 8), (0.99, 8)])
def test_the_second_process_follows_the_times(
    ours: float, rows: int, products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(alternatives: choices.Alternatives) -> dict[str, list[float]]:
        *libraries, own = alternatives
        return {**dict.fromkeys(libraries, [1.0] * 3), own: [ours] * 3}

    monkeypatch.setattr(choices, "_times", times)
    monkeypatch.setattr(choices, "_seconds_waited", 0.0)
    by_rule = rows >= few_rows.LEAST_ROWS
    assert are_few_rows_quicker(rows, 256, 300) == by_rule
    for name in ("_known", "_answered"):
        monkeypatch.setattr(choices, name, {})
    monkeypatch.setattr(choices, "_untimed", set())
    assert are_few_rows_quicker(rows, 256, 300) == (ours < 0.9)
    assert matrix_products._are_few_rows_known_quicker(rows, 256, 300, torch.get_num_threads()) == (ours < 0.9)


@pytest.mark.parametrize("rows", [0, few_rows.MOST_ROWS + 1])
def test_other_numbers_of_rows_are_not_timed(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_answered", {})
    monkeypatch.setattr(choices, "_timed", lambda *asked: pytest.fail("timed"))
    assert not are_few_rows_quicker(rows, 1024, 1024, True)


@pytest.mark.parametrize("waited", [0.0, 2 * choices.PATIENCE_SECONDS])
def test_answers_by_the_rule_are_asked_again(
    waited: float, products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "_seconds_waited", waited)
    noted = len(choices.provisional)
    assert are_few_rows_quicker(8, 256, 300)
    assert choices.provisional[noted:] == [(are_few_rows_quicker, (8, 256, 300, False), True)]


def test_what_is_timed_multiplies(products: list[tuple[int, ...]]) -> None:
    names = (matrix_products.BLAS, matrix_products.FEW_ROWS)
    for runs in matrix_products._runs(4, 256, 300, False, names).values():
        assert_same(next(iter(runs))(), torch.full((4, 300), 64.0), FUSED)


@pytest.mark.fixed_sizes  # with symbols, the kernel is chosen for each number of rows
def test_programs_of_few_rows_use_it(products: list[tuple[int, ...]]) -> None:
    eager = model()
    compiled = stator.compile(eager, dynamic=False)
    for rows in (1, 4, 16, 40):
        x = torch.randn(rows, 256)
        with torch.no_grad():
            assert_same(compiled(x), eager(x), FUSED)
    assert products == [(4, 256, 300), (4, 300, 256), (16, 256, 300), (16, 300, 256)]


def test_a_changing_number_of_rows(products: list[tuple[int, ...]]) -> None:
    eager = model()
    compiled = stator.compile(eager, dynamic=True)
    for rows in (5, 40, 2, 9, 5):
        x = torch.randn(rows, 256)
        with torch.no_grad():
            assert_same(compiled(x), eager(x), FUSED)
    assert {sizes[0] for sizes in products} == {5, 9}


@pytest.mark.parametrize("by_rows", [False, True])
def test_constant_weights(by_rows: bool, products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_weights, "quickest_product", lambda *_: "few rows")

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shape = (256, 300) if by_rows else (300, 256)
            self.weight, self.bias = nn.Parameter(torch.randn(shape) / 16), nn.Parameter(torch.randn(300))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight if by_rows else self.weight.t()
            return torch.addmm(self.bias, x, weight).relu() - x @ weight

    eager = Layer().eval()
    frozen = stator.freeze(eager, fullgraph=True)
    x = torch.randn(3, 256)
    with torch.no_grad():
        assert_same(frozen(x), eager(x), FUSED)
    assert products[0] == (3, 256, 300)


def test_gradients() -> None:
    eager = model()
    compiled = stator.compile(eager)
    x = torch.randn(8, 256)
    expected = torch.autograd.grad(eager(x).square().mean(), list(eager.parameters()))
    found = torch.autograd.grad(compiled(x).square().mean(), list(eager.parameters()))
    assert_same(list(found), list(expected), FUSED)
