"""A backward in captured code frees what its nodes saved, and no more: what else leads to its leaves goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


def _by_a_leaf(x: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad((x * x.sin()).sum(), x)
    return found * x


def _through_what_saves_nothing(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    (found,) = torch.autograd.grad((y * y.sin()).sum(), x)
    return found * y


def _by_a_value(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    (found,) = torch.autograd.grad((y * y.sin()).sum(), y)
    return found * y


def _through_what_was_freed(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    (found,) = torch.autograd.grad((y * y.sin()).sum(), x)
    return found * y


@pytest.mark.parametrize(
    "function",
    [_by_a_leaf, _through_what_saves_nothing, _by_a_value, _through_what_was_freed],
    ids=lambda f: f.__name__,
)
def test_as_in_eager(function: Callable[..., Any]) -> None:
    def look(call: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
        result = call(x)
        try:
            return result.detach(), *torch.autograd.grad(result.sum(), x, allow_unused=True)
        except RuntimeError as error:
            return str(error).partition("(")[0]

    found, wanted = look(stator.compile(function, backend="aot_eager")), look(function)
    if isinstance(wanted, str):
        assert found == wanted
    else:
        torch.testing.assert_close(found, wanted)
