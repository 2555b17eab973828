"""Closures, containers, objects, names and tensors that compiled code makes, changes and shares, against eager."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from tests.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


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


def closure_returned_shared_cell(compiled):
    def g(t):
        n = 0

        def inc():
            nonlocal n
            n += 1
            return n

        def get():
            return n

        inc()
        return inc, get, t + n

    a, b, t = compiled(g)(x)
    a()
    a()
    return a(), b(), t


def closure_mutated_after_break(compiled):
    def g(t):
        n = 0

        def inc():
            nonlocal n
            n += 1
            return n

        inc()
        v = t.sum().item()
        inc()
        return inc, n, t * v

    a, n, t = compiled(g)(x)
    return a(), n, t


def item_loop(compiled):
    def g(t):
        i = 0
        acc = []
        while t.sum() < 100 and i < 10:
            t = t * 2
            acc.append(float(t[1]))
            i += 1
        return t, acc, i

    return compiled(g)(x)


def boom(t):
    raise ValueError("boom")


G = 0
GL = []


def bare_except_ctx(compiled):
    items = []

    class M:
        def __enter__(s):
            items.append("in")
            return s

        def __exit__(s, k, v, tb):
            items.append(("out", k and k.__name__, str(v), tb is not None))
            return True

    def g(t):
        with M():
            boom(t)
        return t + 1

    return compiled(g)(x), items


def globals_write(compiled):
    def g(t):
        global G
        G += 1
        GL.append(G)
        return t * G

    global G
    G = 0
    GL.clear()
    f = compiled(g)
    return f(x), f(x), G, list(GL)


def nonlocal_shared(compiled):
    def make():
        n = 0

        def inc():
            nonlocal n
            n += 1
            return n

        def get():
            return n

        return inc, get

    inc, get = make()
    f = compiled(lambda t: t * inc() + get())
    return f(x), f(x), get(), inc()


def lock_(compiled):
    lk = threading.Lock()

    def g(t):
        with lk:
            return t * 2

    return compiled(g)(x), lk.locked()


def compile_inside(compiled):
    def g(t):
        h = compiled(lambda u: u * 2)
        return h(t) + 1

    return compiled(g)(x)


def gc_during(compiled):
    f = compiled(lambda t: (t * 2, gc.collect() * 0))
    return f(x)


def fx_trace(compiled):
    f = compiled(lambda t: t * 2)
    g = torch.fx.symbolic_trace(lambda t: f(t) + 1)
    return g(x)


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
