"""Attributes and names that appear or vanish between two calls of compiled code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from scenarios import Scenario, check, collector

scenarios, scenario = collector()
x = torch.arange(4.0)


@scenario
def hasattr_fn(compiled):
    def h(t):
        return t

    h.k = 2
    f = compiled(lambda t: t * 2 if hasattr(h, "k") else t)
    results = [f(x)]
    del h.k
    results.append(f(x))
    return results


@scenario
def hasattr_class(compiled):
    class A:
        k = 1

    f = compiled(lambda t: t * 2 if hasattr(A, "k") else t)
    results = [f(x)]
    del A.k
    results.append(f(x))
    return results


@scenario
def hasattr_pymod(compiled):
    import sys
    import types as ty

    m = ty.ModuleType("r1m2")
    sys.modules["r1m2"] = m
    m.k = 1
    f = compiled(lambda t: t * 2 if hasattr(m, "k") else t)
    results = [f(x)]
    del m.k
    results.append(f(x))
    return results


@scenario
def hasattr_slots(compiled):
    class A:
        __slots__ = ("k",)

    a = A()
    a.k = 1
    f = compiled(lambda t: t * 2 if hasattr(a, "k") else t)
    results = [f(x)]
    del a.k
    results.append(f(x))
    return results


@scenario
def vars_in(compiled):
    class A:
        pass

    a = A()
    a.k = 1
    f = compiled(lambda t: t * 2 if "k" in vars(a) else t)
    results = [f(x)]
    del a.k
    results.append(f(x))
    return results


@scenario
def tuple_is(compiled):
    f = compiled(lambda t, p, q: t * 2 if p is q else t)
    p = (1, 2)
    q = (1, 2)
    return f(x, p, q), f(x, p, p), f(x, p, q)


@scenario
def kwargs_in(compiled):
    f = compiled(lambda t, **k: t * 2 if "a" in k else t)
    return f(x), f(x, a=1), f(x, b=1)


@scenario
def global_try(compiled):
    def g(t):
        try:
            return t * R1GLOB
        except NameError:
            return t

    f = compiled(g)
    results = [f(x)]
    globals()["R1GLOB"] = 3
    results.append(f(x))
    del globals()["R1GLOB"]
    results.append(f(x))
    return results


@scenario
def global_def(compiled):
    def g(t):
        try:
            R1G2  # noqa: B018
        except NameError:
            return t
        return t * 2

    globals()["R1G2"] = 3
    f = compiled(g)
    results = [f(x)]
    del globals()["R1G2"]
    results.append(f(x))
    return results


@scenario
def cell_try(compiled):
    def mk():
        def g(t):
            try:
                v  # noqa: B018
            except NameError:
                return t
            return t * 2

        def s(d):
            nonlocal v
            if d:
                del v
            else:
                v = 1

        v = 1
        return g, s

    g, s = mk()
    f = compiled(g)
    results = [f(x)]
    s(1)
    results.append(f(x))
    s(0)
    results.append(f(x))
    return results


@scenario
def cell_that_is_filled_later(compiled):
    def make():
        def g(t):
            try:
                return t * v
            except NameError:
                return t

        f = compiled(g)
        results = [f(x)]
        v = 3
        results.append(f(x))
        del v
        return [*results, f(x)]

    return make()


@pytest.mark.parametrize("function", scenarios, ids=lambda function: function.__name__)
def test_scenario(function: Scenario) -> None:
    check(function)
