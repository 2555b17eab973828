"""Under autocast, results have eager's dtypes, whatever they come apart into below autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.onednn import needs_lstm_in_bfloat16

import stator

SQUARE = torch.linspace(-1, 1, 16).view(4, 4)
SEQUENCE = torch.linspace(-1, 1, 24).view(3, 2, 4)


def recurrent(kind: type[torch.nn.RNNBase], **options: Any) -> Callable[[], Any]:
    torch.manual_seed(0)
    layers = kind(4, 5, **options)
    return lambda: torch.utils._pytree.tree_leaves(layers(SEQUENCE))


COMPOSED: dict[str, Callable[[], Any]] = {
    "einsum": lambda: torch.einsum("abc,cd->abd", SEQUENCE, SQUARE),
    "tensordot": lambda: torch.tensordot(SEQUENCE, SQUARE, 1),
    "inner": lambda: torch.inner(SQUARE, SQUARE),
    "multi_dot": lambda: torch.linalg.multi_dot([SQUARE, SQUARE, SQUARE]),
    "matrix_power": lambda: torch.linalg.matrix_power(SQUARE, 3),
    "cov": lambda: torch.cov(SQUARE),
    "nll_loss": lambda: torch.nn.functional.nll_loss(SQUARE.bfloat16(), torch.arange(4)),
    "distances, in float32": lambda: torch.cdist(SQUARE @ SQUARE, SQUARE),
    "RNN": recurrent(torch.nn.RNN),
    "LSTM": recurrent(torch.nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM with projections": recurrent(torch.nn.LSTM, proj_size=3),
}


@pytest.mark.each_pair
@pytest.mark.filterwarnings("ignore")  # of torch, about projections
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", COMPOSED)
def test_composed_operators(name: str, needs_grad: bool, backend: str) -> None:
    if name == "LSTM":
        needs_lstm_in_bfloat16()

    def program() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return COMPOSED[name]()

    with torch.set_grad_enabled(needs_grad):
        expected, found = program(), stator.compile(program, backend=backend, fullgraph=True)()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_a_region_around_the_call() -> None:
    compiled = stator.compile(COMPOSED["einsum"], backend="aot_eager")
    assert compiled().dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled().dtype is torch.bfloat16


def test_a_region_within_a_transformed_function() -> None:
    def row(vector: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.inner(SQUARE, vector)

    compiled = stator.compile(torch.vmap(row), backend="aot_eager")
    torch.testing.assert_close(compiled(SQUARE), torch.vmap(row)(SQUARE), rtol=2e-2, atol=2e-2)
