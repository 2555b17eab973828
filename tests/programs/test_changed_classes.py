"""Classes, functions and globals that change between two calls of compiled code."""

from __future__ import annotations

import functools
import types

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def setattr_added(compiled):
    class A:
        pass

    a = A()

    def g(t):
        a.v = t * 2
        return t + 1

    f = compiled(g)
    results = [f(x), a.v]
    A.__setattr__ = lambda s, n, v: object.__setattr__(s, n, v * 10)
    results += [f(x), a.v]
    return results


def eq_obj_same(compiled):
    class A:
        pass

    a, b = A(), A()
    f = compiled(lambda t, a, b: t * 2 if a == b else t)
    results = [f(x, a, b), f(x, a, a)]
    return results


G_SCALE = 2


def ghelper(t, k=2):
    return t * k * G_SCALE


def partial_arg(compiled):
    def h(k, t, z=1):
        return t * k + z

    f = compiled(lambda p, t: p(t))
    return [f(functools.partial(h, 3), x), f(functools.partial(h, 4), x), f(functools.partial(h, 4, z=5), x)]


def lru(compiled):
    n = [0]

    @functools.lru_cache
    def h(k):
        n[0] += 1
        return k * n[0]

    f = compiled(lambda t: t * h(2))
    return [f(x), f(x), n[0]]


def isinst(compiled):
    class A:
        pass

    class B(A):
        pass

    f = compiled(lambda t, a: t * 2 if isinstance(a, A) else t)
    return [f(x, A()), f(x, 3), f(x, B()), f(x, None)]


def isinst_meta(compiled):
    import abc

    class P(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    f = compiled(lambda t, a: t * 2 if isinstance(a, P) else t)
    results = [f(x, A())]
    P.register(A)
    results.append(f(x, A()))
    return results


def slots(compiled):
    class A:
        __slots__ = ("k", "q")

    a = A()
    a.k = 2
    f = compiled(lambda t: t * a.k)
    results = [f(x)]
    a.k = 5
    results.append(f(x))
    g = compiled(lambda t: t * 2 if hasattr(a, "q") else t)
    results.append(g(x))
    a.q = 1
    results.append(g(x))
    return results


def cached_property(compiled):
    class A:
        n = 0

        @functools.cached_property
        def v(s):
            s.n += 1
            return s.n * 10

    a = A()
    f = compiled(lambda t: t * a.v)
    results = [f(x), a.n, f(x), a.n]
    del a.__dict__["v"]
    results += [f(x), a.n]
    return results


def class_in_arg(compiled):
    class A:
        k = 1

    class B:
        k = 2

    f = compiled(lambda t, c: t * c.k)
    results = [f(x, A), f(x, B)]
    A.k = 9
    results.append(f(x, A))
    return results


def func_in_arg(compiled):
    def mk(v):
        def h(t, z=v):
            return t * v + z

        return h

    f = compiled(lambda t, h: h(t))
    return [f(x, mk(1)), f(x, mk(2)), f(x, mk(1)), f(x, torch.sin), f(x, torch.cos), f(x, lambda t: t + 9)]


def method_in_arg(compiled):
    class A:
        def __init__(s, k):
            s.k = k

        def m(s, t):
            return t * s.k

    f = compiled(lambda t, h: h(t))
    return [f(x, A(1).m), f(x, A(2).m), f(x, x.mul), f(x, torch.ones(4).mul), f(x, [1, 2].count)]


def exec_ns(compiled):
    ns = {"K": 2}
    exec("def h(t): return t*K", ns)
    f = compiled(ns["h"])
    results = [f(x)]
    ns["K"] = 3
    results.append(f(x))
    g = compiled(lambda t: ns["h"](t))
    results.append(g(x))
    ns["K"] = 8
    results.append(g(x))
    return results


def same_code_other_globals(compiled):
    s = "def h(t): return t*K"
    a = {"K": 2}
    b = {"K": 3}
    exec(s, a)
    exec(s, b)
    f = compiled(lambda t, h: h(t))
    h2 = types.FunctionType(a["h"].__code__, b)
    return [f(x, a["h"]), f(x, b["h"]), f(x, h2)]


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
