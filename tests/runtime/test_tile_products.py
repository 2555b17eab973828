"""Products with int8 weights in tiles: right for all sizes and threads, beside oneDNN's own tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from stator.runtime import tile_products
from stator.runtime.tile_products import has_tiles, tile_product, tile_product_of_sizes

pytestmark = pytest.mark.skipif(not has_tiles(), reason="this processor has no tiles of bfloat16")

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


def test_many_rows_in_parts() -> None:
    given = operands(1100, 1024, 64)
    torch.testing.assert_close(tile_product(*given).double(), exact(*given), rtol=2**-8, atol=0.05)


def test_small_integers_are_exact() -> None:
    """Each position of rows and columns meets its own numbers: sums that bfloat16 has room for are equal."""
    x = torch.randint(-1, 2, (70, 288)).bfloat16() * (torch.rand(70, 288) < 0.1)
    weight = torch.randint(-4, 5, (96, 288), dtype=torch.int8)
    assert torch.equal(tile_product(x.bfloat16(), weight.t()).float(), x.float() @ weight.float().t())


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


def test_results_do_not_depend_on_threads(set_threads: Callable[[int], None]) -> None:
    given = operands(130, 1024, 224)
    found = []
    for threads in (1, 2, 3):
        set_threads(threads)
        found.append(tile_product(*given))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


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


def test_rows_with_gaps_and_no_rows() -> None:
    x, matrix, _ = operands(6, 96, 64)
    wide = torch.cat((x, x), 1)[:, :96]
    assert torch.equal(tile_product(wide, matrix), tile_product(x, matrix))
    assert tile_product(x[:0], matrix).shape == (0, 64)


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
