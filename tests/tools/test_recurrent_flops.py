"""Operations of recurrent layers, at any number of steps, are those that torch's counter finds in eager's products."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import stator

LAYERS = {
    "gru": partial(nn.GRU, 16, 32),
    "two layers in both directions": partial(nn.GRU, 16, 32, 2, bidirectional=True, batch_first=True),
    "rnn without biases": partial(nn.RNN, 16, 32, nonlinearity="relu", bias=False),
    "lstm": partial(nn.LSTM, 16, 32, dtype=torch.float64),
    "lstm with projections": partial(nn.LSTM, 16, 32, 2, proj_size=8, dtype=torch.float64),
}


def counted(module: nn.Module, x: torch.Tensor, backward: bool) -> int:
    mode = FlopCounterMode(display=False)
    with mode, torch.set_grad_enabled(backward):
        results = tree_leaves(module(x))
        if backward:
            torch.autograd.grad(results, list(module.parameters()), [torch.ones_like(one) for one in results])
    return mode.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_counts_at_many_sizes(name: str, backward: bool) -> None:
    module = LAYERS[name]()
    dtype = next(module.parameters()).dtype
    found = stator.flops(module, stator.TensorSpec(("first", "second", 16), dtype=dtype), backward=backward)
    assert not found.uncounted
    for first, second in ((7, 6), (3, 9), (12, 2)):
        expected = counted(module, torch.randn(first, second, 16, dtype=dtype), backward)
        assert found.at(first=first, second=second) == expected > 0


def test_layers_of_onednn_are_named_as_not_counted() -> None:
    found = stator.flops(nn.LSTM(16, 32), stator.TensorSpec(("steps", "batch", 16)))
    assert found.at(steps=7, batch=6) == counted(nn.LSTM(16, 32), torch.randn(7, 6, 16), backward=False) == 0
    assert list(found.uncounted) == ["stator.recurrent_layer"]
