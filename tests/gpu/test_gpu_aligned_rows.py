"""Large products of matrices with rows of odd lengths, which compiled programs lay out in aligned rows: beside eager in
float64, with strides of eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.gpu.device import DEVICE, only_cuda
from tests.inductor.lower.language_head import Head

import stator
from stator.inductor.lower.operators import library

pytestmark = only_cuda

WIDTH = 768
# Relative to the norm of a result, which is rounded twice
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture
def aligned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each product was computed in aligned rows."""
    found: list[bool] = []
    usual = library.aligned_product

    def noted(*given: Any) -> Any:
        result = usual(*given)
        found.append(result is not None)
        return result

    monkeypatch.setattr(library, "aligned_product", noted)
    return found


def outcome(call: Any, model: Head, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_(model.training)
    with torch.set_grad_enabled(model.training):
        results = call(x)
    results = [*results] if isinstance(results, tuple) else [results]
    if model.training:
        model.zero_grad()
        results[0].backward(
            torch.tensor(64.0 * x.shape[1], device=DEVICE).to(results[0].dtype)
        )  # not too small for halves
        results += [x.grad, *[parameter.grad for parameter in model.parameters()]]
    return [result.detach() for result in results]


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("bias", (False, True), ids=("", "bias"))
@pytest.mark.parametrize("gives", ("loss", "loss and logits", "logits"))
@pytest.mark.parametrize(("rows", "words"), ((4096, 8191), (2047, 30522), (900, 8190)))
def test_ends_of_language_models(
    rows: int, words: int, gives: str, bias: bool, dtype: torch.dtype, mode: str, aligned: list[bool]
) -> None:
    model = Head(words, WIDTH, bias=bias, gives_logits="logits" in gives).to(DEVICE).to(dtype).train("loss" in gives)
    exact, compiled = copy.deepcopy(model).double(), stator.compile(model, mode=mode)
    inputs = [torch.randn(1, rows, WIDTH, device=DEVICE).to(dtype) for _ in range(4)]
    found = [outcome(compiled, model, x) for x in inputs]
    for x, results in zip(inputs, found, strict=True):
        for result, truth in zip(results, outcome(exact, exact, x.double()), strict=True):
            assert result.is_contiguous()
            assert float((result.double() - truth).norm() / truth.norm()) < TOLERANCES[dtype]
    assert any(aligned) == (gives != "logits")


@pytest.mark.parametrize("sizes", ((4096, 1024, 4095), (8192, 2048, 4094)))
def test_sides_with_odd_rows(sizes: tuple[int, int, int], aligned: list[bool]) -> None:
    rows, columns, depth = sizes
    x, weight = (torch.randn(size, depth, device=DEVICE).bfloat16() for size in (rows, columns))
    with torch.no_grad():
        found = stator.compile(torch.nn.functional.linear)(x, weight)
    truth = x.double() @ weight.double().t()
    assert found.is_contiguous()
    assert float((found.double() - truth).norm() / truth.norm()) < TOLERANCES[torch.bfloat16]
    assert any(aligned)
