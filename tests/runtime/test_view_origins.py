"""Views that compiled code hands out may be written to exactly where eager's may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator


def of_several(x: torch.Tensor) -> torch.Tensor:
    return x.unbind(0)[1]


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.view(-1)


def outcome(program: Callable[[torch.Tensor], torch.Tensor]) -> str:
    view = program(torch.ones(2, 2, requires_grad=True) * 1)
    with pytest.raises(RuntimeError, match="is being modified inplace") as raised:
        view.mul_(2)
    return type(raised.value).__name__


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [of_several, without_gradients])
def test_views_that_may_not_be_written_to(program: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    assert outcome(program) == outcome(stator.compile(program, backend=backend))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_writing_to_one_of_several_views_behind_a_graph_raises(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        first, _ = y.unbind(0)
        first.add_(1)
        return y

    with pytest.raises(RuntimeError, match="view and is being modified inplace"):
        stator.compile(program, backend=backend)(torch.ones(2, requires_grad=True))


def test_a_view_that_may_be_written_to_stays_one() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    y = x * 1
    view = stator.compile(lambda y: y[0], backend="aot_eager")(y)
    view.mul_(3)
    y.sum().backward()
    assert torch.equal(x.grad, torch.tensor([[3.0, 3.0], [1.0, 1.0]]))
