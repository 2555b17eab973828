"""`while` loops whose conditions depend on numbers that change between calls: results and gradients equal eager's, and
few versions serve all bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import Counts
from torch import nn

import stator

COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 1, 12, 0, 10, 11)


def counts_up(x: torch.Tensor, count: int) -> torch.Tensor:
    at = 0
    while at < count:
        x = x * 0.5 + at
        at += 1
    return x


def counts_down(x: torch.Tensor, count: int) -> torch.Tensor:
    while count:
        x = x.sin() + count
        count -= 1
    return x


def halves(x: torch.Tensor, count: int) -> torch.Tensor:
    while count > 1:
        x = x * 0.5 + count
        count = count // 2
    return x


def leaves_at_the_end(x: torch.Tensor, count: int) -> torch.Tensor:
    at = 0
    while True:
        x = x * 0.5 + at
        at += 1
        if at >= count:
            break
    return x


def jumps_back_behind_a_test(x: torch.Tensor, count: int) -> torch.Tensor:
    """CPython 3.12 and later make such jumps of every `while`."""
    at = 0
    if at < count:
        while True:
            x = x * 0.5 + at
            at += 1
            if at < count:
                continue
            break
    return x


def jumps_back_behind_two_tests(x: torch.Tensor, count: int) -> torch.Tensor:
    at = 0
    if at < count and count < 100:
        while True:
            x = x * 0.9 + at
            at += 1
            if at < count and count < 100:
                continue
            break
    return x


def jumps_back_behind_a_number(x: torch.Tensor, count: int) -> torch.Tensor:
    if count:
        while True:
            x = x.sin() + count
            count -= 1
            if count:
                continue
            break
    return x


def with_two_conditions(x: torch.Tensor, count: int) -> torch.Tensor:
    at = 0
    while at < count and count < 100:
        x = x * 0.9 + at
        at += 1
    return x


def with_a_branch(x: torch.Tensor, count: int) -> torch.Tensor:
    at = 0
    while at < count:
        at += 1
        if at % 2:
            continue
        x = x * 0.9
    return x


def in_a_function(x: torch.Tensor, count: int) -> torch.Tensor:
    return counts_up(x * 2, count) * 3


def in_another(x: torch.Tensor, count: int) -> torch.Tensor:
    row = 0
    while row < count:
        column = 0
        while column < row:
            x = x + 0.5 * column
            column += 1
        x = x * 0.9
        row += 1
    return x


def in_a_range(x: torch.Tensor, count: int) -> torch.Tensor:
    for turn in range(3):
        at = 0
        while at < count:
            x = x * 0.9 + turn
            at += 1
    return x


def to_a_size(x: torch.Tensor, count: int) -> torch.Tensor:
    rows, at = torch.ones(count, 3), 0
    while at < rows.shape[0]:
        x = x * 0.9 + rows[at]
        at += 1
    return x


def over_sizes(x: torch.Tensor, count: int) -> torch.Tensor:
    total, at = x.sum(), 1
    while at < count:
        total = total + x.repeat(at).sum()
        at += 1
    return total + x


def until_data_says(x: torch.Tensor, count: int) -> torch.Tensor:
    at = 0
    while x.norm() > 0.1 and at < count:
        x = x * 0.5
        at += 1
    return x * at


# with the largest number of versions of the function and of its parts together
PROGRAMS: dict[Callable[..., torch.Tensor], int] = {
    counts_up: 5,
    counts_down: 5,
    halves: 6,
    leaves_at_the_end: 5,
    jumps_back_behind_a_test: 5,
    jumps_back_behind_two_tests: 7,
    jumps_back_behind_a_number: 5,
    with_two_conditions: 7,
    with_a_branch: 10,
    in_a_function: 7,
    in_another: 9,
    in_a_range: 11,
    to_a_size: 6,
    over_sizes: 5,
    until_data_says: 10,
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_few_versions_serve_all_bounds(program: Callable[..., torch.Tensor], backend: str) -> None:
    compiled, counts = stator.compile(program, backend=backend), Counts()
    made = []
    for count in COUNTS:
        x = torch.randn(3, dtype=torch.float64, requires_grad=True)  # sums of many numbers nearly cancel out
        y = x.detach().clone().requires_grad_()
        expected, found = program(x, count), compiled(y, count)
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
        made.append(counts.compilations)
    assert made[-1] <= PROGRAMS[program]
    assert made[-1] == made[-3]


@pytest.mark.fixed_sizes
def test_a_loop_whose_body_needs_its_counter_is_unrolled() -> None:
    layers = [nn.Linear(4, 4) for _ in range(6)]

    def through(x: torch.Tensor, count: int) -> torch.Tensor:
        at = 0
        while at < count:
            x = layers[at](x)
            at += 1
        return x

    compiled = stator.compile(through)
    for count in (2, 4, 6):
        counts, x = Counts(), torch.randn(2, 4)
        torch.testing.assert_close(compiled(x, count), through(x, count))
        assert (counts.breaks, counts.compilations) == (0, 1)


def test_a_whole_graph_unrolls_its_loops() -> None:
    compiled = stator.compile(counts_up, fullgraph=True)
    for count in (2, 3, 5):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, count), counts_up(x, count))


def test_an_error_in_a_turn_is_the_programs() -> None:
    def divides(x: torch.Tensor, count: int) -> torch.Tensor:
        at = 0
        while at < count:
            x = x + 6 // (3 - at)
            at += 1
        return x

    compiled = stator.compile(divides)
    x = torch.randn(3)
    for count in (1, 2, 3, 2):
        torch.testing.assert_close(compiled(x, count), divides(x, count))
    with pytest.raises(ZeroDivisionError, match="division"):
        compiled(x, 5)
    torch.testing.assert_close(compiled(x, 3), divides(x, 3))


@pytest.mark.parametrize("changed", ["item", "attribute"])
def test_counters_outside_of_variables(changed: str) -> None:
    class Counter:
        at: int = 0

    def counts(x: torch.Tensor, count: int) -> tuple[torch.Tensor, Any]:
        counter, numbers = Counter(), [0]
        while (counter.at if changed == "attribute" else numbers[0]) < count:
            x = x * 0.5 + counter.at + numbers[0]
            if changed == "attribute":
                counter.at += 1
            else:
                numbers[0] += 1
        return x, counter.at + numbers[0]

    compiled = stator.compile(counts)
    for count in (2, 3, 4, 5, 6):
        x = torch.randn(3)
        found, expected = compiled(x, count), counts(x, count)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1] == expected[1]


def test_a_number_computed_of_a_number_reaches_a_graph_that_is_left_to_eager() -> None:
    """The text of such a number names symbols, which the graph's Python code does not have."""

    def program(x: torch.Tensor, step: int) -> torch.Tensor:
        return x + 0.5 * step

    compiled = stator.compile(program)
    for step in (1, 2, 3, 4):
        x = torch.randn(3, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(compiled(x, step), program(x, step))
