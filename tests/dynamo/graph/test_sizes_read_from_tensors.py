"""Sizes that programs read from small tensors, such as the grids of images: one program for all of them."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.differential import Counts
from tests.varying_sizes import check_sizes

import stator
from stator.base import logs


def viewed(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    parts = x.split([height * width for height, width in grid])
    images = [part.view(height, width, 4) for part, (height, width) in zip(parts, grid, strict=True)]
    return torch.cat([image.permute(2, 0, 1).flatten(1) * 2 for image in images], 1)


def merged(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    parts = []
    for part, (height, width) in zip(torch.split(x, grid.prod(-1).tolist()), grid.tolist(), strict=True):
        image = part.view(height, width, 4).permute(2, 0, 1).unsqueeze(0)
        parts.append(F.unfold(image, kernel_size=2, stride=2).view(16, -1).t())
    return torch.cat(parts)


def positions(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    found = []
    for height, width in grid.tolist():
        rows = torch.arange(height).unsqueeze(1).expand(-1, width)
        rows = rows.reshape(height // 2, 2, width // 2, 2).permute(0, 2, 1, 3).flatten()
        columns = torch.arange(width).unsqueeze(0).expand(height, -1).reshape(-1)
        found.append(torch.stack([rows, columns], -1).repeat(2, 1))
    return x.sum() + torch.cat(found)


def attended(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    parts = [part[None, None] for part in torch.split(x, grid.prod(-1).tolist())]
    return torch.cat([F.scaled_dot_product_attention(part, part, part) for part in parts], 2)


def resized(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    table = x[:6].t().reshape(1, 4, 2, 3)
    parts = [F.interpolate(table, size=(h, w), mode="bilinear").flatten(2) for h, w in grid.tolist()]
    return torch.cat(parts, 2)


def cut(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    parts = x.tensor_split(grid[0]) + torch.tensor_split(x, tensor_indices_or_sections=grid[1], dim=-1)
    return torch.stack([part.sum() for part in parts])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", [viewed, merged, positions, attended, resized, cut], ids=lambda one: one.__name__)
def test_one_program_for_all_grids(program, backend: str) -> None:
    def make(size: int) -> list[torch.Tensor]:
        grid = torch.tensor([[size, 4], [6, size + 2]])
        stator.mark_static(grid)  # lists have fixed lengths
        return [torch.randn(int(grid.prod(-1).sum()), 4), grid]

    check_sizes(program, make, sizes=(4, 8, 2, 12), dynamic=True, backend=backend, versions=1)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("program", [merged, positions, attended], ids=lambda one: one.__name__)
def test_the_second_grid_makes_the_program_for_all(program) -> None:
    def make(size: int) -> list[torch.Tensor]:
        grid = torch.tensor([[size, 4], [6, size + 2]])
        stator.mark_static(grid)  # lists have fixed lengths
        return [torch.randn(int(grid.prod(-1).sum()), 4), grid]

    check_sizes(program, make, sizes=(4, 8, 2, 12), versions=2)


def frames(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    parts = x.split([count * height * width for count, height, width in grid.tolist()])
    shaped = [part.view(*sizes, 4) for part, sizes in zip(parts, grid.tolist(), strict=True)]
    return torch.cat([part.permute(0, 2, 1, 3).reshape(-1, 4) * 2 for part in shaped])


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("dynamic", [None, True])
def test_images_of_one_frame_fail_no_graph(dynamic: bool | None) -> None:
    """A number of one is a constant until it changes, because a graph for all numbers relies on more."""
    compiled = stator.compile(frames, backend="aot_eager", dynamic=dynamic)
    counts, versions = Counts(), []
    for height, width, count in ((4, 6, 1), (8, 2, 1), (3, 5, 1), (7, 2, 1), (5, 3, 2), (6, 4, 3)):
        grid = torch.tensor([[count, height, width], [1, width, 4]])
        x = torch.randn(int(grid.prod(-1).sum()), 4)
        assert torch.equal(compiled(x, grid), frames(x, grid))
        versions.append(counts.compilations)
    assert not counts["dynamo.failed_graphs"]
    assert versions == ([1, 1, 1, 1, 2, 2] if dynamic else [1, 2, 2, 2, 3, 3])


def test_a_number_of_one_that_the_frame_has_written() -> None:
    def program(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        grid += 1
        first, second = grid.tolist()
        return x[:first] * second

    compiled = stator.compile(program, backend="aot_eager", dynamic=True)
    for first, second in ((1, 1), (1, 3), (0, 1), (2, 0)):
        x = torch.randn(6)
        assert torch.equal(compiled(x, torch.tensor([first, second])), program(x, torch.tensor([first, second])))


def padded(x: torch.Tensor, amounts: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    left, right = amounts.tolist()
    return F.conv1d(F.pad(x, (left, right)), weight)


def test_amounts_of_padding_may_be_zero_and_negative() -> None:
    def make(size: int) -> list[torch.Tensor]:
        amounts = torch.tensor([size - 2, 3 - size])
        stator.mark_static(amounts)
        return [torch.randn(2, 3, 9), amounts, torch.randn(4, 3, 3)]

    counts = Counts()
    check_sizes(padded, make, sizes=(4, 2, 3, 9, 1), dynamic=True, versions=1)
    assert not counts["dynamo.failed_graphs"]


def means(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.stack([(part * 2 + 1).mean(0) for part in x.split(lengths.tolist())])


def sums(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    found, start = [], 0
    for length in lengths.tolist():
        found.append((x[start : start + length] * 2).sum(0))
        start += length
    return torch.stack(found)


def normed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    parts = torch.split(x.relu(), lengths.tolist())
    return torch.cat(parts) + torch.cat(list(parts)[::-1]).mean()


def grown(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return sum(part.sum() for part in (*x.split(lengths.tolist()), x))


@pytest.mark.parametrize("program", [means, sums, normed, grown], ids=lambda one: one.__name__)
def test_how_many_numbers_there_are_may_change(program) -> None:
    """From the third number of lengths on, the graph ends where the program lists them."""

    def check(count: int) -> None:
        lengths = torch.randint(1, 5, (count,))
        check_equal(compiled, program, torch.randn(int(lengths.sum()), 3), lengths)

    compiled = stator.compile(program, backend="aot_eager")
    for count in (3, 2, 4, 6, 7, 1, 12, 5):
        check(count)
    counts = Counts()
    for count in (9, 11, 3, 4, 10, 8):
        check(count)
    assert counts.compilations == 0


def check_equal(compiled, program, *arguments: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(*arguments), program(*arguments))


def test_the_log_says_why_the_graph_ends_at_the_third_length(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "_enabled", {"graph_breaks"})
    compiled = stator.compile(means, backend="aot_eager")
    with caplog.at_level("INFO", logger="stator.graph_breaks"):
        for count in (3, 2, 4):
            check_equal(compiled, means, torch.randn(2 * count, 3), torch.full((count,), 2))
    first = caplog.messages[0]
    assert first.startswith("varying-length: Tensor.tolist() on a tensor of shape (s") and "(lengths)" in first
    assert f"line {means.__code__.co_firstlineno + 1}, in means" in first


def of_each_row(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(grid.shape[0], 30, 2)
    for row in range(grid.shape[0]):
        height, width = grid[row].tolist()
        out[row, : height * width] = F.interpolate(x, size=(height, width)).reshape(2, height * width).t()
    return out


def test_a_loop_over_rows_that_are_read_serves_any_number_of_them() -> None:
    """Where a row begins in its memory needs no value of the row's number."""
    compiled, counts = stator.compile(of_each_row, backend="aot_eager"), Counts()
    compiled_before = []
    for count in (2, 3, 5, 1, 4, 7, 6, 8, 2, 9):
        check_equal(compiled, of_each_row, torch.randn(1, 2, 8, 8), torch.randint(2, 5, (count, 2)))
        compiled_before.append(counts.compilations)
    assert len({*compiled_before[4:]}) == 1


def test_a_full_graph_has_a_version_for_each_number_of_lengths() -> None:
    compiled = stator.compile(means, backend="aot_eager", fullgraph=True)
    counts = Counts()
    for count in (3, 2, 4, 5, 3, 2):
        check_equal(compiled, means, torch.randn(2 * count, 3), torch.full((count,), 2))
    assert counts.compilations == 4


def summed(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    found = torch.zeros(3)
    for part in parts:
        found = found + (part * 2).sum(0)
    return found + parts[0].sum() + len(parts)


def joined(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([*parts, parts[0] * 2]) + torch.cat(parts + parts[:1])


@pytest.mark.parametrize("program", [summed, joined], ids=lambda one: one.__name__)
def test_tuples_of_any_length(program) -> None:
    compiled = stator.compile(program, backend="aot_eager")
    for count in (2, 3, 4, 5, 1, 6):
        check_equal(compiled, program, tuple(torch.randn(2, 3) for _ in range(count)))
    counts = Counts()
    for count in (7, 8, 9, 10, 2):
        check_equal(compiled, program, tuple(torch.randn(2, 3) for _ in range(count)))
    assert counts.compilations == 0


def test_numbers_of_arguments_have_versions() -> None:
    def total(*parts: torch.Tensor) -> torch.Tensor:
        return torch.stack(parts).sum(0) * 2

    compiled = stator.compile(total, backend="aot_eager")
    counts = Counts()
    for count in (1, 2, 3, 4):
        check_equal(compiled, total, *(torch.randn(3) for _ in range(count)))
    assert counts.breaks == 0 and counts.compilations == 4
