"""Where algorithms have to be deterministic, torch's own scatters and allocations are called: they come in one order,
fill memory, or raise, as in eager execution."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import stator
from stator.aot.runtime import backward
from stator.base import counters


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


PLACES = torch.randint(0, 5, (4000,), generator=torch.Generator().manual_seed(0))
ADDING = {
    "index_add": lambda x: torch.zeros(5).index_add(0, PLACES, x),
    "scatter_add": lambda x: torch.zeros(5).scatter_add(0, PLACES, x),
    "index_put": lambda x: torch.zeros(5).index_put((PLACES,), x, accumulate=True),
    "scatter_reduce": lambda x: torch.zeros(5).scatter_reduce(0, PLACES, x, "mean"),
    "put": lambda x: torch.zeros(5).put(PLACES, x, accumulate=True),
}


@pytest.mark.parametrize("program", ADDING.values(), ids=ADDING)
def test_sums_at_places_are_eager_s_bit_for_bit(program) -> None:
    compiled = stator.compile(program, fullgraph=True)
    x = torch.randn(4000, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(compiled(x), program(x), rtol=1e-5, atol=1e-4)  # in any order
    torch.use_deterministic_algorithms(True)
    counters.clear()
    assert torch.equal(compiled(x), program(x))
    assert any(name.startswith("inductor_fallback:") for name in counters.counts)


def allocated(x):
    whole = torch.empty(4, dtype=torch.int64)
    return torch.empty(3), x.new_empty(2, 2), torch.empty_like(x) * 1, whole, torch.empty_strided((2, 2), (1, 2))


def test_memory_is_filled_where_eager_fills_it_without_another_version() -> None:
    compiled, x = stator.compile(allocated, fullgraph=True), torch.randn(3)
    counters.clear()
    for fill in (True, False, True):
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = fill
        got, expected = compiled(x), allocated(x)
        for mine, other in zip(got, expected, strict=True):
            assert mine.stride() == other.stride() and mine.dtype is other.dtype
            if fill:
                torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)
    assert counters.counts["captured_frames"] == 1


def written(x):
    return x.clone().put_(torch.tensor([0, 2]), x[:2])


def test_what_has_no_deterministic_form_raises_as_in_eager() -> None:
    compiled, x = stator.compile(written), torch.randn(4)
    assert torch.equal(compiled(x), written(x))
    torch.use_deterministic_algorithms(True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            compiled(x)
    torch.use_deterministic_algorithms(False)
    assert torch.equal(compiled(x), written(x))


def gathered(table):
    return table[PLACES].sin()


def gradient(run, table: torch.Tensor, weight: torch.Tensor, on: tuple[bool, bool]) -> torch.Tensor:
    torch.use_deterministic_algorithms(on[0])
    result = run(table)
    torch.use_deterministic_algorithms(on[1])
    return torch.autograd.grad(result, [table], weight)[0]


@pytest.mark.parametrize("first", [False, True], ids=["first without", "first with"])
def test_gradients_while_it_is_turned_on_and_off(first: bool) -> None:
    """Also between a forward and its backward."""
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(5, generator=generator).requires_grad_()
    weight = torch.randn(4000, generator=generator)
    compiled = stator.compile(gathered, fullgraph=True)
    for on in [(first, first), (first, True), (True, True), (first, False), (False, True)]:
        got, expected = gradient(compiled, table, weight, on), gradient(gathered, table, weight, on)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)


def test_a_backward_compiled_before_gives_way_to_its_operators_where_it_has_to_be_deterministic(monkeypatch) -> None:
    eager, runs = backward.run_eagerly, []
    monkeypatch.setattr(backward, "run_eagerly", lambda *args: runs.append(1) or eager(*args))
    table, weight = torch.randn(5).requires_grad_(), torch.randn(4000)
    compiled = stator.compile(gathered, fullgraph=True)
    for on, expected in [((False, False), 0), ((False, True), 1), ((False, False), 1), ((True, True), 1)]:
        gradient(compiled, table, weight, on)
        assert len(runs) == expected, on
