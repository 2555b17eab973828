"""`torch.ops.higher_order` called directly and torch.cond under transforms end the graph. Branches may transform."""

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
    return operators.cond(x.sum() > 0, lambda a: (a.sin(), a + 1), lambda a: (a.cos(), a - 1), (x * 2,))


def looped(x: torch.Tensor) -> Any:
    start = (torch.tensor(0), x.detach())
    return operators.while_loop(lambda i, a, k: i < k.sum(), lambda i, a, k: (i + 1, a * 2), start, (SCALE,))


def scanned(x: torch.Tensor) -> Any:
    return operators.scan(lambda carry, row, m: (carry + row * m, carry * 2), [x[0]], [x], (SCALE,))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [chosen, looped, scanned])
def test_operators_called_directly_give_what_plain_torch_gives(
    program: Callable[[torch.Tensor], Any], backend: str
) -> None:
    compiled = stator.compile(program, backend=backend)
    for sign in (1.0, -1.0):
        x = torch.linspace(0.1, 1, 6).reshape(3, 2) * sign
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: vmap(lambda a: torch.cond(a.sum() > 0, lambda b: b.sin(), lambda b: b.cos(), (a,)))(x),
        lambda x: grad(lambda a: torch.cond(a.sum() > 0, lambda b: b.sum(), lambda b: b.prod(), (a,)))(x),
    ],
)
def test_what_is_not_followed_under_transforms_says_so(program: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(Unsupported, match=r"torch\.cond under"):
        stator.compile(program, backend="eager", fullgraph=True)(torch.ones(3, 2))


def test_cond_under_vmap_gives_what_plain_torch_gives() -> None:
    def program(x: torch.Tensor) -> Any:
        return vmap(lambda a: torch.cond(a.sum() > 0, lambda b: b.sin(), lambda b: b.cos(), (a,)))(x)

    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(stator.compile(program, backend="eager")(x), program(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_branches_may_transform_functions_of_tensors_without_gradients(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: grad(lambda b: b.sin().sum())(a), lambda a: vmap(torch.exp)(a), (x,))

    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for x in (torch.ones(3, 2), -torch.ones(3, 2)):
        expected = x.cos() if x.sum() > 0 else x.exp()
        torch.testing.assert_close(compiled(x), expected)


def test_associative_scan_is_followed() -> None:
    def program(gates: torch.Tensor, x: torch.Tensor) -> Any:
        def combine(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        return torch._higher_order_ops.associative_scan(combine, (gates, x), dim=1, combine_mode="generic")

    gates, x = torch.rand(2, 5, 3), torch.randn(2, 5, 3)
    actual = stator.compile(program, backend="eager", fullgraph=True)(gates, x)
    torch.testing.assert_close(actual, program(gates, x))
