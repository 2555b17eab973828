"""Arrays of random numbers: drawn ahead of the graph in the program's order, with generators' states as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stator

SEEN = np.random.default_rng(11)
OLDER = np.random.RandomState(5)


def arrays_of_numpy(x: torch.Tensor) -> Any:
    return x + torch.from_numpy(np.random.rand(3)), np.random.randn(2, 2) * 2, np.random.randint(0, 9, size=4)


def samples_of_numpy(x: torch.Tensor) -> Any:
    return np.random.choice(5, 3, replace=False), np.random.permutation(6), np.random.choice(3, 4, p=[0.2, 0.5, 0.3])


def newer_generator(x: torch.Tensor) -> Any:
    first = SEEN.normal(size=3)
    first += 1
    return first + x.numpy(), SEEN.integers(0, 9, (2, 2)), SEEN.random(), SEEN.random(3, dtype=np.float32)


def older_generator(x: torch.Tensor) -> Any:
    OLDER.rand(2)
    return x * OLDER.uniform(), OLDER.normal(0, 1, (2,)), OLDER.poisson(3.0, size=3)


def numbers_of_numpys_types(x: torch.Tensor) -> Any:
    return SEEN.integers(5), SEEN.integers(5, dtype=np.int32) + 1


def single_numbers(x: torch.Tensor) -> Any:
    size = np.random.randint(1, 4)
    return x[:1].expand(size) + SEEN.normal(loc=2.0), size, np.random.normal(scale=3.0), np.random.choice(7) + 1


def broken_between(x: torch.Tensor) -> Any:
    first = SEEN.normal(size=2)
    stator.graph_break()
    return first * 2, SEEN.normal(size=2) + x[:2].numpy()


def failed(x: torch.Tensor) -> Any:
    drawn = SEEN.normal(size=(2, 2))
    try:
        return np.linalg.inv(drawn * 0)
    except np.linalg.LinAlgError:
        return drawn, OLDER.rand(2), SEEN.random()


def flat(result: Any) -> list[Any]:
    result = result if isinstance(result, tuple) else (result,)
    return [(type(one), getattr(one, "dtype", None), np.asarray(one).tolist()) for one in result]


def three_calls(function: Callable[..., Any]) -> list[Any]:
    SEEN.bit_generator.state = np.random.default_rng(11).bit_generator.state
    OLDER.seed(5)
    np.random.seed(3)
    return [flat(function(torch.arange(3.0))) for _ in range(3)] + [SEEN.random(), OLDER.rand(), np.random.rand()]


IN_ONE_GRAPH = [
    arrays_of_numpy,
    samples_of_numpy,
    newer_generator,
    older_generator,
    numbers_of_numpys_types,
    single_numbers,
]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", IN_ONE_GRAPH)
def test_arrays_are_drawn_ahead_of_one_graph(program: Callable[..., Any], backend: str) -> None:
    assert three_calls(stator.compile(program, backend=backend, fullgraph=True)) == three_calls(program)


@pytest.mark.parametrize("program", [broken_between, failed])
def test_arrays_drawn_around_breaks_and_failures(program: Callable[..., Any]) -> None:
    assert three_calls(stator.compile(program, backend="eager")) == three_calls(program)


def mask(shape: tuple[int, int], share: float, least: int = 1) -> np.ndarray:
    def how_many(size: int) -> int:
        return max(int(share * size + np.random.rand()), least)

    made = np.zeros(shape, dtype=bool)
    for row in made:
        row[np.random.choice(np.arange(shape[1]), how_many(shape[1]), replace=False)] = True
    return made


def masked(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    chosen = torch.tensor(mask((2, 8), 0.3), dtype=torch.bool, device=x.device)
    return torch.where(chosen, y, -y).cos()


def test_a_function_that_only_draws_runs_as_it_is_between_two_graphs() -> None:
    x = torch.randn(2, 8)
    compiled = stator.compile(masked, backend="eager")
    stator.base.counters.clear()
    for seed in range(3):
        np.random.seed(seed)
        found = compiled(x)
        np.random.seed(seed)
        assert torch.equal(found, masked(x))
    counts = stator.base.counters.counts
    assert (counts["graphs"], counts["graph_breaks"]) == (2, 1)


@pytest.mark.parametrize("most", [1e17, np.int64(2**60)], ids=["float", "number of NumPy"])
def test_whole_numbers_beyond_those_that_floats_hold(most: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, np.random.randint(most)

    compiled = stator.compile(program, backend="eager")
    for call in range(2):
        np.random.seed(call)
        expected = program(torch.ones(2))[1]
        np.random.seed(call)
        assert compiled(torch.ones(2))[1] == expected
