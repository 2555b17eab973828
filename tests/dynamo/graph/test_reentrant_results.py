"""Reentrant checkpoints that return tensors inside of other objects, which require no grad, end the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import stator

OUTER = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()


@dataclass
class Both:
    first: torch.Tensor
    count: int


def in_a_dictionary(a):
    return a.sin(), {"b": a.cos(), "n": 3}


def in_a_list_beside_an_argument(a):
    return a.sin(), [a.cos(), (a * 2,), a]


def in_a_dataclass(a):
    return a.exp(), Both(a.sin(), 2)


def alone_in_a_list(a):
    return [a.sin(), a.cos()]


def from_outside(a):
    return a.sin(), {"outer": OUTER, "made": OUTER * 2}


FUNCTIONS = [in_a_dictionary, in_a_list_beside_an_argument, in_a_dataclass, alone_in_a_list, from_outside]


def tensors(result: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    leaves += [part for leaf in leaves if isinstance(leaf, Both) for part in vars(leaf).values()]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_results_and_gradients(function: Callable[..., Any], backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return checkpoint(function, x, use_reentrant=True)

    def run(called: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        x, OUTER.grad = torch.randn(3, 4, requires_grad=True), None
        found = tensors(called(x))
        total = sum((one * (at + 1)).sum() for at, one in enumerate(found) if one.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
        return [*((one.detach(), one.requires_grad) for one in found), x.grad, OUTER.grad]

    compiled = stator.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(run(compiled), run(program))


def test_one_tensor_returned_in_both_ways() -> None:
    def program(x: torch.Tensor) -> Any:
        def part(a):
            b = a.sin()
            return b, [b]

        made, (same,) = checkpoint(part, x, use_reentrant=True)
        return made * 2, made is same, same.requires_grad

    x = torch.randn(3, requires_grad=True)
    found, wanted = stator.compile(program, backend="eager")(x), program(x)
    assert torch.equal(found[0], wanted[0]) and found[1:] == wanted[1:]
