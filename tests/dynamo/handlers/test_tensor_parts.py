"""split, chunk and tensor_split where the number of parts changes from call to call."""

from __future__ import annotations

import pytest
import torch
from tests.differential import FUSED, Counts, assert_same

import stator

SIZES = (16, 24, 40, 64, 100, 33, 80, 8, 17, 72, 56, 121)


def over_pieces(x):
    total = x.new_zeros(4)
    for part in x.split(8):
        total = total + (part * 2).tanh().sum(0)
    return total


def function_of_pieces(x):
    return torch.cat([part.tanh() * 2 for part in torch.split(x, split_size_or_sections=8, dim=0)])


def over_sections(x):
    return torch.stack([(part * 2).tanh().sum(0) for part in x.chunk(max(1, x.shape[0] // 3))])


def function_of_sections(x):
    return torch.stack([part.sum(0) for part in torch.chunk(x, x.shape[0] // 4 + 1)])


def over_even_sections(x):
    total = 0
    for part in torch.tensor_split(x, x.shape[0] // 4 + 1):
        total = total + (part * 2).tanh().sum(0)
    return total


def method_of_even_sections(x):
    return torch.stack([part.sum(0) for part in x.tensor_split(x.shape[0] // 4 + 1, dim=0)])


PROGRAMS = [
    *(over_pieces, function_of_pieces, over_sections, function_of_sections, over_even_sections),
    method_of_even_sections,
]


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_changing_number_of_parts_needs_a_few_versions(program) -> None:
    compiled = stator.compile(program, backend="eager")
    counts = Counts()
    for size in SIZES:
        x = torch.randn(size, 4)
        assert_same(compiled(x), program(x), FUSED)
    before = counts.compilations
    for size in (48, 96, 19, 88, 9, 150, 41):
        x = torch.randn(size, 4)
        assert_same(compiled(x), program(x), FUSED)
    assert counts.compilations == before
    assert counts["dynamo.recompile_limit"] == 0


def in_two(x):
    first, second = x.split(8)
    return first.sum(0) + second.mean(0) * x.shape[0]


def in_threes(x):
    return [part * 2 for part in x.chunk(3)]


@pytest.mark.parametrize(("program", "sizes"), [(in_two, range(9, 17)), (in_threes, range(7, 17, 2))])
def test_a_number_that_the_program_knows_breaks_no_graph(program, sizes) -> None:
    compiled = stator.compile(program, backend="eager")
    counts = Counts()
    for size in sizes:
        x = torch.randn(size, 4)
        assert_same(compiled(x), program(x), FUSED)
    assert counts["graph_breaks"] == 0
