"""Objects reached by several paths, and modules and tensors changed in place, between two calls of compiled code."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from scenarios import Scenario, check, collector

scenarios, scenario = collector()
x = torch.arange(4.0)


@scenario
def hasattr_inst_del(compiled):
    class A:
        pass

    a = A()
    a.q = 5
    f = compiled(lambda t: t * 2 if hasattr(a, "q") else t)
    results = [f(x)]
    del a.q
    results.append(f(x))
    return results


@scenario
def getattr_default_del(compiled):
    class A:
        pass

    a = A()
    a.q = 5
    f = compiled(lambda t: (t + 1, getattr(a, "q", None)))
    results = [f(x)]
    del a.q
    results.append(f(x))
    a.q = "s"
    results.append(f(x))
    return results


@scenario
def hasattr_tensor(compiled):
    y = torch.ones(1)
    y.tag = 1
    f = compiled(lambda t: t * 2 if hasattr(y, "tag") else t)
    results = [f(x)]
    del y.tag
    results.append(f(x))
    return results


@scenario
def hasattr_module(compiled):
    m = torch.nn.Linear(4, 4)
    m.opt = 3
    f = compiled(lambda t: t * 2 if hasattr(m, "opt") else t)
    results = [f(x)]
    del m.opt
    results.append(f(x))
    m.register_buffer("opt", torch.ones(1))
    results.append(f(x))
    return results


@scenario
def buffer_none(compiled):
    m = torch.nn.Module()
    m.register_buffer("b", None)
    f = compiled(lambda t: t * 2 if m.b is None else t + m.b)
    results = [f(x)]
    m.b = torch.ones(4)
    results.append(f(x))
    m.b = None
    results.append(f(x))
    return results


@scenario
def param_none(compiled):
    m = torch.nn.Linear(4, 4, bias=False)
    f = compiled(lambda t: t * 2 if m.bias is None else t + m.bias)
    results = [f(x)]
    m.bias = torch.nn.Parameter(torch.ones(4))
    results.append(f(x))
    m.bias = None
    results.append(f(x))
    return results


@scenario
def str_is(compiled):
    f = compiled(lambda t, p: t * 2 if p is None else (t * 3 if p == "a" else t))
    return f(x, None), f(x, "a"), f(x, "b"), f(x, "".join(["a"]))


@scenario
def big_int(compiled):
    f = compiled(lambda t, k: t * (k % 7))
    return f(x, 2**70), f(x, 2**70 + 1), f(x, -(2**70))


@scenario
def float_inf(compiled):
    f = compiled(lambda t, k: t.clamp(max=k))
    return f(x, float("inf")), f(x, -float("inf")), f(x, 2.5)


@scenario
def list_same_obj_twice(compiled):
    def g(t, ls):
        ls[0].append(1)
        return t * len(ls[1])

    f = compiled(g)
    a, b = [], []
    return f(x, [a, b]), f(x, [a, a]), f(x, [b, a]), a, b


@scenario
def obj_attr_alias(compiled):
    class A:
        pass

    def g(t, a, b):
        a.v = 5
        return t * b.v

    a, b = A(), A()
    a.v = 1
    b.v = 2
    f = compiled(g)
    return f(x, a, b), f(x, b, b), f(x, b, a)


@scenario
def closure_alias(compiled):
    items = []

    def g(t, m):
        m.append(1)
        return t * len(items)

    f = compiled(g)
    return f(x, []), f(x, items), f(x, []), items


@scenario
def nested_fn_alias(compiled):
    class A:
        pass

    a = A()
    a.v = 1

    def h(b):
        b.v += 1
        return a.v

    f = compiled(lambda t, b: t * h(b))
    b = A()
    b.v = 5
    return f(x, b), f(x, a), f(x, b)


@scenario
def read_only_alias(compiled):
    class A:
        pass

    def g(t, a, b):
        return t * (a.v + b.v), a is b

    a, b = A(), A()
    a.v = 1
    b.v = 2
    f = compiled(g)
    return f(x, a, b), f(x, a, a), f(x, b, b)


@scenario
def fn_arg_partial_obj(compiled):
    class K:
        def __init__(s, k):
            s.k = k

        def __call__(s, t):
            return t * s.k

    f = compiled(lambda t, k: k(t))
    return f(x, K(2)), f(x, K(3)), f(x, functools.partial(K(2))), f(x, K(5).__call__)


@scenario
def module_list_dict(compiled):
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.items = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
            s.d = torch.nn.ModuleDict({"a": torch.nn.ReLU()})
            s.p = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4))])
            s.pl = [torch.nn.Linear(4, 4)]

        def forward(s, t):
            for q in s.items:
                t = q(t)
            for _k, v in s.d.items():
                t = v(t)
            return t + s.p[0] + s.pl[0](t)

    m = M()
    f = compiled(m)
    results = [f(x)]
    m.items.append(torch.nn.Tanh())
    results.append(f(x))
    m.d["b"] = torch.nn.Sigmoid()
    results.append(f(x))
    m.p[0] = torch.nn.Parameter(torch.zeros(4))
    results.append(f(x))
    m.items[0] = torch.nn.Identity()
    results.append(f(x))
    m.pl[0] = torch.nn.Identity()
    results.append(f(x))
    m.items.insert(0, torch.nn.ReLU())
    results.append(f(x))
    return results


@scenario
def weightnorm_parametrize(compiled):
    m = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
    f = compiled(m)
    results = [f(x)]
    with torch.no_grad():
        m.parametrizations.weight.original0.mul_(2)
    results.append(f(x))
    torch.nn.utils.parametrize.remove_parametrizations(m, "weight")
    results.append(f(x))
    return results


@scenario
def load_state(compiled):
    m = torch.nn.Linear(4, 4)
    f = compiled(m)
    results = [f(x)]
    m.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.ones(4)})
    results.append(f(x))
    m.load_state_dict({"weight": torch.zeros(4, 4), "bias": torch.ones(4)}, assign=True)
    results.append(f(x))
    return results


@scenario
def functional_call(compiled):
    m = torch.nn.Linear(4, 4)
    f = compiled(m)
    results = [f(x)]
    results.append(torch.func.functional_call(f, {"weight": torch.ones(4, 4), "bias": torch.zeros(4)}, (x,)))
    results.append(f(x))
    return results


@scenario
def to_dtype(compiled):
    m = torch.nn.Linear(4, 4)
    f = compiled(m)
    results = [f(x)]
    m.to(torch.bfloat16)
    results.append(f(x.bfloat16()))
    m.to(torch.float32)
    results.append(f(x))
    m.weight.data = m.weight.data.to(torch.float64)
    m.bias.data = m.bias.data.double()
    results.append(f(x.double()))
    return results


@scenario
def share_mem(compiled):
    m = torch.nn.Linear(4, 4)
    f = compiled(m)
    results = [f(x)]
    m.share_memory()
    results.append(f(x))
    with torch.no_grad():
        m.weight.zero_()
    results.append(f(x))
    return results


@scenario
def resize_param(compiled):
    a = torch.ones(4)
    f = compiled(lambda t: t * a.sum() + a.shape[0])
    results = [f(x)]
    a.resize_(2)
    results.append(f(x))
    a.set_(torch.full((6,), 2.0))
    results.append(f(x))
    a.t_()
    results.append(f(x))
    return results


@scenario
def transposed_inplace(compiled):
    a = torch.arange(6.0).view(2, 3)
    f = compiled(lambda: a * 2)
    results = [f()]
    a.t_()
    results.append(f())
    a.unsqueeze_(0)
    results.append(f())
    return results


@scenario
def memfmt_op(compiled):
    f = compiled(lambda a: (a + 1).stride())
    a = torch.ones(1, 2, 3, 3)
    return f(a), f(a.to(memory_format=torch.channels_last))


@scenario
def inference_inside(compiled):
    def g(t):
        with torch.inference_mode():
            u = t * 2
        return u.is_inference(), u + 0 if False else t + 1

    return compiled(g)(x)


@scenario
def autocast_inside(compiled):
    w = torch.ones(4, 4)

    def g(t):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            u = t @ w
        return u, t @ w

    return compiled(g)(torch.ones(2, 4))


@scenario
def seeds(compiled):
    def g(t):
        torch.manual_seed(3)
        return torch.rand(2)

    return compiled(g)(x), compiled(g)(x)


@pytest.mark.parametrize("function", scenarios, ids=lambda function: function.__name__)
def test_scenario(function: Scenario) -> None:
    check(function)
