"""Captured code warns as often as torch's functions do in eager, at the user's line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stator

Program = Callable[[torch.Tensor], Any]

_loss, _softmax = nn.MSELoss(), nn.Softmax()
_attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()


def _in_attention(x: torch.Tensor) -> torch.Tensor:
    x = x.expand(1, 3, 4)
    ignored = torch.zeros(1, 3, dtype=torch.bool)
    return _attention(x, x, x, attn_mask=torch.zeros(3, 3), key_padding_mask=ignored)[0].relu()


WARNING: dict[str, Program] = {
    "softmax": lambda x: F.softmax(x) * 2,
    "softmax of a module": lambda x: _softmax(x) * 2,
    "mse_loss": lambda x: F.mse_loss(x, x[:1]) * 2,
    "mse_loss of a module": lambda x: _loss(x, x[:1]) * 2,
    "an old argument of a loss": lambda x: F.l1_loss(x, -x, size_average=False) * 2,
    "upsample": lambda x: F.upsample(x[None, None], scale_factor=2) * 2,
    "grid_sample": lambda x: F.grid_sample(x[None, None, None], torch.zeros(1, 2, 2, 2)) * 2,
    "attention with two kinds of masks": _in_attention,
}


def said(program: Program) -> tuple[list[tuple[Any, ...]], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        results = [program(torch.randn(4, generator=generator)) for _ in range(3)]
    return [(w.category, str(w.message), w.filename, w.lineno) for w in heard], results


@pytest.mark.parametrize("name", WARNING)
def test_each_call_gives_the_results_and_the_warnings_of_eager(name: str) -> None:
    expected, results = said(WARNING[name])
    heard, computed = said(stator.compile(WARNING[name], backend="aot_eager", fullgraph=True))
    assert heard == expected and len(heard) == 3
    torch.testing.assert_close(computed, results)


def test_a_warning_that_is_made_an_error_is_raised_and_caught() -> None:
    def program(x: torch.Tensor) -> torch.Tensor | str:
        try:
            return F.softmax(x)
        except UserWarning as error:
            return str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.randn(4)
        assert stator.compile(program, backend="eager")(x) == program(x)


def test_what_torch_says_nothing_of_is_one_operation() -> None:
    targets: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        targets.extend(node.target for node in gm.graph.nodes if node.op == "call_function")
        return gm

    stator.compile(lambda x: F.mse_loss(F.softmax(x, dim=0), x), backend=backend)(torch.randn(4))
    assert targets == [F.softmax, F.mse_loss]
