"""Full backward hooks of modules: the graph ends where torch sets them up, and everything else is as in eager."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import stator

Seen = list[tuple[Any, ...]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, both: bool = False) -> Any:
        y = self.linear(x).relu()
        return (y, None, x * 2) if both else y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        y = self.blocks[1](self.blocks[0](x), both=both)
        return self.blocks[2](y[0] + y[2] if both else y).sin().sum()


def _hooked(net: Net) -> Seen:
    """A hook that looks, one that changes gradients before, and one that changes them behind."""
    seen: Seen = []

    def look(module: nn.Module, inputs: Any, outputs: Any) -> None:
        seen.append((inputs, outputs))

    def before(module: nn.Module, outputs: Any) -> Any:
        return tuple(None if gradient is None else gradient * 3 for gradient in outputs)

    net.blocks[1].register_full_backward_hook(look)
    net.blocks[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] + 1,))
    net.blocks[1].register_full_backward_pre_hook(before)
    return seen


def _step(net: Net, called: Any, x: torch.Tensor, both: bool) -> Any:
    net.zero_grad()
    loss = called(x, both)
    loss.backward()
    return loss, [parameter.grad for parameter in net.parameters()]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_and_what_hooks_see_are_eager_s(backend: str) -> None:
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)
    seen, expected_seen = _hooked(net), _hooked(twin)
    compiled = stator.compile(net, backend=backend)
    for both in (False, True, False):
        x = torch.randn(2, 3)
        torch.testing.assert_close(_step(net, compiled, x, both), _step(twin, twin, x, both))
    torch.testing.assert_close(seen, expected_seen)


def test_a_hooked_module_ends_the_graph_twice() -> None:
    net = Net()
    _hooked(net)
    report = stator.explain(net)(torch.randn(2, 3), False)
    assert [reason.kind for reason in report.break_reasons] == ["custom-function"] * 2


def test_without_gradients_hooks_are_no_breaks() -> None:
    net = Net()
    _hooked(net)
    x = torch.randn(2, 3)
    with torch.no_grad():
        assert torch.equal(stator.compile(net, backend="eager", fullgraph=True)(x, True), net(x, True))


def test_an_input_that_requires_no_gradient() -> None:
    linear = nn.Linear(3, 1)
    seen: Seen = []
    linear.register_full_backward_hook(lambda module, inputs, outputs: seen.append((inputs, outputs)))
    x = torch.randn(2, 3)
    for called in (linear, stator.compile(linear, backend="eager")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it fires without gradients of inputs
            called(x).sum().backward()
    assert seen[0][0] == seen[1][0] == (None,) and torch.equal(seen[0][1][0], seen[1][1][0])


def test_a_hook_that_is_added_and_removed() -> None:
    net, seen = Net(), []
    compiled = stator.compile(net, backend="eager")
    x = torch.randn(2, 3)
    _step(net, compiled, x, False)
    handle = net.blocks[2].register_full_backward_hook(lambda module, inputs, outputs: seen.append(inputs))
    _step(net, compiled, x, False)
    handle.remove()
    _step(net, compiled, x, False)
    assert len(seen) == 1
