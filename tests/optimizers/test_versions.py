"""Versions of parameters and optimizer state move where eager's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

OPTIMIZERS: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, fused=True, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, fused=True),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_versions_are_those_of_eager(name: str, backend: str) -> None:
    found = []
    for compiled in (False, True):
        parameter = torch.nn.Parameter(torch.ones(3))
        parameter.grad = torch.ones(3)
        optimizer = OPTIMIZERS[name]([parameter])
        step = stator.compile(lambda: optimizer.step(), backend=backend) if compiled else optimizer.step
        for _ in range(3):
            step()
        state = {key: value for key, value in optimizer.state[parameter].items() if isinstance(value, torch.Tensor)}
        seen = [parameter, parameter.grad, *state.values()]
        found.append(([one._version for one in seen], [one.tolist() for one in seen]))
    assert found[1][0] == found[0][0]
    torch.testing.assert_close(found[1][1], found[0][1])


def test_clipping_values_where_there_are_none_raises_as_in_eager() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3))]

    def clip(x: torch.Tensor) -> torch.Tensor:
        torch.nn.utils.clip_grad_value_(parameters, 1.0)
        return x + 1

    for run in (clip, stator.compile(clip, backend="aot_eager")):
        with pytest.raises(RuntimeError, match=r"Expected !nested_tensorlist\[0\]"):
            run(torch.ones(3))
