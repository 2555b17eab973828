"""Parts of training programs, compiled, against eager: normalisation, meta-learning, custom functions, numbers."""

from __future__ import annotations

import pytest
import torch
from tests.scenarios import BACKENDS, Scenario, check, gradients, leaf, scenarios
from torch import nn
from torch.autograd import Function, functional
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from stator.base import counters

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))


class Square(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * 5 * ctx.saved_tensors[0]


def jacobian_inside(compiled):
    return compiled(lambda x: functional.jacobian(lambda a: (a @ W).sin(), x))(torch.arange(4.0))


def hessian_inside(compiled):
    return compiled(lambda x: functional.hessian(lambda a: (a @ W).sin().sum(), x))(torch.arange(4.0))


def batch_norm(compiled):
    model, x, found = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), leaf(5, 4), []
    f = compiled(model)
    for _ in range(3):
        found.append(gradients(f(x).pow(2).sum(), x, *model.parameters()))
    model.eval()
    found.append(gradients(f(x).pow(2).sum(), x, *model.parameters()))
    return found, model[1].running_mean, model[1].num_batches_tracked


def custom_function_of_a_module(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.function = Square.apply
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.function(x * self.weight).sum()

    model, x = Model(), leaf(4)
    return gradients(compiled(model)(x), x, model.weight)


def weight_normalisation(compiled):
    model, x = parametrizations.weight_norm(nn.Linear(4, 3)), leaf(2, 4)
    return gradients(compiled(model)(x).pow(2).sum(), x, *model.parameters())


def spectral_normalisation(compiled):
    model, x = parametrizations.spectral_norm(nn.Linear(4, 3)), leaf(2, 4)
    f = compiled(model)
    return [gradients(f(x).pow(2).sum(), x, *model.parameters()) for _ in range(2)], list(model.buffers())


def straight_through_estimator(compiled):
    x = leaf(4)
    return gradients(compiled(lambda x: ((x.round() - x).detach() + x).pow(2).sum())(x), x)


def meta_learning(compiled):
    net, x = nn.Linear(4, 1), leaf(3, 4).detach()

    def program(x):
        parameters = dict(net.named_parameters())
        loss = functional_call(net, parameters, (x,)).pow(2).sum()
        found = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), found, strict=True)}
        return functional_call(net, fast, (x,)).pow(2).sum()

    f = compiled(program)
    return [gradients(f(x), *net.parameters()) for _ in range(2)]


def compiled_model_with_other_parameters(compiled):
    net, x, losses = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), leaf(3, 4).detach(), []
    f = compiled(net)
    parameters = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    for _ in range(3):
        loss = functional_call(f, parameters, (x,)).pow(2).sum()
        found = torch.autograd.grad(loss, list(parameters.values()))
        updated = zip(parameters.items(), found, strict=True)
        parameters = {name: (p - 0.1 * g).detach().requires_grad_() for (name, p), g in updated}
        losses.append(loss.detach())
    return losses, f(x).detach()


class Gather(Function):
    """Takes integers and keeps a size; its backward scatters."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.save_for_backward(rows)
        ctx.count = x.shape[0]
        return x[rows].t()

    @staticmethod
    def backward(ctx, g):
        (rows,) = ctx.saved_tensors
        return g.new_zeros(ctx.count, g.shape[0]).index_add(0, rows, g.t()), None


def custom_gather(compiled):
    x, rows = leaf(5, 3), torch.tensor([1, 1, 4])
    y = compiled(lambda x, rows: Gather.apply(x, rows))(x, rows)
    return y.stride(), gradients(y.pow(2).sum(), x)


class Reversed(Function):
    """Gradient reversal, by a strength that a schedule changes."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x * strength

    @staticmethod
    def backward(ctx, g):
        return -g * ctx.strength, None


def numbers_that_change(compiled):
    programs = (
        lambda x, s: Reversed.apply(x, s).sum(),
        lambda x, s: checkpoint(lambda a: (a * s).sin(), x, use_reentrant=False).sum(),
        lambda x, s: grad(lambda a, t: (a * a * t).sum())(x, s).sum(),
        lambda x, s: vmap(lambda a: a * a * s)(x).sum(),
    )
    x, found = leaf(3, 4), []
    for program in programs:
        f = compiled(program)
        counters.clear()
        found += [gradients(f(x, s), x) for s in (0.5, 1.5, 2.5, 0.25, 7.0)]
        assert counters.counts["graphs"] <= 2, "compiled anew for each number"
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True)
