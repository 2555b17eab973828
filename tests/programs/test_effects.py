"""What compiled code changes and shares, beside plain Python."""

from __future__ import annotations

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def boom(t):
    raise ValueError("boom")


G = 0
GL = []


def list_aliasing(compiled):
    def g(a, b, t):
        a.append(t * 2)
        b.append(t * 3)
        return a is b, len(a)

    f = compiled(g)
    l1, l2 = [], []
    results = [f(l1, l2, x), f(l1, l1, x), f(l2, l1, x)]
    return results, l1, l2


def obj_identity(compiled):
    class A:
        pass

    def g(a, t):
        b = A()
        b.p = a
        a.c = b
        a.t = t * 2
        b.t = a.t
        return b

    a = A()
    b = compiled(g)(a, x)
    return a.c is b, b.p is a, b.t is a.t, b.t


def tensor_identity(compiled):
    def g(a, b):
        c = a + b
        d = c
        e = c.view(-1)
        return c, d, e, a, [c, a], {"k": c}

    results = compiled(g)(x, x + 1)
    return (
        results[0] is results[1],
        results[4][0] is results[0],
        results[5]["k"] is results[0],
        results[2]._base is results[0],
        results[0],
    )


def inplace_order(compiled):
    def g(a):
        b = a.clone()
        items = [b]
        a.add_(1)
        c = a * 2
        a.mul_(3)
        items.append(a)
        a[0] = 7
        return b, c, a, items

    y = x.clone()
    results = compiled(g)(y)
    return results, y, results[3][1] is y


def inplace_view(compiled):
    def g(a):
        v = a[1:3]
        v.add_(10)
        w = a.view(2, 2).t()
        w.mul_(2)
        return v, w, a.sum()

    y = x.clone()
    results = compiled(g)(y)
    y.add_(1)
    return results, y


def inplace_param(compiled):
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("n", torch.zeros(()))
            s.register_buffer("h", torch.zeros(3))
            s.c = 0
            s.log = []

        def forward(s, t):
            s.n += 1
            s.h = s.h * 0.5 + t.mean()
            s.c += 1
            s.log.append(s.c)
            return t * s.n + s.h.sum()

    m = M()
    f = compiled(m)
    results = [f(x), f(x), f(x)]
    return results, m.n, m.h, m.c, m.log, [n for n, _ in m.named_buffers()]


def setattr_new(compiled):
    class A:
        pass

    a = A()

    def g(t):
        a.z = 1
        a.b = t
        del a.z
        a.q = t + 1
        return t

    compiled(g)(x)
    return list(a.__dict__), a.q


def attr_order(compiled):
    class A:
        pass

    a = A()
    a.p = 1

    def g(t):
        a.z = t
        a.y = t + 1
        a.p = 2
        del a.z
        a.z = 5
        return t * 2

    compiled(g)(x)
    return list(a.__dict__.items())


def dict_order_mut(compiled):
    d = {"a": 1, "b": 2}

    def g(t):
        d["c"] = t
        v = d.pop("a")
        d["a"] = v
        d.update(b=9)
        d.setdefault("z", []).append(t)
        return t * 2

    compiled(g)(x)
    return d


def func_attr_write(compiled):
    def h(t):
        h.n += 1
        return t * h.n

    h.n = 0
    f = compiled(h)
    return f(x), f(x), h.n


def tensor_attr_write(compiled):
    def g(t):
        y = t * 2
        y.tag = 5
        t.seen = True
        return y

    z = x.clone()
    y = compiled(g)(z)
    return y.tag, z.seen


def return_const(compiled):
    return compiled(
        lambda t: (
            1,
            None,
            True,
            "s",
            1.5,
            (1, 2),
            [],
            {},
            set(),
            frozenset({1}),
            b"a",
            ...,
            slice(1, 2),
            range(3),
            int,
            torch.float32,
            t.shape,
        )
    )(x)


def fresh_each_call(compiled):
    f = compiled(lambda t: ([], {}, set(), [1, 2], t + 1))
    a = f(x)
    a[0].append(1)
    a[1]["k"] = 1
    a[3].append(5)
    b = f(x)
    return a[:4], b[:4]


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
