"""Tensors, modules and torch's modes that change between two calls of compiled code."""

from __future__ import annotations

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def tensor_attr(compiled):
    y = torch.ones(4)
    y.tag = 2
    f = compiled(lambda t: t * y.tag)
    results = [f(x)]
    y.tag = 5
    results.append(f(x))
    del y.tag
    try:
        f(x)
    except AttributeError as e:
        results.append(str(e))
    return results


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


def is_inference_in(compiled):
    with torch.inference_mode():
        z = torch.ones(4)
    f = compiled(lambda t: (t * 2, t.is_inference()))
    return [f(x), f(z), f(x)]


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


def default_device(compiled):
    f = compiled(lambda t: (torch.ones(2).device.type, t * 2))
    results = [f(x)]
    with torch.device("meta"):
        results.append(f(x)[0])
    return [*results, f(x)]


def conj_neg(compiled):
    z = torch.tensor([1 + 2j, 3 - 1j])
    f = compiled(lambda t: (t * 2, t.is_conj()))
    results = [f(z), f(z.conj()), f(z)]
    g = compiled(lambda t: (t * 2, t.is_neg()))
    im = z.conj().imag
    results += [g(z.imag), g(im)]
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


def torch_function_mode(compiled):
    from torch.overrides import TorchFunctionMode

    class M(TorchFunctionMode):
        def __torch_function__(self, fn, types, args=(), kwargs=None):
            results = fn(*args, **(kwargs or {}))
            return results + 100 if fn is torch.add else results

    f = compiled(lambda t: torch.add(t, 1))
    results = [f(x)]
    with M():
        results.append(f(x))
    return [*results, f(x)]


def dispatch_mode(compiled):
    from torch.utils._python_dispatch import TorchDispatchMode

    n = []

    class M(TorchDispatchMode):
        def __torch_dispatch__(self, fn, types, args=(), kwargs=None):
            n.append(str(fn))
            return fn(*args, **(kwargs or {}))

    f = compiled(lambda t: torch.add(t, 1))
    results = [f(x)]
    with M():
        results.append(f(x))
    return [*results, f(x), n]


def functorch_(compiled):
    f = compiled(lambda t: t.sin() * 2)
    results = [f(x)]
    results.append(torch.func.vmap(f)(torch.ones(3, 4)))
    results.append(torch.func.grad(lambda t: f(t).sum())(x))
    results.append(torch.func.jvp(f, (x,), (x,)))
    results.append(f(x))
    return results


def aliasing(compiled):
    f = compiled(lambda a, b: (a.add_(1), b * 2)[1])
    a = torch.ones(4)
    b = torch.ones(4)
    return [f(a, b), f(a, a), f(a, a[:]), f(a, b), f(a, a.view(2, 2)), f(a[1:], a[:3]), a]


def aliasing_ret(compiled):
    f = compiled(lambda a: (a.view(2, 2), a, a[1:], a.add_(1)))
    a = torch.ones(4)
    results = f(a)
    results[0].mul_(5)
    return [results, a, results[1] is a, results[3] is a, results[2]._base is a]


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


def module_hooks(compiled):
    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    f = compiled(m)
    results = [f(x)]
    h = m[0].register_forward_hook(lambda m, i, o: o + 100)
    results.append(f(x))
    h.remove()
    results.append(f(x))
    h = m.register_forward_pre_hook(lambda m, i: (i[0] * 2,))
    results.append(f(x))
    h.remove()
    h = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o + 1)
    results.append(f(x))
    h.remove()
    results.append(f(x))
    m[0].forward = lambda t: t * 3
    results.append(f(x))
    del m[0].forward
    results.append(f(x))
    h = f.register_forward_hook(lambda m, i, o: o * 0)
    results.append(f(x))
    h.remove()
    h = m[1].register_forward_hook(lambda m, a, k, o: o + 7, with_kwargs=True)
    results.append(f(x))
    h.remove()
    h = m[0].register_full_backward_hook(lambda m, a, b: None)
    results.append(f(x))
    h.remove()
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
