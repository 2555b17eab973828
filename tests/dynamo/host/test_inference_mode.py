"""Frames that run under torch.inference_mode, with normal and with inference tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator
from stator.base import counters

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "views": lambda x: x.view(-1)[1:].unsqueeze(0) * 2,
    "writes": lambda x: x.add_(1).t().mul_(2),
    "write through a view": lambda x: x[0].fill_(3).sum() + x.sum(),
    "new tensors": lambda x: torch.tensor([1.0, 2.0]).sum() + x.sum(),
    "mode is seen": lambda x: x + (1 if torch.is_inference_mode_enabled() else 2),
    "gradients are off": lambda x: x + (1 if torch.is_grad_enabled() else 2),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("inference_input", [False, True])
def test_equal_to_eager(program: str, inference_input: bool, backend: str) -> None:
    function = PROGRAMS[program]
    compiled = stator.compile(lambda x: function(x), fullgraph=True, backend=backend)
    with torch.inference_mode(inference_input):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
        y = x.clone()
    with torch.inference_mode():
        actual, expected = compiled(x), function(y)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(x, y)
        assert actual.is_inference() == expected.is_inference()


def test_leaving_inference_mode_compiles_anew() -> None:
    linear = torch.nn.Linear(3, 3)
    compiled = stator.compile(linear)
    x = torch.randn(2, 3)
    with torch.inference_mode():
        assert not compiled(x).requires_grad
    compiled(x).sum().backward()
    torch.testing.assert_close(linear.weight.grad, x.sum(0).expand(3, 3))


@torch.inference_mode()
def predicts(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def under_it_already(x: torch.Tensor) -> torch.Tensor:
    y = predicts(x)
    with torch.inference_mode():
        torch.set_grad_enabled(True)
        y = y + 1
    return y * (2 if torch.is_grad_enabled() else 3)


def ends_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x + 1
        stator.graph_break()
        y = y * 2
    return y - 1


def turned_off(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False):
        return x * 2


@pytest.mark.parametrize("function", [under_it_already, ends_inside, turned_off])
@pytest.mark.parametrize("outer", ["normal", "no_grad", "inference"])
def test_blocks_that_change_the_mode(function: Callable[[torch.Tensor], torch.Tensor], outer: str) -> None:
    """The graph ends there; what was made inside is of the kind that eager makes."""
    stator.reset()
    compiled = stator.compile(function, backend="eager")
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with {"normal": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[outer]():
        for _ in range(2):
            actual, expected = compiled(x), function(x)
            assert torch.equal(actual, expected) and actual.is_inference() == expected.is_inference()


def one_block(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    with torch.inference_mode():
        z = (y + 1).sin()
    return y + 1, z


def test_a_block_that_changes_the_mode_ends_the_graph_at_both_ends() -> None:
    stator.reset()
    compiled = stator.compile(one_block, backend="eager")
    x = torch.randn(3, 4, requires_grad=True)
    counters.clear()
    for actual, expected in zip(compiled(x), one_block(x), strict=True):
        assert torch.equal(actual, expected) and actual.is_inference() == expected.is_inference()
        assert actual.requires_grad == expected.requires_grad
    assert counters.counts["graph_breaks"] == 2 and counters.counts["graphs"] == 3


def fails_inside(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    with torch.inference_mode():
        y = y * 2
        raise ValueError("inside")


def test_an_exception_leaves_the_block() -> None:
    stator.reset()
    compiled = stator.compile(fails_inside, backend="eager")
    for mode in (False, True):
        with torch.inference_mode(mode):
            for _ in range(2):
                with pytest.raises(ValueError, match="inside"):
                    compiled(torch.ones(3))
                assert torch.is_inference_mode_enabled() is mode and torch.is_grad_enabled() is not mode
