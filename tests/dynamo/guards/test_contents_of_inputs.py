"""Small tables of whole numbers among the inputs: what is read from them is relied on, and right when they change."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import stator
from stator.base import counters


def grids(*rows: tuple[int, int]) -> torch.Tensor:
    return torch.tensor(rows)


def run_all(function, calls, *, graphs_of_first: int = 1, backend: str = "eager") -> None:
    """Each call compared with eager; the first is captured in so many graphs, without a break."""
    compiled = stator.compile(function, backend=backend)
    for number, arguments in enumerate(calls):
        counters.clear()
        torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-6, atol=1e-6)
        if not number:
            assert counters.counts["graphs"] == graphs_of_first and not counters.counts["graph_breaks"]


def positions(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    parts = [torch.arange(h).repeat(w) for h, w in grid.tolist()]
    return x.sum() + torch.cat(parts)


def lengths(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    counts = grid[:, 0] * grid[:, 1]
    segments = torch.repeat_interleave(torch.arange(len(grid)), counts)
    return x.sum() + segments + torch.arange(counts.sum())


def branch(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return x + 1 if (grid[:, 0] > 2).any() else x - 1


@pytest.mark.parametrize("function", [positions, lengths, branch])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_tables_that_change(function, backend: str) -> None:
    x = torch.randn(5)
    tables = [grids((2, 3), (1, 4)), grids((3, 3), (1, 4)), grids((3, 1), (1, 1)), grids((1, 1), (2, 2))]
    run_all(function, [(x, table) for table in [*tables, *tables]], backend=backend)


def test_after_some_changes_the_graph_breaks_and_nothing_is_compiled_anew() -> None:
    compiled = stator.compile(branch, backend="eager")
    x = torch.randn(5)
    for side in range(3, 8):
        compiled(x, grids((side, 2), (1, side)))
    counters.clear()
    for side in range(3, 12):
        table = grids((side, 7), (1, side))
        assert torch.equal(compiled(x, table), branch(x, table))
    assert not counters.counts["frames"]


def test_what_was_written_before_it_is_read_counts() -> None:
    def write_first(x, grid):
        grid[0, 0] = 7
        return x + sum(grid[0].tolist())

    expected, actual = grids((2, 3)), grids((2, 3))
    x = torch.randn(3)
    assert torch.equal(stator.compile(write_first, backend="eager")(x, actual), write_first(x, expected))
    assert torch.equal(actual, expected)


def test_what_is_written_after_it_was_read_is_written_in_the_given_tensor() -> None:
    def read_then_write(x, grid):
        rows = torch.repeat_interleave(x, grid[0])
        grid.add_(1)
        return rows, grid.view(-1)

    expected, actual = grids((2, 3)), grids((2, 3))
    x = torch.randn(2)
    compiled = stator.compile(read_then_write, backend="eager")
    for _ in range(3):
        rows, view = compiled(x, actual)
        torch.testing.assert_close((rows, view), read_then_write(x, expected))
        assert view.data_ptr() == actual.data_ptr() and torch.equal(actual, expected)


def test_a_table_that_nobody_reads_is_not_relied_on() -> None:
    def gather(x, places):
        return x[places] + places.sum()

    compiled = stator.compile(gather, backend="eager")
    x = torch.randn(9)
    compiled(x, torch.tensor([1, 2]))
    counters.clear()
    compiled(x, torch.tensor([3, 4]))
    assert not counters.counts["frames"]


class Scheduled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("chances", torch.tensor([1.0, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(2):
            if self.chances[index] > 0:
                x = x * 2 + index
        return x


def test_a_branch_on_a_small_buffer_follows_the_buffer() -> None:
    model = Scheduled()
    compiled = stator.compile(model, backend="eager")
    x = torch.randn(3)
    counters.clear()
    assert torch.equal(compiled(x), model(x))
    assert counters.counts["graphs"] == 1 and not counters.counts["graph_breaks"]
    for chances in ([0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [float("nan"), 1.0], [1.0, 0.0]):
        model.chances.copy_(torch.tensor(chances))
        assert torch.equal(compiled(x), model(x))


class Padded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = torch.ceil((x.shape[-1] + 1) / self.stride).to(torch.int64)
        return torch.nn.functional.pad(x, (0, frames * self.stride - x.shape[-1]))


class Range(torch.nn.Module):
    """A layer that keeps a moving range, and branches on it in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.least = x.min() if self.least.min() > -1e-5 else 0.95 * self.least + 0.05 * x.min()
        return (x * 1.5).clamp(min=2 * float(self.least.min()))


def test_layers_whose_buffers_all_change_are_not_found_one_by_one() -> None:
    model = torch.nn.Sequential(*[Range() for _ in range(8)])
    eager = copy.deepcopy(model)
    compiled = stator.compile(model, backend="eager")
    for call in range(12):
        x = torch.randn(16)
        if call == 5:
            counters.clear()
        assert torch.equal(compiled(x), eager(x))
    assert not counters.counts["frames"]


@pytest.mark.fixed_sizes  # a symbol beside known contents gives unknown contents, at which the graph ends
def test_sizes_computed_from_buffers_that_hold_one_number() -> None:
    model = Padded()
    compiled = stator.compile(model, backend="aot_eager")
    x = torch.randn(2, 6)
    counters.clear()
    assert torch.equal(compiled(x), model(x))
    assert counters.counts["graphs"] == 1 and not counters.counts["graph_breaks"]
    for stride in (3, 4, 5, 2):
        model.stride.fill_(stride)
        assert torch.equal(compiled(x), model(x))


def test_arithmetic_of_numbers_alone_gives_tensors() -> None:
    def computed(x):
        rows = torch.div(x.size(0), 3, rounding_mode="trunc")
        made = torch.add(1, 2), torch.div(7, 2), torch.mul(1.5, 2), torch.sub(2, 1, alpha=3), torch.add(True, 1)
        return x.view(rows, 3, -1), *made, x + torch.add(1, 0.5)

    x = torch.randn(6, 4)
    compiled = stator.compile(computed, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), computed(x), rtol=0, atol=0)


def test_gradients_flow_past_a_table() -> None:
    def repeated(x, grid):
        return (torch.repeat_interleave(x, grid[0]) ** 2).sum()

    table = grids((2, 3))
    ours, theirs = (torch.arange(2.0).requires_grad_() for _ in range(2))
    stator.compile(repeated, backend="aot_eager")(ours, table).backward()
    repeated(theirs, table).backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_the_list_of_a_tensor_of_one_element_is_a_list() -> None:
    def listed(x):
        return x + len(torch.tensor([3]).tolist()), torch.tensor([3]).tolist(), torch.tensor(3).tolist()

    x = torch.randn(2)
    actual, expected = stator.compile(listed, backend="eager")(x), listed(x)
    assert torch.equal(actual[0], expected[0]) and actual[1:] == expected[1:] == ([3], 3)


def apart() -> tuple[torch.Tensor, object]:
    return torch.tensor([2, 3]), torch.tensor([2, 3])


def as_other_dtype() -> tuple[torch.Tensor, object]:
    table = torch.tensor([2, 3])
    return table, table.view(torch.int32)


def as_view() -> tuple[torch.Tensor, object]:
    table = torch.tensor([2, 3])
    return table, table.view(2)


def as_array() -> tuple[torch.Tensor, object]:
    table = torch.tensor([2, 3])
    return table, table.numpy()[:1]


def array_apart() -> tuple[torch.Tensor, object]:
    return torch.tensor([2, 3]), np.array([2])


@pytest.mark.parametrize(
    "makers",
    [(apart, as_view), (apart, as_other_dtype), (array_apart, as_array)],
    ids=["view", "dtype", "array"],
)
@pytest.mark.parametrize("first", [0, 1], ids=["apart first", "together first"])
@pytest.mark.parametrize("looks_before", [False, True])
def test_a_table_that_may_be_written_to_under_another_name(makers, first, looks_before) -> None:
    def decided(table, other):
        before = table.tolist() if looks_before else None
        other += 5
        return (table * 2 if table[0] > 4 else table - 5), before

    compiled = stator.compile(decided, backend="eager")
    for make in (makers[first], makers[1 - first], makers[first]):
        ours, theirs = make(), make()
        actual, expected = compiled(*ours), decided(*theirs)
        assert torch.equal(actual[0], expected[0]) and actual[1] == expected[1]
        assert torch.equal(ours[0], theirs[0])


def test_running_statistics_that_the_graph_moves_are_not_those_from_before() -> None:
    """No schema says that batch normalisation writes to them."""

    def program(x: torch.Tensor, norm: torch.nn.BatchNorm1d) -> torch.Tensor:
        y = norm(x)
        return y + 100 if norm.running_mean[0] > 0.5 else y

    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) + 3
    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        one, other = torch.nn.BatchNorm1d(4, momentum=1.0), torch.nn.BatchNorm1d(4, momentum=1.0)
        torch.testing.assert_close(compiled(x, other), program(x, one))
        torch.testing.assert_close(other.running_mean, one.running_mean)
