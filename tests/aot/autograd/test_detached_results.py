"""Autograd's facts of results that are `detach()` of an input or of a view of it are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import EXACT
from tests.scenarios import check

Tensor = torch.Tensor
KINDS: dict[str, Callable[[], Tensor]] = {
    "leaf": lambda: torch.arange(6.0).view(2, 3).requires_grad_(),
    "with history": lambda: torch.arange(6.0).view(2, 3).requires_grad_() * 2,
    "view": lambda: (torch.arange(6.0).view(2, 3).requires_grad_() * 2)[:],
    "plain": lambda: torch.arange(6.0).view(2, 3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grad", [False, True])
def test_what_autograd_knows(kind: str, grad: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.detach(), x.view(-1).detach(), x[0].detach().detach(), x.view(-1), x + x

    def scenario(compiled: Any) -> Any:
        with torch.set_grad_enabled(grad):
            x = KINDS[kind]()
            results = compiled(program)(x)
            known = [(one.requires_grad, one.is_leaf, one._is_view()) for one in results]
        return known, [one.untyped_storage()._cdata == x.untyped_storage()._cdata for one in results]

    check(scenario, "aot_eager", whole=True)


@pytest.mark.parametrize("grad", [False, True])
def test_history_written_to_a_detached_result_is_not_the_inputs(grad: bool) -> None:
    def scenario(compiled: Any) -> Any:
        x, factor = torch.ones(3), torch.full((3,), 2.0, requires_grad=True)
        with torch.set_grad_enabled(grad):
            detached, _ = compiled(lambda x: (x.detach(), x + 1))(x)
        detached.mul_(factor)
        assert detached.requires_grad and not x.requires_grad
        return x

    check(scenario, "aot_eager", whole=True, tolerance=EXACT)


def _before(x: Tensor) -> tuple[Tensor, ...]:
    d = x.detach()
    return d[1], d, x + 1


VIEWS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "of an input": lambda x: (d := x.detach(), d[0], x + 1),
    "of a view": lambda x: (d := x.view(-1).detach(), d[1:4], x + 1),
    "twice": lambda x: (d := x.detach(), v := d[:, 1:], v, v.t(), x + 1),
    "of a result": lambda x: (y := x.sin(), d := y.detach(), d[0], y * 2),
    "before the tensor that they are of": _before,
}


@pytest.mark.parametrize("at", range(2))
@pytest.mark.parametrize("name", VIEWS)
def test_history_written_to_a_detached_result_is_that_of_its_views(name: str, at: int) -> None:
    """And history written to a view is that of its base."""

    def scenario(compiled: Any) -> Any:
        x, factor = torch.linspace(0, 1, 6).reshape(2, 3).requires_grad_(), torch.tensor(2.0, requires_grad=True)
        results = compiled(VIEWS[name])(x)
        [one for one in results if not one.requires_grad][at].mul_(factor)
        sum((one * one).sum() for one in results if one.requires_grad).backward()
        found = [(one.requires_grad, one.is_leaf, one._is_view(), one._version) for one in results]
        return found, x.grad, factor.grad, [one.detach() for one in results]

    check(scenario, "aot_eager", whole=True, tolerance=EXACT)
