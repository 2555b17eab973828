"""Classes, functions and globals that change between two calls of compiled code."""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from scenarios import Scenario, check, collector

scenarios, scenario = collector()
x = torch.arange(4.0)


@scenario
def class_attr_shadow(compiled):
    class A:
        scale = 1

    class B(A):
        pass

    b = B()
    f = compiled(lambda t: t * b.scale)
    results = [f(x)]
    B.scale = 5
    results.append(f(x))
    del B.scale
    results.append(f(x))
    A.scale = 7
    results.append(f(x))
    return results


@scenario
def method_shadow(compiled):
    class A:
        def m(self, t):
            return t + 1

    class B(A):
        pass

    b = B()
    f = compiled(lambda t: b.m(t))
    results = [f(x)]
    B.m = lambda self, t: t + 100
    results.append(f(x))
    return results


@scenario
def getattr_added(compiled):
    class A:
        pass

    a = A()
    f = compiled(lambda t: t * getattr(a, "q", 3))
    results = [f(x)]
    A.__getattr__ = lambda s, n: 10
    results.append(f(x))
    return results


@scenario
def getattribute_added(compiled):
    class A:
        pass

    a = A()
    a.q = 2
    f = compiled(lambda t: t * a.q)
    results = [f(x)]
    A.__getattribute__ = lambda s, n: 10
    results.append(f(x))
    return results


@scenario
def hasattr_class_added(compiled):
    class A:
        pass

    a = A()
    f = compiled(lambda t: t * 2 if hasattr(a, "q") else t)
    results = [f(x)]
    A.q = 1
    results.append(f(x))
    return results


@scenario
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


@scenario
def property_added(compiled):
    class A:
        pass

    a = A()
    a.q = 2
    f = compiled(lambda t: t * a.q)
    results = [f(x)]
    A.q = property(lambda s: 50)
    results.append(f(x))
    return results


@scenario
def prop_replaced(compiled):
    class A:
        q = property(lambda s: 5)

    a = A()
    f = compiled(lambda t: t * a.q)
    results = [f(x)]
    A.q = property(lambda s: 50)
    results.append(f(x))
    A.q = 3
    results.append(f(x))
    return results


@scenario
def class_change(compiled):
    class A:
        def m(self):
            return 1

    class B:
        def m(self):
            return 2

    a = A()
    f = compiled(lambda t: t * a.m())
    results = [f(x)]
    a.__class__ = B
    results.append(f(x))
    return results


@scenario
def len_added(compiled):
    class A:
        pass

    a = A()
    f = compiled(lambda t: t * 2 if a else t)
    results = [f(x)]
    A.__len__ = lambda s: 0
    results.append(f(x))
    A.__bool__ = lambda s: True
    results.append(f(x))
    return results


@scenario
def eq_added(compiled):
    class A:
        pass

    a, b = A(), A()
    f = compiled(lambda t: t * 2 if a == b else t)
    results = [f(x)]
    A.__eq__ = lambda s, o: True
    results.append(f(x))
    return results


@scenario
def eq_obj_same(compiled):
    class A:
        pass

    a, b = A(), A()
    f = compiled(lambda t, a, b: t * 2 if a == b else t)
    results = [f(x, a, b), f(x, a, a)]
    return results


@scenario
def defaults_changed(compiled):
    def h(t, k=2, *, z=3):
        return t * k + z

    f = compiled(lambda t: h(t))
    results = [f(x)]
    h.__defaults__ = (7,)
    results.append(f(x))
    h.__kwdefaults__ = {"z": 100}
    results.append(f(x))
    h.__kwdefaults__["z"] = 200
    results.append(f(x))
    return results


@scenario
def own_defaults_changed(compiled):
    def h(t, k=2, *, z=3):
        return t * k + z

    f = compiled(h)
    results = [f(x)]
    h.__defaults__ = (7,)
    results.append(f(x))
    h.__kwdefaults__["z"] = 200
    results.append(f(x))
    return results


@scenario
def code_changed(compiled):
    def h(t):
        return t + 1

    def h2(t):
        return t + 2

    f = compiled(lambda t: h(t))
    results = [f(x)]
    h.__code__ = h2.__code__
    results.append(f(x))
    return results


G_SCALE = 2


def ghelper(t, k=2):
    return t * k * G_SCALE


@scenario
def global_code_changed(compiled):
    global G_SCALE
    d, c = ghelper.__defaults__, ghelper.__code__

    def h2(t, k=2):
        return t + k

    f = compiled(lambda t: ghelper(t))
    results = [f(x)]
    ghelper.__defaults__ = (5,)
    results.append(f(x))
    G_SCALE = 3
    results.append(f(x))
    ghelper.__code__ = h2.__code__
    results.append(f(x))
    ghelper.__code__ = c
    ghelper.__defaults__ = d
    G_SCALE = 2
    return results


@scenario
def closure_cell(compiled):
    k = 1

    def h(t):
        return t * k

    f = compiled(h)
    results = [f(x)]
    k = 2
    results.append(f(x))
    k = 2.0
    results.append(f(x))
    k = True
    results.append(f(x))
    k = 1
    results.append(f(x))
    return results


@scenario
def partial_(compiled):
    def h(t, k, z=1):
        return t * k + z

    p = functools.partial(h, k=3)
    f = compiled(lambda t: p(t))
    results = [f(x)]
    p.keywords["k"] = 9
    results.append(f(x))
    return results


@scenario
def partial_arg(compiled):
    def h(k, t, z=1):
        return t * k + z

    f = compiled(lambda p, t: p(t))
    return [f(functools.partial(h, 3), x), f(functools.partial(h, 4), x), f(functools.partial(h, 4, z=5), x)]


@scenario
def lru(compiled):
    n = [0]

    @functools.lru_cache
    def h(k):
        n[0] += 1
        return k * n[0]

    f = compiled(lambda t: t * h(2))
    return [f(x), f(x), n[0]]


@scenario
def builtins_patched(compiled):
    import builtins

    f = compiled(lambda t: t * divmod(7, 2)[0])
    results = [f(x)]
    old = builtins.divmod
    builtins.divmod = lambda *v: (50, 0)
    try:
        results.append(f(x))
    finally:
        builtins.divmod = old
    return [*results, f(x)]


@scenario
def global_shadow_builtin(compiled):
    f = compiled(lambda t: t * max(1, 2))
    results = [f(x)]
    globals()["max"] = lambda *a: 50
    try:
        results.append(f(x))
    finally:
        del globals()["max"]
    return [*results, f(x)]


@scenario
def torch_patched(compiled):
    f = compiled(lambda t: torch.sin(t))
    results = [f(x)]
    old = torch.sin
    torch.sin = torch.cos
    try:
        results.append(f(x))
    finally:
        torch.sin = old
    return [*results, f(x)]


@scenario
def F_patched(compiled):
    m = torch.nn.ReLU()
    f = compiled(m)
    results = [f(x - 2)]
    old = torch.nn.functional.relu
    torch.nn.functional.relu = lambda t, inplace=False: t
    try:
        results.append(f(x - 2))
    finally:
        torch.nn.functional.relu = old
    return [*results, f(x - 2)]


@scenario
def tensor_method_patched(compiled):
    f = compiled(lambda t: t.sin() + t * 2)
    results = [f(x)]
    torch.Tensor.sin = lambda s: s + 1000
    try:
        results.append(f(x))
    finally:
        del torch.Tensor.sin
    return [*results, f(x)]


@scenario
def isinst(compiled):
    class A:
        pass

    class B(A):
        pass

    f = compiled(lambda t, a: t * 2 if isinstance(a, A) else t)
    return [f(x, A()), f(x, 3), f(x, B()), f(x, None)]


@scenario
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


@scenario
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


@scenario
def descriptor(compiled):
    class D:
        def __init__(s):
            s.v = 2

        def __get__(s, o, c):
            return s.v

    class A:
        d = D()

    a = A()
    f = compiled(lambda t: t * a.d)
    results = [f(x)]
    A.__dict__["d"].v = 9
    results.append(f(x))
    a.__dict__["d"] = 100
    results.append(f(x))
    return results


@scenario
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


@scenario
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


@scenario
def func_in_arg(compiled):
    def mk(v):
        def h(t, z=v):
            return t * v + z

        return h

    f = compiled(lambda t, h: h(t))
    return [f(x, mk(1)), f(x, mk(2)), f(x, mk(1)), f(x, torch.sin), f(x, torch.cos), f(x, lambda t: t + 9)]


@scenario
def method_in_arg(compiled):
    class A:
        def __init__(s, k):
            s.k = k

        def m(s, t):
            return t * s.k

    f = compiled(lambda t, h: h(t))
    return [f(x, A(1).m), f(x, A(2).m), f(x, x.mul), f(x, torch.ones(4).mul), f(x, [1, 2].count)]


@scenario
def func_attr(compiled):
    def h(t):
        return t * h.k

    h.k = 2
    f = compiled(h)
    results = [f(x)]
    h.k = 5
    results.append(f(x))
    return results


@scenario
def module_global_of_other(compiled):
    import sys
    import types as ty

    m = ty.ModuleType("r1mod")
    exec("K=2\ndef h(t): return t*K\n", m.__dict__)
    sys.modules["r1mod"] = m
    f = compiled(lambda t: m.h(t))
    results = [f(x)]
    m.K = 5
    results.append(f(x))
    m.h = lambda t: t
    results.append(f(x))
    return results


@scenario
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


@scenario
def same_code_other_globals(compiled):
    s = "def h(t): return t*K"
    a = {"K": 2}
    b = {"K": 3}
    exec(s, a)
    exec(s, b)
    f = compiled(lambda t, h: h(t))
    h2 = types.FunctionType(a["h"].__code__, b)
    return [f(x, a["h"]), f(x, b["h"]), f(x, h2)]


@pytest.mark.parametrize("function", scenarios, ids=lambda function: function.__name__)
def test_scenario(function: Scenario) -> None:
    check(function)
