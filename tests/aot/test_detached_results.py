"""Results that are `detach()` of an input, or of a view of it: what autograd knows of them is what eager says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator

Tensor = torch.Tensor
KINDS: dict[str, Callable[[], Tensor]] = {
    "leaf": lambda: torch.arange(6.0).view(2, 3).requires_grad_(),
    "with history": lambda: torch.arange(6.0).view(2, 3).requires_grad_() * 2,
    "view": lambda: (torch.arange(6.0).view(2, 3).requires_grad_() * 2)[:],
    "plain": lambda: torch.arange(6.0).view(2, 3),
}


def _known(x: Tensor, results: tuple[Tensor, ...]) -> list[tuple[bool, ...]]:
    same = x.untyped_storage()._cdata
    return [(one.requires_grad, one.is_leaf, one._is_view(), one.untyped_storage()._cdata == same) for one in results]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grad", [False, True])
def test_what_autograd_knows(kind: str, grad: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.detach(), x.view(-1).detach(), x[0].detach().detach(), x.view(-1), x + x

    with torch.set_grad_enabled(grad):
        x, y = KINDS[kind](), KINDS[kind]()
        expected = _known(x, program(x))
        assert _known(y, stator.compile(program, backend="aot_eager", fullgraph=True)(y)) == expected


@pytest.mark.parametrize("grad", [False, True])
def test_history_written_to_a_detached_result_is_not_the_inputs(grad: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.detach(), x + 1

    for run in (program, stator.compile(program, backend="aot_eager", fullgraph=True)):
        x, factor = torch.ones(3), torch.full((3,), 2.0, requires_grad=True)
        with torch.set_grad_enabled(grad):
            detached, _ = run(x)
        detached.mul_(factor)
        assert detached.requires_grad and not x.requires_grad
        assert x.tolist() == [2.0] * 3
