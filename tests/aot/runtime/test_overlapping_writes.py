"""Writes to memory that the operator reads elsewhere, too: eager refuses them, or goes by the order of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.threads import threads
from torch.nn import functional as F

import stator

Program = Callable[[torch.Tensor], Any]

REFUSED: dict[str, Program] = {
    "add_": lambda x: x[1:].add_(x[:-1]),
    "add_ of a transposed tensor": lambda x: x.add_(x.t()),
    "mul_ by an element": lambda x: x.mul_(x[0, 0]),
    "copy_": lambda x: x[1:].copy_(x[:-1]),
    "assignment": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "an expanded tensor": lambda x: x[:1].expand(4, 4).add_(1),
    "out=": lambda x: torch.add(x[1:], x[1:], out=x[:-1]),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, 1, 2]),), x[1:]),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0, 1, 2]), x[1:]),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(3, 4, dtype=torch.long), x[1:]),
    "cat": lambda x: torch.cat([x[:1], x[1:]], out=x),
    "a list of tensors": lambda x: torch._foreach_add_([x[1:]], [x[:-1]]),
}
IN_ORDER: dict[str, Program] = {
    "columns": lambda x: x[:, 1:].sub_(x[:, :-1]),
    "a product": lambda x: torch.mm(x, x.t(), out=x),
    "a reduction": lambda x: torch.mean(x, 1, out=x[:, 0]),
    "tensors that change places": lambda x: torch._foreach_mul_([x[0], x[1]], [x[1], x[0]]),
    "one tensor twice": lambda x: torch._foreach_add_([x, x], 1),
    "statistics of several channels": lambda x: F.batch_norm(x, x[0, :1].expand(4), torch.ones(4), training=True),
    "statistics in one place": lambda x: F.batch_norm(torch.eye(4), x[0], x[0], training=True),
    "statistics that are read": lambda x: x[2:].copy_(F.batch_norm(x, x[0], x[1], training=True)[:2]),
}
APART: dict[str, Program] = {
    "statistics in one buffer": lambda x: F.batch_norm(torch.eye(4), x[0], x[1], training=True),
    "itself": lambda x: x.add_(x),
    "rows": lambda x: x[0].add_(x[1]),
    "columns": lambda x: x[:, :2].copy_(x[:, 2:]),
    "interleaved": lambda x: x[:, ::2].add_(x[:, 1::2]),
    "lists step for step": lambda x: torch._foreach_add_([x[0], x[1]], [x[0], x[2]]),
}


# Some of several views of one element are left out, and the rest is written to
COPIES: dict[str, Program] = {
    "the second": lambda x: x.expand(2, 4, 4)[1].mul_(2),
    "all but the first": lambda x: x.expand(3, 4, 4)[1:].zero_(),
    "those on the diagonal": lambda x: x[0].expand(4, 4).diagonal().mul_(2),
    "the last window": lambda x: x[0].unfold(0, 3, 1)[1].mul_(2),
    "a row of as_strided": lambda x: x.as_strided((3, 4), (0, 1))[2].mul_(2),
    "a column": lambda x: x.expand(2, 4, 4)[0, :, 1].mul_(2),
}


def outcome(program: Program) -> tuple[str, torch.Tensor]:
    x = torch.arange(16.0).reshape(4, 4) + 1
    try:
        program(x)
    except RuntimeError as error:
        return str(error).partition("\n")[0], x
    return "", x


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", [*REFUSED, *IN_ORDER])
def test_what_eager_refuses_or_does_in_order(name: str, dynamic: bool | None) -> None:
    program = (REFUSED | IN_ORDER)[name]
    with threads(1):  # several would go through the channels of a batch at the same time
        message, x = outcome(program)
        assert bool(message) == (name in REFUSED)
        ours, y = outcome(stator.compile(program, backend="aot_eager", dynamic=dynamic))
    assert ours == message and torch.equal(x, y)


@pytest.mark.parametrize("name", COPIES)
def test_writes_to_some_of_several_views_of_an_element(name: str) -> None:
    expected, found = outcome(COPIES[name]), outcome(stator.compile(COPIES[name], backend="aot_eager"))
    assert found[0] == expected[0] == "" and torch.equal(found[1], expected[1])


@pytest.mark.parametrize(
    "name", [name for name in COPIES if name != "all but the first"]
)  # autograd refuses all but the first
def test_gradients_of_writes_to_some_of_several_views(name: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        written = x.sin()
        COPIES[name](written)
        return written * x

    found = []
    for run in (program, stator.compile(program, backend="aot_eager")):
        x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()
        result = run(x)
        (gradient,) = torch.autograd.grad(result.square().sum(), x)
        found.append((result, gradient))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", APART)
def test_parts_that_lie_apart_stay_in_the_graph(name: str, dynamic: bool | None) -> None:
    program = APART[name]
    assert torch.equal(
        outcome(stator.compile(program, backend="aot_eager", dynamic=dynamic, fullgraph=True))[1], outcome(program)[1]
    )
