"""Random numbers of compiled programs: reproducible, right in the backward, and eager's own where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import stator


@pytest.fixture(autouse=True)
def fresh() -> None:
    stator.reset()
    torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread = torch.exp(0.5 * x)
        return x + spread * torch.randn_like(spread) + F.gumbel_softmax(x, dim=-1)


class Library(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(x.shape[0])
        return F.dropout(x[order], 0.3) + torch.poisson(x.detach().abs())


MODULES: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, 16), nn.Dropout(0.1)),
    "alpha dropout": lambda: nn.Sequential(nn.Linear(16, 16), nn.SELU(), nn.AlphaDropout(0.3)),
    "dropout of channels": lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout1d(0.4)),
    "rrelu": lambda: nn.Sequential(nn.Linear(16, 16), nn.RReLU()),
    "attention": Attention,
    "encoder layer": lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True),
    "noise": Noise,
    "library calls": Library,
}
INPUT = torch.randn(6, 5, 16, generator=torch.Generator().manual_seed(1))


def step(run: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, seed: int) -> list[torch.Tensor]:
    """Value and gradients of one step, and a number drawn after it."""
    torch.manual_seed(seed)
    x = INPUT.clone().requires_grad_()
    module.zero_grad()
    value = run(x)
    value.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    return [value.detach(), x.grad, *gradients, torch.rand(())]


@pytest.mark.parametrize("name", MODULES)
def test_the_exact_option_gives_the_numbers_of_eager(name: str) -> None:
    module = MODULES[name]()
    compiled = stator.compile(module, options={"exact_random": True})
    with torch.no_grad():
        torch.manual_seed(4)
        got = [compiled(INPUT) for _ in range(2)]
        torch.manual_seed(4)
        want = [module(INPUT) for _ in range(2)]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(step(compiled, module, 5), step(module, module, 5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_steps_are_reproducible_and_differ_from_each_other(name: str) -> None:
    module = MODULES[name]()
    compiled = stator.compile(module)
    first, other, again = (step(compiled, module, seed) for seed in (1, 2, 1))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first[0], other[0])
    torch.manual_seed(1)
    with torch.no_grad():
        assert not torch.equal(compiled(INPUT), compiled(INPUT))


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.exp(x), 0.4)


ROUNDING = {torch.bfloat16: 1e-2, torch.float16: 1e-3}  # one rounding of a half


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_pass_where_values_did(dtype: torch.dtype) -> None:
    x = torch.randn(50, 70, dtype=dtype, requires_grad=True)
    value = stator.compile(dropped)(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(value == 0, gradient == 0)
    assert 0.37 < (value == 0).float().mean() < 0.43
    torch.testing.assert_close(gradient, value.detach(), rtol=ROUNDING.get(dtype, 1e-5), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
def test_a_memory_budget_does_not_change_a_step(exact: bool) -> None:
    module = nn.Sequential(MODULES["dropout"](), Noise(), MODULES["rrelu"](), MODULES["encoder layer"]())
    steps = []
    for budget in (1.0, 0.4, 0.0):
        compiled = stator.compile(module, options={"memory_budget": budget, "exact_random": exact})
        steps.append(step(compiled, module, 3))
        stator.reset()
    torch.testing.assert_close(steps[1], steps[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(steps[2], steps[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_dropout_is_recomputed_alike(reentrant: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: torch.sin(dropped(x)), x, use_reentrant=reentrant)

    x = torch.randn(50, 70, requires_grad=True)
    value = stator.compile(program)(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    kept = (value != 0).float() / 0.6
    inside = torch.exp(x.detach()) * kept
    torch.testing.assert_close(value.detach(), torch.sin(inside), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, torch.cos(inside) * inside, rtol=1e-4, atol=1e-4)


def dropped_with_mask(x: torch.Tensor) -> torch.Tensor:
    """The operator that GPUs have for dropout: its results are the values and their mask."""
    return torch.native_dropout(torch.exp(x), 0.4, True)[0]


@pytest.mark.parametrize("drop", [dropped, dropped_with_mask])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_dropout_has_the_numbers_of_eager(reentrant: bool, drop: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: torch.sin(drop(x)), x, use_reentrant=reentrant) + torch.rand_like(x)

    compiled = stator.compile(program, options={"exact_random": True})
    results = []
    for run in (compiled, program):
        torch.manual_seed(3)
        x = torch.linspace(-2, 0, 3500).view(50, 70).requires_grad_()  # no more: sin(exp(x)) enlarges rounding
        value = run(x)
        value.sum().backward()
        results.append((value.detach(), x.grad, torch.rand(())))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("exact", [False, True])
def test_second_derivatives_see_the_numbers_of_the_forward(exact: bool) -> None:
    compiled = stator.compile(lambda x: dropped(x).square().sum(), options={"exact_random": exact})
    x = torch.randn(30, 40, dtype=torch.float64, requires_grad=True)
    value = compiled(x)
    after = torch.get_rng_state()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    scale = (gradient != 0).double() / 0.36
    torch.testing.assert_close(value, (torch.exp(2 * x) * scale).sum())
    torch.testing.assert_close(gradient, 2 * torch.exp(2 * x) * scale)
    torch.testing.assert_close(second, 4 * torch.exp(2 * x) * scale)
    assert torch.equal(torch.get_rng_state(), after)


def test_both_sides_of_a_graph_break_draw_different_numbers() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.rand_like(x)
        print(end="")  # a call that is not compiled
        return first, torch.rand_like(x)

    first, second = stator.compile(program)(torch.randn(100))
    assert (first == second).sum() == 0


def test_modules_that_are_not_training_draw_nothing() -> None:
    module = MODULES["dropout"]().eval()
    compiled = stator.compile(module)
    before = torch.get_rng_state()
    with torch.no_grad():
        torch.testing.assert_close(compiled(INPUT), module(INPUT))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_eager_backend_keeps_the_numbers_of_eager() -> None:
    module = MODULES["dropout"]()
    compiled = stator.compile(module, backend="aot_eager")
    torch.testing.assert_close(step(compiled, module, 5), step(module, module, 5))


def test_dropout_under_autocast() -> None:
    module = MODULES["dropout"]()
    compiled = stator.compile(module)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        value = compiled(INPUT)
    assert value.dtype is torch.bfloat16 and 0.05 < (value == 0).float().mean() < 0.16


def test_the_same_seed_within_a_program() -> None:
    """Weights are moved, looked at and moved back by noise that is drawn again from its seed."""
    weights = [torch.zeros(3, 4), torch.zeros(5)]

    def move(by: float) -> None:
        torch.manual_seed(11)
        for weight in weights:
            weight.add_(torch.normal(0.0, 1.0, weight.shape), alpha=by)

    def program(x: torch.Tensor) -> torch.Tensor:
        move(1.0)
        seen = weights[0] @ x
        move(-2.0)
        seen = seen + weights[0] @ x
        move(1.0)
        return seen

    assert program(torch.ones(4)).abs().max() < 1e-6
    compiled = stator.compile(program)
    for _ in range(2):
        assert compiled(torch.ones(4)).abs().max() < 1e-6
        assert max(weight.abs().max() for weight in weights) < 1e-6


@pytest.mark.filterwarnings("error:stator")
def test_dropout_of_a_part_is_differentiated_in_a_kernel() -> None:
    """The gradient is padded: the padding's mask leaves out elements, and not the seed."""
    torch.manual_seed(0)
    x = (torch.rand(2048, 75) + 1).requires_grad_()  # so large that the backward draws again
    result = stator.compile(lambda x: F.dropout(x.sin()[:, 3:73], 0.5).exp(), fullgraph=True)(x)
    result.sum().backward()
    assert x.grad is not None and not x.grad[:, :3].any() and not x.grad[:, 73:].any()
    assert torch.equal(x.grad[:, 3:73] != 0, result != 1)
