"""What a backward computes again has the bits that it had in the forward, whose loops were others.

Gradients of extrema ask whether the two are equal.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "sin": lambda x, at: x.scatter_reduce(1, at, x.sin(), "amax"),
    "far sin": lambda x, at: x.scatter_reduce(1, at, (x * 30000).sin(), "amin"),
    "exp": lambda x, at: x.scatter_reduce(1, at, x.exp(), "amax"),
    "tanh": lambda x, at: x.scatter_reduce(1, at, x.tanh(), "amax", include_self=False),
    "sigmoid": lambda x, at: x.index_reduce(1, at[0], x.sigmoid(), "amax"),
    "erf": lambda x, at: x.index_reduce(1, at[0], x.erf(), "amin"),
    "log": lambda x, at: x.index_reduce(1, at[0], x.abs().log(), "amax"),
    "pow": lambda x, at: x.scatter_reduce(1, at, x.abs() ** x, "amax"),
}


@pytest.mark.parametrize("columns", [5, 19])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_gradients_of_scattered_extrema(name: str, columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(6, columns, generator=generator, requires_grad=True)
    at = torch.randint(columns, (6, columns), generator=generator)
    (expected,) = torch.autograd.grad(FUNCTIONS[name](x, at).sum(), x)
    (found,) = torch.autograd.grad(stator.compile(FUNCTIONS[name])(x, at).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-3 if name == "far sin" else 1e-5, atol=1e-5)
