"""Objects reached by several paths, and modules and tensors changed in place, between two calls of compiled code."""

from __future__ import annotations

import functools

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def str_is(compiled):
    f = compiled(lambda t, p: t * 2 if p is None else (t * 3 if p == "a" else t))
    return f(x, None), f(x, "a"), f(x, "b"), f(x, "".join(["a"]))


def big_int(compiled):
    f = compiled(lambda t, k: t * (k % 7))
    return f(x, 2**70), f(x, 2**70 + 1), f(x, -(2**70))


def float_inf(compiled):
    f = compiled(lambda t, k: t.clamp(max=k))
    return f(x, float("inf")), f(x, -float("inf")), f(x, 2.5)


def list_same_obj_twice(compiled):
    def g(t, ls):
        ls[0].append(1)
        return t * len(ls[1])

    f = compiled(g)
    a, b = [], []
    return f(x, [a, b]), f(x, [a, a]), f(x, [b, a]), a, b


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


def closure_alias(compiled):
    items = []

    def g(t, m):
        m.append(1)
        return t * len(items)

    f = compiled(g)
    return f(x, []), f(x, items), f(x, []), items


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


def fn_arg_partial_obj(compiled):
    class K:
        def __init__(s, k):
            s.k = k

        def __call__(s, t):
            return t * s.k

    f = compiled(lambda t, k: k(t))
    return f(x, K(2)), f(x, K(3)), f(x, functools.partial(K(2))), f(x, K(5).__call__)


def functional_call(compiled):
    m = torch.nn.Linear(4, 4)
    f = compiled(m)
    results = [f(x)]
    results.append(torch.func.functional_call(f, {"weight": torch.ones(4, 4), "bias": torch.zeros(4)}, (x,)))
    results.append(f(x))
    return results


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


def transposed_inplace(compiled):
    a = torch.arange(6.0).view(2, 3)
    f = compiled(lambda: a * 2)
    results = [f()]
    a.t_()
    results.append(f())
    a.unsqueeze_(0)
    results.append(f())
    return results


def memfmt_op(compiled):
    f = compiled(lambda a: (a + 1).stride())
    a = torch.ones(1, 2, 3, 3)
    return f(a), f(a.to(memory_format=torch.channels_last))


def inference_inside(compiled):
    def g(t):
        with torch.inference_mode():
            u = t * 2
        return u.is_inference(), u + 0 if False else t + 1

    return compiled(g)(x)


def autocast_inside(compiled):
    w = torch.ones(4, 4)

    def g(t):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            u = t @ w
        return u, t @ w

    return compiled(g)(torch.ones(2, 4))


def seeds(compiled):
    def g(t):
        torch.manual_seed(3)
        return torch.rand(2)

    return compiled(g)(x), compiled(g)(x)


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
