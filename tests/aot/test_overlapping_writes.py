"""Writes to memory that the operator reads elsewhere, too: eager refuses them, or goes by the order of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
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
    message, x = outcome(program)
    assert bool(message) == (name in REFUSED)
    ours, y = outcome(stator.compile(program, backend="aot_eager", dynamic=dynamic))
    assert ours == message and torch.equal(x, y)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", APART)
def test_parts_that_lie_apart_stay_in_the_graph(name: str, dynamic: bool | None) -> None:
    program = APART[name]
    assert torch.equal(
        outcome(stator.compile(program, backend="aot_eager", dynamic=dynamic, fullgraph=True))[1], outcome(program)[1]
    )
