"""Hooks on gradients, in compiled code and around it, against eager: order, values, logs."""

from __future__ import annotations

import pytest
import torch
from tests.scenarios import BACKENDS, Scenario, check, gradients, leaf, may_break, scenarios
from torch import nn


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


@may_break
def that_only_computes(compiled):
    x, w = leaf(3), leaf(3, seed=1)

    def program(x, w):
        y = x.sin()
        y.register_hook(lambda g: g * 2 + w.detach())
        return (y * y * w).sum()

    f = compiled(program)
    return [gradients(f(x, w), x, w) for _ in range(2)]


@may_break
def that_keeps_the_gradient(compiled):
    def program(x):
        y = x.sin()
        y.register_hook(lambda g: None)
        y.register_hook(lambda g: g.clamp(max=0.1))
        return (y * y).sum()

    x = leaf(3)
    return gradients(compiled(program)(x), x)


@may_break
def on_a_result(compiled):
    def program(x):
        y = x * 2
        y.register_hook(lambda g: g.clamp(max=0.5))
        return y, y.exp().sum()

    x = leaf(3)
    y, loss = compiled(program)(x)
    both = gradients(loss + y.sum(), x)
    y, loss = compiled(program)(x)
    return both, gradients(y.sum(), x)


@may_break
def before_and_after_a_write_in_place(compiled):
    def program(x):
        y = x * 2
        y.register_hook(lambda g: g * 3)
        y.mul_(5)
        y.register_hook(lambda g: g + 1)
        return y.sum()

    x = leaf(3)
    return gradients(compiled(program)(x), x)


@may_break
def that_logs(compiled):
    log = []

    def program(x):
        y = x.sin()
        y.register_hook(lambda g: log.append(g.clone()))
        return (y * y).sum()

    f, x = compiled(program), leaf(3)
    return [gradients(f(x), x) for _ in range(2)], log


@may_break
def that_is_removed(compiled):
    def program(x):
        y = x.sin()
        handle = y.register_hook(lambda g: g * 2)
        handle.remove()
        return (y * y).sum()

    x = leaf(3)
    return gradients(compiled(program)(x), x)


@may_break
def whose_handle_is_returned(compiled):
    def program(x):
        y = x.sin()
        return (y * y).sum(), y.register_hook(lambda g: g * 2)

    x = leaf(3)
    loss, handle = compiled(program)(x)
    handle.remove()
    return gradients(loss, x)


@may_break
def that_raises(compiled):
    def program(x):
        y = x.sin()

        def hook(g):
            raise ValueError("a hook")

        y.register_hook(hook)
        return (y * y).sum()

    x = leaf(3)
    return gradients(compiled(program)(x), x)


@may_break
def on_an_input(compiled):
    def program(x):
        x.register_hook(lambda g: g * 3)
        return (x * x).sum()

    f, found = compiled(program), []
    for _ in range(2):
        x = leaf(3)
        found.append(gradients(f(x), x))
    return found


@may_break
def retained_gradient(compiled):
    def program(x):
        y = x.exp()
        y.retain_grad()
        return (y * y).sum(), y

    x = leaf(3)
    loss, y = compiled(program)(x)
    (loss + y.sum()).backward()
    return x.grad, y.grad


@may_break
def retained_gradients_beside_hooks_views_and_writes(compiled):
    def hooked(x):
        y = x * 2
        y.retain_grad()
        y.register_hook(lambda g: g * 3)
        z = y.sin()
        z.retain_grad()
        return (y * z).sum(), y, z

    def viewed(x):
        y = x * 2
        part = y.view(-1)
        part.retain_grad()
        y.retain_grad()
        return (part * part).sum() + y.sum(), y, part

    def written(x):
        y = x * 2
        y.retain_grad()
        y.mul_(3)
        return (y * y.detach()).sum(), y

    found = []
    for program in (hooked, viewed, written):
        f = compiled(program)
        for _ in range(2):
            x = leaf(3)
            loss, *kept = f(x)
            loss.backward()
            found.append((x.grad, [one.grad for one in kept], [one.retains_grad for one in kept]))
    return found


@may_break
def retained_gradient_of_an_attribute(compiled):
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()[0]

        def forward(self, x):
            self.seen = self.inner(x).relu()
            self.seen.retain_grad()
            return self.inner(self.seen).sum()

    module, x = Keeps(), leaf(3, 4)
    f = compiled(module)
    return [(gradients(f(x), x, *module.parameters()), module.seen.grad) for _ in range(2)]


@may_break
def on_several_at_once(compiled):
    log = []

    def program(x):
        a, b = x.sin(), x.cos()
        torch.autograd.graph.register_multi_grad_hook((a, b), lambda found: log.append(list(found)))
        return (a * b).sum()

    x = leaf(3)
    return gradients(compiled(program)(x), x), log


@may_break
def saved_tensors_inside(compiled):
    def program(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 2):
            return x.exp().sum()

    x = leaf(3)
    return gradients(compiled(program)(x), x)


def saved_tensors_outside(compiled):
    f, x = compiled(lambda x: (x.exp() * x.sin()).sum()), leaf(3)
    with torch.autograd.graph.save_on_cpu():
        loss = f(x)
    return gradients(loss, x)


@may_break
def of_modules(compiled):
    net, x, log = model(), leaf(3, 4), []
    net[0].register_full_backward_hook(lambda module, into, out: log.append(out[0].clone()))
    net[1].register_full_backward_hook(lambda module, into, out: (into[0] * 2,))
    net[2].register_full_backward_pre_hook(lambda module, out: (out[0] * 3,))
    f = compiled(net)
    return [gradients(f(x).sum(), x, *net.parameters()) for _ in range(2)], log


def of_forward(compiled):
    net, x = model(), leaf(3, 4)
    net[0].register_forward_hook(lambda module, args, result: result * 2)
    net[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return gradients(compiled(net)(x).sum(), x, *net.parameters())


def on_parameters_outside(compiled):
    net, x, log = model(), leaf(3, 4), []
    net[2].weight.register_hook(lambda g: g * 5)
    net[0].weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    f = compiled(net)
    return [gradients(f(x).sum(), x, *net.parameters()) for _ in range(2)], log


def on_inputs_outside(compiled):
    f, x, log = compiled(lambda x: (x * x.sin()).sum()), leaf(3), []
    x.register_hook(lambda g: (log.append(g.clone()), g * 2)[1])
    y = x * 1
    y.register_hook(lambda g: (log.append(g.clone()), g * 3)[1])
    return gradients(f(x), x), gradients(f(y), x), log


def on_results_outside(compiled):
    f, x, log = compiled(lambda x: (x * x.sin(), x.exp())), leaf(3), []
    a, b = f(x)
    a.register_hook(lambda g: (log.append(g.clone()), g * 2)[1])
    b.retain_grad()
    return gradients((a * b).sum(), x), log, b.grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True)
