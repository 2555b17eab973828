"""`torch.ops.higher_order` called directly, torch.cond under vmap, and transforms in its branches: one graph, and what
plain torch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, vmap

import stator
from stator.base.errors import Unsupported

operators = torch.ops.higher_order
SCALE = torch.tensor([2.0, 3.0])


def chosen(x: torch.Tensor) -> Any:
    return operators.cond(x.sum() > 0, lambda a: (a.sin(), a + 1), lambda a: (a.cos(), a - 1), (x,))


def chosen_by_python(x: torch.Tensor) -> Any:
    return operators.cond(x.shape[0] > 2, lambda a: (a.sin(),), lambda a: (a.cos(),), (x,))


def looped(x: torch.Tensor) -> Any:
    start = (torch.tensor(0), x.detach())
    return operators.while_loop(lambda i, a, k: i < k.sum(), lambda i, a, k: (i + 1, a * 2), start, (SCALE,))


def scanned(x: torch.Tensor) -> Any:
    return operators.scan(lambda carry, row, m: (carry + row * m, carry * 2), [x[0]], [x], (SCALE,))


def scanned_in_pairs(x: torch.Tensor) -> Any:
    return operators.associative_scan(lambda a, b: (a * b,), [x], ())


def mapped(x: torch.Tensor) -> Any:
    return operators.map_impl(lambda row, other: (row.sin() * other, row), (x,), (x[0],))


def chosen_for_each_sample(x: torch.Tensor) -> Any:
    def one(row: torch.Tensor) -> Any:
        return operators.cond(row.sum() > 0, lambda a: (a.sin(),), lambda a: ((a - a).sqrt(),), (row,))

    return vmap(one)(x), vmap(one, in_dims=1, out_dims=1)(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "program", [chosen, chosen_by_python, looped, scanned, scanned_in_pairs, mapped, chosen_for_each_sample]
)
def test_in_one_graph_as_in_plain_torch(program: Callable[[torch.Tensor], Any], backend: str) -> None:
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for sign in (1.0, -1.0):
        x = torch.linspace(0.1, 1, 6).reshape(3, 2).requires_grad_() * sign
        found = []
        for function in (compiled, program):
            leaves = torch.utils._pytree.tree_leaves(function(x))
            able = [leaf for leaf in leaves if leaf.requires_grad]
            found.append([*leaves, *(torch.autograd.grad(sum(leaf.sum() for leaf in able), x) if able else ())])
        torch.testing.assert_close(found[0], found[1], equal_nan=True)


def test_cond_under_vmap_takes_both_branches() -> None:
    def program(x: torch.Tensor) -> Any:
        return vmap(lambda a: torch.cond(a.sum() > 0, lambda b: {"r": b.sin()}, lambda b: {"r": b.cos()}, (a,)))(x)

    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    expected = torch.where(x.sum(1, keepdim=True) > 0, x.sin(), x.cos())
    assert torch.equal(stator.compile(program, backend="eager", fullgraph=True)(x)["r"], expected)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: vmap(lambda a: torch.cond(SCALE.sum() > 0, lambda b: b.sin(), lambda b: b.cos(), (a,)))(x),
        lambda x: vmap(lambda a: torch.cond(a.sum() > 0, lambda b: (b, b), lambda b: (b, b), (a,)))(x),
        lambda x: grad(lambda a: torch.cond(a.sum() > 0, lambda b: b.sum(), lambda b: b.prod(), (a,)))(x),
    ],
)
def test_what_is_not_followed_under_transforms_says_so(program: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(Unsupported, match=r"torch\.cond under"):
        stator.compile(program, backend="eager", fullgraph=True)(torch.ones(3, 2))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_branches_may_transform_functions_of_tensors_without_gradients(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: grad(lambda b: b.sin().sum())(a), lambda a: vmap(torch.exp)(a), (x,))

    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for x in (torch.ones(3, 2), -torch.ones(3, 2)):
        expected = x.cos() if x.sum() > 0 else x.exp()
        torch.testing.assert_close(compiled(x), expected)
