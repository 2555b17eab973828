"""Kinds of tensors, models and surroundings that training meets, compiled and beside eager."""

from __future__ import annotations

import pytest
import torch
from tests.scenarios import BACKENDS, Scenario, check, gradients, leaf, may_break, scenarios
from torch import nn

import stator


def seeded(make):
    torch.manual_seed(0)
    return make()


def mlp() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)))


def in_half(found):
    """Gradients that were computed in bfloat16 or float16, to be compared as such."""
    return [None if one is None else one.bfloat16() for one in found]


def autocast_around(compiled):
    model, x = mlp(), leaf(5, 8)
    f, found = compiled(model), []
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = f(x)
        found.append((y.detach(), in_half(gradients(y.float().pow(2).mean(), x, *model.parameters()))))
    return found, f(x).dtype


def autocast_inside(compiled):
    model, x = mlp(), leaf(5, 8)

    def program(x):
        with torch.autocast("cpu", dtype=torch.float16):
            y = model(x)
        return y, (y.float() ** 2).mean()

    y, loss = compiled(program)(x)
    return y.detach(), in_half(gradients(loss, x, *model.parameters()))


def autocast_switched_off_inside(compiled):
    x, w = leaf(3, 4), leaf(4, 4, seed=1)

    def program(x, w):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = x @ w
        return y, z

    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, z = compiled(program)(x, w)
    return y.detach(), z.detach(), in_half(gradients(y.float().sum() + z.sum(), x, w))


@stator.disable
def opaque() -> None:
    """A call that capture does not follow."""


@may_break
def break_inside_of_autocast(compiled):
    """The graph behind the break leaves autocast, whose dtype is not the usual one. No region is left open: an open one
    would keep casts of weights for later steps."""
    x, w = leaf(3, 4), leaf(4, 4, seed=1)

    def program(x, w):
        with torch.autocast("cpu", dtype=torch.float16):
            opaque()
            y = x @ w
        return y, x @ w

    f = compiled(program)
    y, z = f(x, w)
    torch.autocast_increment_nesting()
    left_open = torch.autocast_decrement_nesting()
    state = torch.get_autocast_dtype("cpu"), left_open
    return y.detach(), z.detach(), state, in_half(gradients(y.float().sum() + z.sum(), x, w))


def narrow_parameters(compiled):
    model, x = mlp().bfloat16(), leaf(5, 8).detach().bfloat16()
    return gradients(compiled(model)(x).float().pow(2).sum(), *model.parameters())


def channels_last(compiled):
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    ).to(memory_format=torch.channels_last)
    x = leaf(2, 3, 6, 6).detach().to(memory_format=torch.channels_last).requires_grad_()
    y = compiled(model)(x)
    strides = y.stride()
    found = gradients((y * y).sum(), x, *model.parameters())
    return y.detach(), strides, found, [g.stride() for g in found], model[1].running_var, model[1].num_batches_tracked


@may_break  # library calls on conjugated matrices may copy their results, with one warning
def complex_numbers(compiled):
    x, w = leaf(3, 4, dtype=torch.complex64), leaf(4, 4, seed=1, dtype=torch.complex64)

    def program(x, w):
        y = (x @ w).conj()
        return y * x.abs(), torch.view_as_real(y.resolve_conj()).sum(-1)

    a, b = compiled(program)(x, w)
    return a.detach().resolve_conj(), b.detach(), gradients(a.abs().sum() + b.pow(2).sum(), x, w)


def complex_constants(compiled):
    x = leaf(8)

    def program(x):
        z = torch.complex(x, x * 2)
        return (z * (1 + 2j) + z.conj()).abs().sum()

    return gradients(compiled(program)(x), x)


class Marked(torch.Tensor):
    """A subclass that does nothing."""


@may_break
def subclass(compiled):
    x = leaf(3).detach().as_subclass(Marked).requires_grad_()
    y = compiled(lambda t: (t * 2).sin())(x)
    y.sum().backward()
    return type(y).__name__, type(x.grad).__name__, x.grad.as_subclass(torch.Tensor)


@may_break
def wrapped_subclass(compiled):
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = leaf(3).detach(), leaf(3, seed=1).detach()
    x = TwoTensor(a, b).requires_grad_()
    y = compiled(lambda t: (t * 2).sin())(x)
    y.sum().backward()
    return type(y).__name__, x.grad.a, x.grad.b


def recurrent(compiled):
    model, x = seeded(lambda: nn.LSTM(4, 5, batch_first=True)), leaf(2, 3, 4)
    out, (_, cell) = compiled(model)(x)
    return out.detach(), gradients(out.sum() + cell.pow(2).sum(), x, *model.parameters())


def gradients_keep_their_tensor(compiled):
    model, x = seeded(lambda: nn.Linear(4, 3)), leaf(2, 4)
    f, found, identities = compiled(model), [], []
    for _ in range(3):
        f(x).pow(2).sum().backward()
        found.append(model.weight.grad.clone())
        identities.append(id(model.weight.grad))
    model.zero_grad(set_to_none=False)
    f(x).sum().backward()
    identities.append(id(model.weight.grad))
    found.append(model.weight.grad.clone())
    model.zero_grad(set_to_none=True)
    cleared = model.weight.grad is None
    f(x).sum().backward()
    return found, len(set(identities)), cleared, model.weight.grad


def frozen_parameters(compiled):
    model, x = seeded(lambda: nn.Linear(4, 3)), leaf(2, 4).detach()
    model.weight.requires_grad_(False)
    f = compiled(model)
    first = gradients(f(x).sum(), *model.parameters())
    model.weight.requires_grad_(True)
    return first, gradients(f(x).sum(), *model.parameters())


@may_break
def fake_quantization_of_channels(compiled):
    """The observer of a weight resizes its ranges in the first call."""
    from torch.ao.quantization import get_default_qat_qconfig, prepare_qat

    model = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    model.qconfig = get_default_qat_qconfig("x86")
    prepare_qat(model, inplace=True)
    f, x, found = compiled(model), leaf(2, 4), []
    for without in (torch.no_grad, torch.enable_grad, torch.no_grad):
        with without():
            y = f(x)
        found.append(y.detach())
    return found, gradients(f(x).sum(), x, *model.parameters()), dict(model.state_dict())


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True)
