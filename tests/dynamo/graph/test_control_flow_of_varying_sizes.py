"""torch.cond and loops as graphs of their own, in programs whose sizes change: one version serves them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.scenarios import BACKENDS
from tests.varying_sizes import check_sizes
from torch._higher_order_ops import while_loop

import stator
from stator.base import counters

pytestmark = pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing


def rows(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 4, requires_grad=True), torch.randn(4, requires_grad=True)


def both(program: Any, choose: Any) -> Any:
    """A program that runs both branches."""

    def run(x, weight):
        return program(choose, x, weight, x.sum() > -1e9), program(choose, x, weight, x.sum() > 1e9)

    return run


def as_python(condition: torch.Tensor, true: Any, false: Any, operands: Any) -> Any:
    """`torch.cond`, which in eager mode calls another compiler."""
    return (true if condition else false)(*operands)


def branches(choose, x, weight, condition):
    return choose(condition, lambda x: x * 2, lambda x: x.sin(), (x,))


def uses_its_size(choose, x, weight, condition):
    return choose(condition, lambda x: x / x.shape[0], lambda x: x - len(x) ** 0.5, (x,))


def uses_sizes_from_outside(choose, x, weight, condition):
    rows = x.shape[0]
    return choose(condition, lambda w: w.expand(rows, 4) * x, lambda w: w * torch.ones(rows, 4), (weight,))


def gives_other_sizes(choose, x, weight, condition):
    return choose(condition, lambda x: torch.cat((x, x)).sum(1), lambda x: torch.ones(2 * x.shape[0]) * x[0, 0], (x,))


def of_expressions(choose, x, weight, condition):
    pairs = torch.cat((x, x.cos()))
    return choose(condition, lambda p: (p * weight, p[1:] * 3), lambda p: (p + 1, p[:-1] * 2), (pairs,))


def one_inside_of_another(choose, x, weight, condition):
    def inside(x):
        return choose(x[0, 0] > 0, lambda x: x * weight, lambda x: x * x.shape[0] + weight, (x,))

    return choose(condition, inside, lambda x: x.flip(0) - weight, (x,))


def transposed(choose, x, weight, condition):
    return choose(condition, lambda y: y.tanh(), lambda y: y * 3, (x.t(),)) @ x


@pytest.mark.each_pair
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [
        branches,
        uses_its_size,
        uses_sizes_from_outside,
        gives_other_sizes,
        of_expressions,
        one_inside_of_another,
        transposed,
    ],
    ids=lambda program: program.__name__,
)
def test_branches_of_many_sizes_need_two_versions(program: Any, backend: str, dynamic: bool | None) -> None:
    expected = both(program, as_python)
    check_sizes(both(program, torch.cond), rows, expected=expected, backend=backend, dynamic=dynamic)


def in_python(condition: Any, body: Any, carried: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    while condition(*carried):
        carried = body(*carried)
    return carried


def counts_up(loop, x, limit):
    def body(turn, y):
        return turn + 1, y * 1.5 + y.shape[0]

    return loop(lambda turn, y: turn < limit, body, (torch.zeros((), dtype=torch.int64), x))


def fills_a_buffer(loop, x, limit):
    buffer = torch.zeros(x.shape[0] * 2, 4)

    def body(turn, y):
        return turn + 1, y + torch.cat((x, x)) / len(x)

    return loop(lambda turn, y: y.sum().abs() < limit + turn, body, (torch.ones(()), buffer))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [counts_up, fills_a_buffer])
def test_loops_of_many_sizes_need_two_versions(program: Any, backend: str) -> None:
    def function(x, limit):
        return program(while_loop, x, limit)

    def expected(x, limit):
        return program(in_python, x, limit)

    check_sizes(function, lambda size: (torch.rand(size, 4), torch.tensor(4)), expected=expected, backend=backend)


@pytest.mark.fixed_sizes
def test_code_behind_a_break_knows_which_sizes_changed_before() -> None:
    def program(x: torch.Tensor, scale: int) -> torch.Tensor:
        made = x.sin()
        if x.shape[0] > 8:
            torch._dynamo.graph_break()
            return made * scale + x
        return made - x

    stator.reset()
    compiled = stator.compile(program)
    for rows, scale in ((3, 2), (5, 3), (10, 4)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x, scale), program(x, scale))
    before = counters.counts["dynamo.compiled_frames"]
    for rows, scale in ((12, 4), (9, 4), (17, 4)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x, scale), program(x, scale))
    assert counters.counts["dynamo.compiled_frames"] == before
