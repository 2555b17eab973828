"""Tensors, modules and torch's modes that change between two calls of compiled code."""

from __future__ import annotations

import pytest
import torch
from tests.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def requires_grad_flip(compiled):
    f = compiled(lambda t: (t * 2, t.requires_grad, t.is_leaf))
    a = torch.ones(3)
    results = [f(a)]
    a.requires_grad_()
    results.append(f(a))
    b = a * 1
    results.append(f(b))
    with torch.no_grad():
        results.append(f(a))
    return results


def grad_none(compiled):
    a = torch.ones(3, requires_grad=True)
    f = compiled(lambda t: t * 2 if a.grad is None else t * a.grad)
    results = [f(x[:3])]
    a.grad = torch.full((3,), 5.0)
    results.append(f(x[:3]))
    a.grad = None
    results.append(f(x[:3]))
    return results


def grad_mode(compiled):
    w = torch.ones(4, requires_grad=True)
    f = compiled(lambda t: (t * w, torch.is_grad_enabled()))
    results = [f(x)]
    with torch.no_grad():
        results.append(f(x))
    with torch.inference_mode():
        a = f(x)
        results += [a, a[0].is_inference(), f(torch.ones(4))]
    results.append(f(x))
    return results


def autocast_(compiled):
    w = torch.randn(4, 4)
    f = compiled(lambda t: t @ w)
    a = torch.ones(2, 4)
    results = [f(a).dtype == torch.float32]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results.append(f(a))
    with torch.autocast("cpu", dtype=torch.float16):
        results.append(f(a).dtype == torch.float16)
    results.append(f(a))
    return results


def subclass(compiled):
    class S(torch.Tensor):
        @classmethod
        def __torch_function__(cls, fn, types, args=(), kwargs=None):
            results = super().__torch_function__(fn, types, args, kwargs or {})
            return results

    s = torch.ones(4).as_subclass(S)
    f = compiled(lambda t: (t * 2, type(t).__name__))
    return [f(x), f(s), f(x)]


def aliasing(compiled):
    f = compiled(lambda a, b: (a.add_(1), b * 2)[1])
    a = torch.ones(4)
    b = torch.ones(4)
    return [f(a, b), f(a, a), f(a, a[:]), f(a, b), f(a, a.view(2, 2)), f(a[1:], a[:3]), a]


def strides(compiled):
    f = compiled(lambda t: (t + 1).stride() + t.stride())
    a = torch.ones(3, 4)
    return [f(a), f(a.t().contiguous().t()), f(torch.ones(3, 8)[:, ::2]), f(a[:1]), f(torch.ones(4, 1).t())]


def storage_offset(compiled):
    f = compiled(lambda t: t.storage_offset() * t)
    b = torch.arange(8.0)
    return [f(b[:4]), f(b[4:])]


def module_swap(compiled):
    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    f = compiled(m)
    results = [f(x)]
    m[1] = torch.nn.Sigmoid()
    results.append(f(x))
    m.append(torch.nn.Linear(4, 2))
    results.append(f(x))
    del m[2]
    results.append(f(x))
    m[0].weight = torch.nn.Parameter(torch.eye(4))
    results.append(f(x))
    m[0].weight.data = torch.eye(4) * 3
    results.append(f(x))
    m[0].weight.data.mul_(2)
    results.append(f(x))
    m[0].bias = None
    results.append(f(x))
    m.double()
    results.append(f(x.double()))
    m.float()
    results.append(f(x))
    m[0].weight.requires_grad_(False)
    results.append(f(x))
    return results


def module_data_shape(compiled):
    m = torch.nn.Linear(4, 4)
    f = compiled(m)
    results = [f(x)]
    m.weight.data = torch.ones(2, 4)
    m.bias.data = torch.zeros(2)
    results.append(f(x))
    m.weight.data = torch.ones(4, 2).t()
    results.append(f(x))
    m.weight.data = m.weight.data.double()
    m.bias.data = m.bias.data.double()
    results.append(f(x.double()))
    return results


def module_nograd_data(compiled):
    m = torch.nn.Linear(4, 4)
    f = compiled(m)
    results = []
    with torch.no_grad():
        results.append(f(x))
        m.weight.data = torch.ones(4, 4)
        results.append(f(x))
        m.weight.set_(torch.ones(4, 4) * 7)
        results.append(f(x))
        m.weight.copy_(torch.ones(4, 4) * 9)
        results.append(f(x))
        m.weight.data = torch.full((8, 4), 2.0)[::2]
        results.append(f(x))
    return results


def module_training(compiled):
    m = torch.nn.Sequential(torch.nn.Dropout(0.999999), torch.nn.BatchNorm1d(4, momentum=0.5))
    f = compiled(m)
    a = torch.randn(6, 4)
    m.eval()
    results = [f(a)]
    m.train()
    m[0].eval()
    results.append(f(a))
    results.append(m[1].running_mean)
    results.append(m[1].num_batches_tracked)
    m.eval()
    results.append(f(a))
    m[1].eps = 0.5
    results.append(f(a))
    m[1].training = True
    results.append(f(a))
    m[1].momentum = None
    results.append(f(a))
    results.append(m[1].running_mean)
    return results


def module_attr(compiled):
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.k = 2
            s.register_buffer("b", torch.ones(4))
            s.cfg = {"a": 1}
            s.p = None

        def forward(s, t):
            return t * s.k * s.b + s.cfg["a"] + (0 if s.p is None else s.p)

    m = M()
    f = compiled(m)
    results = [f(x)]
    m.k = 3
    results.append(f(x))
    m.b = torch.full((4,), 2.0)
    results.append(f(x))
    m.cfg = {"a": 7}
    results.append(f(x))
    m.p = 4
    results.append(f(x))
    m.p = None
    del m.b
    m.register_buffer("b", torch.zeros(4), persistent=False)
    results.append(f(x))
    del m.b
    m.b = 5
    results.append(f(x))
    f.k = 100
    results.append(f(x))
    return results


def num_threads(compiled):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        f = compiled(lambda t: t * torch.get_num_threads())
        results = [f(x)]
        torch.set_num_threads(2)
        return [*results, f(x)]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
