"""Products of half floats that are computed as products of float32 are at least as near to the truth as eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import NARROW, assert_same
from tests.inductor.lower.lowering_oracle import library_calls, lowered_of
from torch.nn import functional as F

import stator
from stator.inductor.lower.operators import library

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the choice, which prefers float32, was asked."""
    found: list[tuple[Any, ...]] = []

    def quicker(*sizes: Any) -> bool:
        found.append(sizes)
        return True

    monkeypatch.setattr(library, "is_float32_quicker", quicker)
    return found


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": lambda x, w, b: F.linear(x, w, b),
    "linear without bias": lambda x, w, b: F.linear(x, w),
    "by rows": lambda x, w, b: x @ w.reshape(x.shape[1], -1),
    "bias and activation": lambda x, w, b: F.gelu(torch.addmm(b, x, w.t())) * 2,
    "bias for each element": lambda x, w, b: torch.addmm(b + x[:, :1], x, w.t()),
    "transposed rows": lambda x, w, b: w @ x.t(),
    "computed matrix": lambda x, w, b: x @ (w * 0.5 + 1).t(),
    "a sum of products": lambda x, w, b: F.linear(x, w, b) + x @ (w - 1).t(),
}


@pytest.mark.fixed_sizes  # a matrix of a weight's sizes is widened
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_results(
    function: Callable[..., torch.Tensor], rows: int, dtype: torch.dtype, asked: list[tuple[Any, ...]]
) -> None:
    torch.manual_seed(0)
    given = [torch.randn(*shape).to(dtype) for shape in ((rows, 96), (72, 96), (72,))]
    found, eager = stator.compile(function, fullgraph=True, options={"verify": True})(*given), function(*given)
    truth = function(*(one.double() for one in given))
    assert asked
    assert_same(found, eager, NARROW)
    assert (found - truth).abs().mean() <= 1.05 * (eager - truth).abs().mean()


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("rows", [4, 40])
def test_no_library_multiplies_halves(rows: int, asked: list[tuple[Any, ...]]) -> None:
    """A few rows read the weight as it is; of more it is converted first."""
    given = [torch.ones(*shape, dtype=torch.float16) for shape in ((rows, 96), (72, 96), (72,))]
    lowered = lowered_of(FUNCTIONS["linear"], given)
    assert set(asked) == {(rows, 96, 72, torch.float16, False)}
    assert len(library_calls(lowered)) == (rows > 8)
    computed = [one.layout for one in lowered.buffers.values() if one.kind == "computed"]
    weights = [layout.dtype for layout in computed if math.prod(layout.size) == 72 * 96]
    assert weights == ([torch.float32] if rows > 8 else [])


def test_changing_numbers_of_rows() -> None:
    compiled = stator.compile(FUNCTIONS["linear"], dynamic=True)
    torch.manual_seed(0)
    weight, bias = torch.randn(72, 96).half(), torch.randn(72).half()
    for rows in (5, 1, 300, 0):
        x = torch.randn(rows, 96).half()
        assert_same(compiled(x, weight, bias), F.linear(x, weight, bias), NARROW)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, 60000.0])
def test_special_numbers(special: float) -> None:
    torch.manual_seed(0)
    for rows in (2, 20):
        x, weight, bias = torch.randn(rows, 96).half(), torch.randn(72, 96).half(), torch.randn(72).half()
        x[1, 3], weight[5, 3] = special, 4.0
        assert_same(
            stator.compile(F.linear)(x, weight, bias),
            F.linear(x.double(), weight.double(), bias.double()).half(),
            NARROW,
        )


def test_gradients() -> None:
    torch.manual_seed(0)
    given = [torch.randn(*shape).half().requires_grad_() for shape in ((24, 96), (72, 96), (72,))]
    results = []
    for function in (F.linear, stator.compile(F.linear)):
        results.append(torch.autograd.grad(function(*given).tanh().sum(), given))
    assert_same(list(results[1]), list(results[0]), NARROW)
