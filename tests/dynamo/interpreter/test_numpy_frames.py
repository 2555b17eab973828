"""A called function that computes with NumPy alone and breaks runs as it is, by one break at its call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import check, corpus

import stator
from stator.base.errors import Unsupported
from stator.tools.explain import explain

PROGRAMS, program = corpus()
SCALE = torch.tensor([1.0, 2.0, 3.0])


def mask(shape: tuple[int, int], share: float, lengths: torch.Tensor | None = None, least: int = 1) -> np.ndarray:
    """Draws as masks for training are drawn, with a helper, a loop, and breaks between pieces that capture follows."""
    by_chance = np.random.rand(1).item()

    def how_many(size: int) -> int:
        return min(max(int(share * size + by_chance), least), size)

    found = lengths.sum(-1).tolist() if lengths is not None else [shape[1] for _ in range(shape[0])]
    made, rows = np.zeros(shape, dtype=bool), []
    for length in found:
        chosen = np.random.choice(np.arange(length), how_many(length), replace=False)
        rows.append(np.concatenate([chosen, np.ones(1, dtype=np.int64) * chosen[0]])[:1])
    np.put_along_axis(made, np.array(rows), True, -1)
    return made


def numbers(x: torch.Tensor) -> torch.Tensor:
    return x[:, :3] * 2


@program(lambda: torch.arange(16.0).reshape(2, 8))
def between_operators(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    chosen = torch.tensor(mask(tuple(y.shape), 0.3), dtype=torch.bool, device=x.device)
    return torch.where(chosen, y, -y).cos()


@program(lambda: torch.arange(16.0).reshape(2, 8))
def before_all_operators(x: torch.Tensor) -> torch.Tensor:
    chosen = torch.from_numpy(mask((2, 8), 0.3))
    return torch.where(chosen, x, -x).cos()


def spectrum(signal: np.ndarray, *, at: int = 0) -> np.ndarray:
    signal *= 2.0
    parts = np.abs(np.fft.fft(signal))
    signal[at] = parts[at]
    return parts


@program(lambda: torch.arange(8.0))
def arrays_on_shared_memory(x: torch.Tensor) -> Any:
    y = x + 1
    parts = spectrum(y.numpy(), at=1)
    return y * 3, torch.from_numpy(parts).float() + y


def refused(table: np.ndarray) -> np.ndarray:
    return np.linalg.inv(table * 0 + np.unique(table)[0] * 0)


@program(lambda: torch.arange(4.0).reshape(2, 2))
def an_error_is_handled(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    try:
        refused(np.ones((2, 2)))
    except np.linalg.LinAlgError:
        y = y - 1
    return y.cos()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("one", PROGRAMS)
def test_results_memory_and_draws_are_those_of_eager(one: Any, backend: str) -> None:
    check(one, backend=backend, calls=3)


@pytest.mark.parametrize(("function", "graphs"), [(between_operators, 2), (before_all_operators, 1)])
def test_the_graph_ends_once_at_the_call(function: Any, graphs: int) -> None:
    check(function, torch.randn(2, 8), calls=4, graphs=graphs, breaks=1)


def test_a_write_through_an_argument_is_seen_by_two_graphs() -> None:
    check(arrays_on_shared_memory, torch.randn(8), calls=3, graphs=2, breaks=1)


def padded(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    y = x * 2
    chosen = torch.tensor(mask(tuple(y.shape), 0.3, lengths), dtype=torch.bool, device=x.device)
    return torch.where(chosen, y, -y).cos()


def in_three_frames(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return padded(x + 1, lengths) - 1


@pytest.mark.parametrize("function", [padded, in_three_frames])
def test_the_rest_runs_as_it_is_once_no_tensor_is_left(function: Any) -> None:
    def breaks_of(rows: int) -> int:
        found = explain(function)(torch.randn(rows, 8), torch.ones(rows, 8, dtype=torch.int64))
        return found.graph_break_count

    check(function, torch.randn(4, 8), torch.ones(4, 8, dtype=torch.int64), calls=4)
    assert breaks_of(4) == breaks_of(9)  # one for each row otherwise


def scaled(count: int) -> torch.Tensor:
    order = np.random.permutation(count)
    return SCALE[torch.from_numpy(order)] * 2


def with_a_tensor_of_the_module(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + scaled(3)


def doubled(x: torch.Tensor, table: np.ndarray) -> torch.Tensor:
    return numbers(x) + float(np.unique(table)[0])


def with_a_tensor_among_the_arguments(x: torch.Tensor) -> torch.Tensor:
    return doubled(x * 2, np.ones(3)) * 2


@pytest.mark.parametrize("function", [with_a_tensor_of_the_module, with_a_tensor_among_the_arguments])
def test_a_function_that_reaches_a_tensor_is_compiled(function: Any) -> None:
    found = explain(function)(torch.randn(2, 3))
    assert "numpy-function" not in {reason.kind for reason in found.break_reasons}
    check(function, torch.randn(2, 3), calls=3, graphs=2, breaks=1)


def softmax(table: np.ndarray) -> np.ndarray:
    powers = np.exp(table - table.max())
    return powers / powers.sum()


def test_a_function_without_a_break_stays_in_the_graph() -> None:
    check(lambda x: x + torch.from_numpy(softmax(x.numpy())), torch.randn(4), fullgraph=True)


def test_under_fullgraph_the_error_names_the_operation() -> None:
    with pytest.raises(Unsupported, match=r"numpy\.random\.rand") as caught:
        stator.compile(between_operators, backend="eager", fullgraph=True)(torch.randn(2, 8))
    assert caught.value.place is not None and caught.value.place.function == "mask"


def test_random_masks_of_many_sizes_and_seeds() -> None:
    compiled = stator.compile(between_operators, backend="eager")
    for seed in range(12):
        x = torch.randn(1 + seed % 2, 4 + seed % 3)
        np.random.seed(seed)
        expected, after = between_operators(x), np.random.rand()
        np.random.seed(seed)
        assert torch.equal(compiled(x), expected)
        assert np.random.rand() == after
