"""Captured code warns as often as torch's functions do in eager, at the user's line."""

from __future__ import annotations

import subprocess
import sys
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


KERNELS: dict[str, Program] = {
    "var": lambda x: x.var(correction=10) * 2,
    "var of one element": lambda x: torch.var(x[:1]) * 2,
    "std_mean": lambda x: torch.std_mean(x[None], 0, unbiased=True)[0] * 2,
    "tensor of a tensor": lambda x: torch.tensor(x) * 2,
    "range": lambda x: torch.range(0, 3) * x,
}


@pytest.mark.parametrize("name", KERNELS)
def test_compiled_kernels_warn_as_those_of_eager(name: str) -> None:
    expected, results = said(KERNELS[name])
    heard, computed = said(stator.compile(KERNELS[name], fullgraph=True))
    assert heard == expected and len(heard) == 3
    torch.testing.assert_close(computed, results, equal_nan=True)


ONCE = """
import torch, stator, warnings
a, b = torch.eye(3), torch.ones(2, 3, 4)
for program in (
    lambda: torch.cholesky(a) + 1,
    lambda: torch.triangular_solve(a, a)[0] + 1,
    lambda: b.T + 1,
    lambda: torch.where(a.to(torch.uint8), a, a) + 1,
):
    compiled = stator.compile(program, backend="aot_eager", fullgraph=True)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        compiled(), program(), compiled()
    [warning] = heard
    assert (warning.filename, warning.lineno) == ("<string>", program.__code__.co_firstlineno), warning
"""


def test_warnings_of_operators_that_come_once_in_a_process_come_once() -> None:
    done = subprocess.run([sys.executable, "-c", ONCE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr


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


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_torch_says_nothing_of_is_one_operation(dynamic: bool | None) -> None:
    targets: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        targets.extend(node.target for node in gm.graph.nodes if node.op == "call_function")
        return gm

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(F.softmax(x, dim=0), y)

    stator.compile(loss, backend=backend, dynamic=dynamic)(torch.randn(4), torch.randn(4))
    assert targets == [F.softmax, F.mse_loss]
