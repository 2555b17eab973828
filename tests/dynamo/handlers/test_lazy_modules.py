"""Lazy modules: their first call makes the parameters, as in eager; from the second on they are one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from differential import Counts
from torch import nn

import stator


class Inside(nn.Module):
    """Lazy modules between other work, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(5)
        self.again = nn.LazyLinear(5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.again(self.first(x * 2).sin())
        return self.again(x).cos()


def convolutions() -> nn.Module:
    layers = (nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    return nn.Sequential(*layers)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.LazyLinear(4), (3, 5)),
    "inside": (Inside, (3, 5)),
    "normalized": (lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2)), (3, 5)),
    "convolutions": (convolutions, (2, 3, 6, 6)),
    "transposed": (lambda: nn.Sequential(nn.LazyConvTranspose2d(4, 3), nn.LazyInstanceNorm2d()), (2, 3, 6, 6)),
    "statistics": (
        lambda: nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyInstanceNorm1d(affine=True, track_running_stats=True)),
        (2, 3, 8),
    ),
    "no parameters": (lambda: nn.LazyBatchNorm1d(affine=False), (3, 5)),
}


def state(module: nn.Module) -> Any:
    """Classes, attributes, parameters, buffers and numbers of hooks of a module and those in it."""
    tensors = {**module._parameters, **module._buffers}
    held = {name: one if one is None else (type(one), one.tolist(), one.requires_grad) for name, one in tensors.items()}
    hooks = {name: len(one) for name, one in module.__dict__.items() if name.endswith("_hooks")}
    plain = {name: one for name, one in module.__dict__.items() if isinstance(one, (int, str, tuple, float))}
    return type(module), sorted(module.__dict__), held, hooks, plain, [state(one) for one in module.children()]


def itself(module: nn.Module) -> Callable[..., torch.Tensor]:
    return module


def below_a_function(module: nn.Module) -> Callable[..., torch.Tensor]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return module(x)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1) * 2

    return outer


def history(model: str, wrap: Callable[..., Any], training: bool, compiled: bool, **options: Any) -> list[Any]:
    make, shape = MODELS[model]
    torch.manual_seed(0)
    module = make().train(training)
    function = wrap(module)
    if compiled:
        function = stator.compile(function, backend="eager", **options)
    found = [(function(torch.randn(shape)).tolist(), state(module), torch.rand(2).tolist())]
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if parameters else None
    for _ in range(3):
        loss = function(torch.randn(shape)).square().mean()
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append((loss.tolist(), state(module)))
    found.append((function(torch.randn(shape)).tolist(), state(module.eval())))
    return found


@pytest.mark.each_pair
@pytest.mark.parametrize(("wrap", "training"), [(itself, True), (below_a_function, True), (itself, False)])
@pytest.mark.parametrize("model", MODELS)
def test_lazy_modules_become_what_they_are_in_eager(model: str, wrap: Callable[..., Any], training: bool) -> None:
    stator.reset()
    assert history(model, wrap, training, True) == history(model, wrap, training, False)


@pytest.mark.parametrize("wrap", [itself, below_a_function])
@pytest.mark.parametrize("model", MODELS)
def test_under_fullgraph_the_first_call_runs_eagerly(model: str, wrap: Callable[..., Any]) -> None:
    stator.reset()
    counts = Counts()
    assert history(model, wrap, True, True, fullgraph=True) == history(model, wrap, True, False)
    assert counts.graphs >= 1 and not counts.breaks


def test_under_fullgraph_a_module_that_stays_lazy_is_refused() -> None:
    module = nn.LazyLinear(4)
    compiled = stator.compile(lambda x: (x, module.weight), backend="eager", fullgraph=True)
    for _ in range(4):
        compiled(torch.ones(2))
    with pytest.raises(stator.Unsupported, match="lazy-module"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("model", MODELS)
def test_from_the_second_call_on_there_is_one_graph(model: str) -> None:
    make, shape = MODELS[model]
    module = make()
    stator.compile(module, backend="eager")(torch.randn(shape))
    explained = stator.explain(module)(torch.randn(shape))
    assert (len(explained.graphs), len(explained.break_reasons)) == (1, 0)


def test_a_lazy_module_that_refuses_its_input_stays_lazy() -> None:
    module = nn.LazyConv2d(4, 3)
    with pytest.raises(RuntimeError) as expected:
        nn.LazyConv2d(4, 3)(torch.randn(3))
    with pytest.raises(RuntimeError) as raised:
        stator.compile(module, backend="eager")(torch.randn(3))
    assert str(raised.value) == str(expected.value)
    assert type(module) is nn.LazyConv2d and module.has_uninitialized_params()
