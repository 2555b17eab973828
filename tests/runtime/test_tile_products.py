"""Products with int8 weights in tiles: right for all sizes and threads, beside oneDNN's own tiles, and chosen by
timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from stator.runtime import choices, tile_products
from stator.runtime.tile_products import has_tiles, is_quicker, tile_product, tile_product_of_sizes

in_tiles = pytest.mark.skipif(not has_tiles(), reason="this processor has no tiles of bfloat16")

# One step of the inner dimension, a few, one block of them and a rest, several blocks
SIZES = [(32, 32), (96, 160), (288, 64), (1024, 96)]


def operands(rows: int, inner: int, columns: int, with_bias: bool = True) -> tuple[torch.Tensor, ...]:
    x, weight = torch.randn(rows, inner).bfloat16(), torch.randint(-128, 128, (columns, inner), dtype=torch.int8)
    return (x, weight.t(), torch.randn(columns).bfloat16()) if with_bias else (x, weight.t())


def exact(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    found = x.double() @ matrix.double()
    return found if bias is None else found + bias.double()


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@in_tiles
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_products_in_float64(threads: int, with_bias: bool, set_threads: Callable[[int], None]) -> None:
    """One rounding to bfloat16, and sums of float32."""
    set_threads(threads)
    for rows in (1, 2, 15, 16, 17, 31, 32, 33, 49, 100):
        for inner, columns in SIZES:
            given = operands(rows, inner, columns, with_bias)
            torch.testing.assert_close(
                tile_product(*given).double(), exact(*given), rtol=2**-8, atol=1e-3 * inner**0.5, msg=str((rows, inner))
            )


@in_tiles
def test_many_rows_in_parts() -> None:
    given = operands(1100, 1024, 64)
    torch.testing.assert_close(tile_product(*given).double(), exact(*given), rtol=2**-8, atol=0.05)


@in_tiles
def test_small_integers_are_exact() -> None:
    """Each position of rows and columns meets its own numbers: sums that bfloat16 has room for are equal."""
    x = torch.randint(-1, 2, (70, 288)).bfloat16() * (torch.rand(70, 288) < 0.1)
    weight = torch.randint(-4, 5, (96, 288), dtype=torch.int8)
    assert torch.equal(tile_product(x.bfloat16(), weight.t()).float(), x.float() @ weight.float().t())


@in_tiles
@pytest.mark.parametrize("threads", [1, 2])
def test_products_of_integers_are_exact(threads: int, set_threads: Callable[[int], None]) -> None:
    """Sums wrap around in int32 as eager's do."""
    set_threads(threads)
    for rows in (1, 15, 17, 32, 50, 100):
        for inner, columns in ((64, 32), (192, 160), (576, 64), (2048, 96)):
            x = torch.randint(-128, 128, (rows, inner), dtype=torch.int8)
            weight = torch.randint(-128, 128, (columns, inner), dtype=torch.int8)
            found = tile_product(x, weight.t())
            assert found.dtype is torch.int32
            assert torch.equal(found, torch._int_mm(x, weight.t()))
            assert torch.equal(
                tile_product(torch.full_like(x, -128), weight.t()), weight.int().sum(1) * -128 + 0 * found
            )


@in_tiles
def test_results_do_not_depend_on_threads(set_threads: Callable[[int], None]) -> None:
    given = operands(130, 1024, 224)
    found = []
    for threads in (1, 2, 3):
        set_threads(threads)
        found.append(tile_product(*given))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@in_tiles
@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_special_numbers_stay_in_their_row(special: float) -> None:
    x, matrix, bias = operands(20, 96, 64)
    expected = tile_product(x, matrix, bias)
    x[3, 50] = special
    found = tile_product(x, matrix, bias)
    others = torch.arange(20) != 3
    assert torch.equal(found[others], expected[others])
    assert torch.equal(found[3].isnan(), (x[3].float() @ matrix.float()).isnan())
    assert not found[3].isfinite().any()


@in_tiles
def test_rows_with_gaps_and_no_rows() -> None:
    x, matrix, _ = operands(6, 96, 64)
    wide = torch.cat((x, x), 1)[:, :96]
    assert torch.equal(tile_product(wide, matrix), tile_product(x, matrix))
    assert tile_product(x[:0], matrix).shape == (0, 64)


@in_tiles
def test_products_by_onednn_come_between() -> None:
    """Both set the shapes of tiles."""
    x, matrix, bias = operands(40, 256, 64)
    weight = matrix.t().bfloat16()
    first = torch.nn.functional.linear(x, weight), tile_product(x, matrix, bias)
    for _ in range(3):
        assert torch.equal(torch.nn.functional.linear(x, weight), first[0])
        assert torch.equal(tile_product(x, matrix, bias), first[1])


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_process_without_tiles(with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was compiled elsewhere asks again whether there are tiles."""
    monkeypatch.setattr(tile_products, "has_tiles", lambda: False)
    given = operands(7, 96, 64, with_bias)
    product = tile_product_of_sizes.__wrapped__(*[tuple(one.shape) for one in given])
    torch.testing.assert_close(product(*given).double(), exact(*given), rtol=2**-8, atol=0.01)
    whole = torch.randint(-128, 128, (20, 96), dtype=torch.int8)
    assert torch.equal(product(whole, given[1]), torch._int_mm(whole, given[1]))


# ---- the choice


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[choices.Alternatives]:
    """The alternatives that are timed, as on a processor with tiles where libraries compute what tiles would."""
    found: list[choices.Alternatives] = []

    def times(runs: choices.Alternatives) -> dict[str, list[float]]:
        found.append(dict(runs))
        return {name: [1.0 - 0.5 * (name == "tiles")] * 3 for name in runs}

    monkeypatch.setattr(choices, "_known", {})
    machine = [f"a processor of {time.time_ns()}"]
    monkeypatch.setattr(choices, "processor", lambda: machine)
    monkeypatch.setattr(choices, "_times", times)
    monkeypatch.setattr(tile_products, "has_tiles", lambda: True)
    monkeypatch.setattr(tile_products, "tile_product_of_sizes", lambda *sizes: tile_products._by_libraries)
    return found


@pytest.mark.parametrize(
    ("dtype", "constant", "names"),
    [
        (torch.bfloat16, True, set(tile_products.implementations(torch.bfloat16, True)) | {"tiles"}),
        (torch.bfloat16, False, {"library", "tiles"}),
        (torch.int8, True, {"library", "tiles"}),
    ],
)
def test_all_alternatives_are_timed(
    dtype: torch.dtype, constant: bool, names: set[str], timed: list[choices.Alternatives]
) -> None:
    """With several weights, none of which is still in the cache, and equal results."""
    assert is_quicker(48, 192, 96, dtype, constant)
    (runs,) = timed
    assert set(runs) == names
    expected = torch.full((48, 96), 192, dtype=torch.int32 if dtype is torch.int8 else dtype)
    for several in map(list, runs.values()):
        assert len(several) > 1
        assert all(torch.equal(run(), expected) for run in several)


@pytest.mark.parametrize(("quick", "chosen"), [("tiles", True), ("library", False)])
def test_the_quicker_one_is_chosen(
    quick: str, chosen: bool, timed: list[choices.Alternatives], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of rows; sizes near to each other are timed once."""
    monkeypatch.setattr(choices, "_times", lambda runs: timed.append({}) or {n: [2.0 - (n == quick)] * 3 for n in runs})
    for rows in (512, 600, 700):
        assert is_quicker(rows, 1024, 256, torch.bfloat16, False) == chosen
    assert len(timed) == 1
    assert is_quicker(4096, 1024, 256, torch.bfloat16, False) == chosen
    assert len(timed) == 2


def test_disturbed_timing_leaves_the_product_to_libraries(
    timed: list[choices.Alternatives], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "_times", lambda runs: {name: [1.0 + (name != "tiles"), 9.0, 9.0] for name in runs})
    assert not is_quicker(64, 256, 256, torch.int8, False)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 64, 64), (16, 48, 64), (16, 64, 40)])
def test_sizes_without_tiles_are_not_timed(
    rows: int, inner: int, columns: int, timed: list[choices.Alternatives]
) -> None:
    assert not is_quicker(rows, inner, columns, torch.bfloat16, True)
    assert not timed


def test_processors_without_tiles_time_nothing(
    timed: list[choices.Alternatives], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_products, "has_tiles", lambda: False)
    assert not is_quicker(64, 256, 256, torch.bfloat16, False)
    assert not timed


@pytest.mark.parametrize("rows", [2, 17, 300, 5000])
@pytest.mark.parametrize("inner", range(64, 4096 + 64, 448))
@pytest.mark.parametrize("columns", [32, 96, 160, 4064])
def test_timed_sizes_have_tiles(
    rows: int, inner: int, columns: int, timed: list[choices.Alternatives], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_products, "_runs", lambda *facts: timed.append({"facts": [lambda: facts]}) or {})
    monkeypatch.setattr(choices, "_timed", lambda kind, facts, alternatives, margin: alternatives() and "tiles")
    is_quicker(rows, inner, columns, torch.int8, False)
    _, inner, columns, dtype, _ = next(iter(timed[0]["facts"]))()
    assert tile_products.has_tiles_for(inner, columns, dtype)
