"""Sizes that programs read from small tensors, such as the grids of images: one program for all of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.differential import Counts
from tests.varying_sizes import check_sizes

import stator


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
