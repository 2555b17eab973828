"""torch.autograd.grad, backward and `.grad` in compiled code, beside eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.scenarios import BACKENDS, Scenario, check, gradients, leaf, may_break, scenarios
from tests.varying_sizes import check_sizes
from torch import nn

import stator


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def grads(net: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in net.parameters()]


def gradients_as_results(compiled):
    net, x = model(), leaf(3, 4)

    def program(x):
        loss = net(x).pow(2).sum()
        found = torch.autograd.grad(loss, [*net.parameters(), x])
        return [g * 2 for g in found], loss.detach()

    f = compiled(program)
    return f(x), f(x.detach().requires_grad_()), grads(net)


def unused_and_weighted(compiled):
    x, y, z = leaf(3), leaf(3, seed=1), leaf(3, seed=2)

    def program(x, y, z):
        out = x.sin() * y, y.exp()
        weights = torch.ones(3), torch.arange(3.0)
        unused = torch.autograd.grad(out, (x, y, z), weights, retain_graph=True, allow_unused=True)
        zeros = torch.autograd.grad(out, (x, z), weights, allow_unused=True, materialize_grads=True)
        return unused, zeros

    return compiled(program)(x, y, z)


def gradient_penalty(compiled):
    net, x = model(), leaf(3, 4)

    def program(x):
        (g,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return ((g.norm(dim=1) - 1) ** 2).mean() + net(x).sum()

    return gradients(compiled(program)(x), x, *net.parameters())


def penalty_at_a_point_made_inside(compiled):
    net, x, y = model(), torch.randn(3, 4), torch.randn(3, 4)

    def program(x, y):
        point = (x * 0.3 + y * 0.7).requires_grad_(True)
        (g,) = torch.autograd.grad(net(point).sum(), point, create_graph=True)
        return g.pow(2).sum()

    return gradients(compiled(program)(x, y), *net.parameters())


def intermediate(compiled):
    x = leaf(3)

    def program(x):
        y = x.sin()
        (g,) = torch.autograd.grad((y * y).sum(), y)
        return g

    return compiled(program)(x)


def backward_accumulates(compiled):
    net = model()

    def program(x):
        loss = net(x).pow(2).sum()
        loss.backward()
        return loss.detach()

    f, found = compiled(program), []
    for step in range(3):
        found.append((f(leaf(3, 4, seed=step)), grads(net)))
    identity = net[0].weight.grad
    f(leaf(3, 4))
    return found, net[0].weight.grad is identity, identity.stride()


def loss_that_was_used(compiled):
    net, x = model(), leaf(3, 4)

    def program(x):
        y = net(x)
        loss = y.pow(2).sum()
        loss.backward()
        return loss, y

    loss, y = compiled(program)(x)
    found = [loss.requires_grad, loss.is_leaf, y.requires_grad, y.is_leaf]
    for tensor in (loss, y.sum()):
        try:
            tensor.backward()
        except RuntimeError as error:
            found.append(str(error)[:40])
    return loss.detach(), found, x.grad, grads(net)


def retained(compiled):
    net, x = model(), leaf(3, 4)

    def program(x):
        loss = net(x).pow(2).sum()
        loss.backward(retain_graph=True)
        return loss

    loss = compiled(program)(x)
    first = grads(net)
    loss.backward()
    return first, grads(net), x.grad


def weighted_backward(compiled):
    net, x = model(), leaf(3, 4)

    def program(x):
        net(x).backward(torch.ones(3, 1) * 2)

    compiled(program)(x)
    return grads(net), x.grad


def backward_of_several(compiled):
    x, y = leaf(3), leaf(3, seed=1)

    def program(x, y):
        torch.autograd.backward([(x * y).sum(), y.sin()], [None, torch.ones(3)])

    compiled(program)(x, y)
    return x.grad, y.grad


def backward_to_chosen_inputs(compiled):
    x, y = leaf(3), leaf(3, seed=1)
    compiled(lambda x, y: (x * y).sum().backward(inputs=[x]))(x, y)
    return x.grad, y.grad


def gradients_share_no_memory(compiled):
    x, y = leaf(3), leaf(3, seed=1)

    def program(x, y):
        (x + y).sum().backward()

    compiled(program)(x, y)
    x.grad.add_(1)
    return x.grad, y.grad, x.grad.stride()


def gradients_are_cleared_inside(compiled):
    net, x = model(), leaf(3, 4)

    def program(x):
        net(x).sum().backward()
        norm = torch.stack([p.grad.norm() for p in net.parameters()]).sum()
        net.zero_grad(set_to_none=True)
        x.grad = None
        return norm

    f = compiled(program)
    return f(x), f(x), grads(net), x.grad


def gradients_are_zeroed_inside(compiled):
    net, x = model(), leaf(3, 4)
    net(x).sum().backward()

    def program(x):
        net.zero_grad(set_to_none=False)
        before = [p.grad.clone() for p in net.parameters()]
        net(x).sum().backward()
        return before

    return compiled(program)(x), grads(net)


def gradient_is_assigned(compiled):
    x = leaf(3)

    def program(x, g):
        x.grad = g * 2
        return x.grad + 1

    return compiled(program)(x, torch.ones(3)), x.grad


@may_break
def history_from_before(compiled):
    w = leaf(3)

    def program(y):
        loss = (y * y).sum()
        loss.backward()
        return loss.detach()

    return compiled(program)(w * 2), w.grad


@may_break
def gradient_through_what_was_before(compiled):
    w = leaf(3)

    def program(y, w):
        return torch.autograd.grad((y * w).sum(), w)

    return compiled(program)(w * 2, w)


def gradient_of_an_input_with_history(compiled):
    w = leaf(3)
    return compiled(lambda y: torch.autograd.grad((y * y).sum(), y))(w * 2)


@may_break
def hooks_are_called(compiled):
    net, x, log = model(), leaf(3, 4), []
    f = compiled(lambda x: net(x).pow(2).sum().backward())
    f(x)
    net[0].weight.register_hook(lambda g: g * 2)
    net[2].weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    f(x)
    return grads(net), log


def hooks_that_were_removed(compiled):
    """Of a leaf, and of one with a history."""
    x, log = leaf(3), []
    f = compiled(lambda y: torch.autograd.grad((y * y.sin()).sum(), y)[0])
    found = []
    for y in (x, x * 2):
        found.append(f(y))
        y.register_hook(lambda g: log.append(g)).remove()
        found.append(f(y))
    x.register_post_accumulate_grad_hook(log.append).remove()
    return found, f(x), log


@may_break
def second_backward_is_an_error(compiled):
    def program(x):
        loss = x.exp().sum()
        loss.backward()
        loss.backward()

    compiled(program)(leaf(3))


@may_break
def create_graph_in_grad(compiled):
    x = leaf(3)

    def program(x):
        (x**3).sum().backward(create_graph=True)
        return x.grad.requires_grad

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compiled(program)(x)
    g, x.grad = x.grad, None
    g.sum().backward()
    return found, g.detach(), x.grad.detach()


@may_break
def leaf_made_inside_is_returned(compiled):
    def program(x):
        w = torch.ones(3).requires_grad_()
        return (x * w).sum(), w

    loss, w = compiled(program)(torch.arange(3.0))
    loss.backward()
    return w.grad, w.is_leaf


@may_break
def only_a_leaf_made_inside_requires_grad(compiled):
    loss = compiled(lambda x: (x * torch.ones(3, requires_grad=True)).sum())(torch.arange(3.0))
    loss.backward()
    return loss.requires_grad


@may_break
def number_between(compiled):
    net, x, seen = model(), leaf(3, 4), []

    def program(x):
        loss = net(x).pow(2).sum()
        loss.backward()
        seen.append(round(loss.item(), 4))
        return [p.grad * 2 for p in net.parameters()]

    f = compiled(program)
    return f(x), f(x), seen


@may_break
def leaves_become_results(compiled):
    def program(x, z, y):
        x[0] = y
        view = z[1:]
        view.add_(y)
        with torch.no_grad():
            y.mul_(2)
        leaves = x.is_leaf, z.is_leaf, y.is_leaf
        return leaves, x.grad_fn is None, y.grad_fn is None, x * z

    return compiled(program)(torch.ones(3, 4), torch.ones(3, 4), leaf(4))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("detach", [torch.Tensor.detach_, torch.detach_])
def test_detaching_in_place_what_was_there_before(detach: Any, backend: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return detach(x), y + x

    found = []
    for function in (program, stator.compile(program, backend=backend)):
        leaf = torch.ones(3, requires_grad=True)
        x = leaf * 3
        result, total = function(x)
        total.sum().backward()
        found.append((result is x, x.requires_grad, x.is_leaf, leaf.grad.tolist()))
    assert found[0] == found[1]


@pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_inside_need_no_version_for_one_row(backend: str) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def step(x: torch.Tensor, keep: torch.Tensor) -> list[torch.Tensor]:
        layer(x, src_key_padding_mask=~keep).square().mean().backward()
        found = [parameter.grad for parameter in layer.parameters()]
        layer.zero_grad()
        return found

    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        length = size * 3 % 7
        return torch.randn(size, length, 8), torch.ones(size, length, dtype=torch.bool)

    check_sizes(step, make, backend=backend, sizes=(2, 4, 1, 5, 6), gradients=False)
