"""Floats that change between calls, as numbers of operators: two versions serve all of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.differential import Counts

import stator

PROGRAMS = {
    "leaky_relu": lambda x, f: F.leaky_relu(x, f),
    "elu": lambda x, f: F.elu(x, f),
    "softplus": lambda x, f: F.softplus(x, 10 * f),
    "hardtanh": lambda x, f: F.hardtanh(x, -f, f),
    "threshold": lambda x, f: F.threshold(x, f, 0.25),
    "threshold's value": lambda x, f: F.threshold(x, 0.3, f),
    "hardshrink": lambda x, f: F.hardshrink(x, f),
    "softshrink": lambda x, f: F.softshrink(x, f),
    "normalize": lambda x, f: F.normalize(x, dim=0, eps=f),
    "gaussian_nll_loss": lambda x, f: F.gaussian_nll_loss(x, x * 2, x.abs(), eps=f),
    "floor": lambda x, f: x.div(f, rounding_mode="floor"),
    "trunc": lambda x, f: torch.div(x, f, rounding_mode="trunc"),
    "//": lambda x, f: x.detach() // f,
    "%": lambda x, f: x % f,
    "fmod": lambda x, f: x.fmod(f),
    "in place": lambda x, f: F.leaky_relu(x * 1, f, inplace=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_versions_serve_all_floats(name: str, backend: str, dtype: torch.dtype) -> None:
    program = PROGRAMS[name]
    compiled, counts = stator.compile(program, backend=backend), Counts()
    for number in (0.1, 0.25, 0.3, 0.45, 1e-3):
        x = torch.linspace(-2, 2, 13).to(dtype).requires_grad_()
        y = x.detach().clone().requires_grad_()
        expected, found = program(x, number), compiled(y, number)
        torch.testing.assert_close(found, expected)
        if expected.requires_grad:
            expected.sum().backward()
            found.sum().backward()
            torch.testing.assert_close(y.grad, x.grad)
    assert counts.compilations == 2
    assert counts["graph_breaks"] == counts["dynamo.failed_graphs"] == 0


def test_a_float_that_the_function_refuses() -> None:
    compiled = stator.compile(lambda x, low: F.hardtanh(x, low, 0.5), backend="eager")
    x = torch.randn(4)
    for low in (-1.0, -0.5, 0.25):
        assert torch.equal(compiled(x, low), F.hardtanh(x, low, 0.5))
    with pytest.raises(ValueError, match="min_val"):
        compiled(x, 0.75)
