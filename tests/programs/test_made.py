"""Closures, recursion, classes and objects made by compiled code, beside plain Python."""

from __future__ import annotations

import collections
import dataclasses
import inspect

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def boom(t):
    raise ValueError("boom")


G = 0
GL = []


def closure_returned(compiled):
    def g(t, k):
        def h(u):
            return u * k + t

        return h

    f = compiled(g)
    return f(x, 2)(x), f(x, 3)(x)


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


def recursion(compiled):
    def fact(t, n):
        return t if n == 0 else fact(t, n - 1) * n

    return compiled(fact)(x, 5), compiled(lambda t: fact(t, 3))(x)


def self_recursion_compiled(compiled):
    def f(t, n):
        return t if n == 0 else cf(t, n - 1) * n + 1

    cf = compiled(f)
    return cf(x, 4), cf(x, 2)


def mutual_rec(compiled):
    def ev(n):
        return True if n == 0 else od(n - 1)

    def od(n):
        return False if n == 0 else ev(n - 1)

    return compiled(lambda t, n: t * 2 if ev(n) else t)(x, 6)


def deep_recursion(compiled):
    def d(t, n):
        return t if n == 0 else d(t + 1, n - 1)

    return compiled(lambda t: d(t, 300))(x)


def infinite_recursion(compiled):
    def d(t):
        return d(t + 1)

    try:
        compiled(lambda t: d(t))(x)
    except RecursionError:
        return "rec"


def item_branch(compiled):
    def g(t):
        s = t.sum().item()
        if s > 3:
            return t * s
        return t - s

    f = compiled(g)
    return f(x), f(-x), f(x)


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


def inspect_stack(compiled):
    def who():
        return inspect.currentframe().f_back.f_code.co_name

    def g(t):
        return t * 2, who()

    return compiled(g)(x)


def locals_call(compiled):
    def g(t, k):
        y = t + 1
        d = locals()
        return sorted(d), d["k"], y

    return compiled(g)(x, 3)


def eval_exec(compiled):
    def g(t, k):
        return eval("t*k+1")

    return compiled(g)(x, 3)


def dataclass_made(compiled):
    @dataclasses.dataclass
    class D:
        a: object
        b: int = 2
        c: list = dataclasses.field(default_factory=list)

        def __post_init__(s):
            s.d = s.b * 2

    def g(t):
        d = D(t * 2)
        d.c.append(t)
        return d

    d = compiled(g)(x)
    return d.a, d.b, d.c, d.d, type(d) is D


def namedtuple_made(compiled):
    P = collections.namedtuple("P", "a b")
    results = compiled(lambda t: P(t + 1, 2)._replace(b=3))(x)
    return results, type(results) is P


def slots_made(compiled):
    class S:
        __slots__ = ("a", "b")

        def __init__(s, a):
            s.a = a

    s = compiled(lambda t: S(t * 2))(x)
    return s.a, hasattr(s, "b")


def meta(compiled):
    class M(type):
        def __call__(cls, *a):
            o = super().__call__(*a)
            o.tag = 1
            return o

    class A(metaclass=M):
        def __init__(s, v):
            s.v = v

    results = compiled(lambda t: A(t * 2))(x)
    return results.v, results.tag


def new_(compiled):
    class A:
        def __new__(cls, v):
            o = object.__new__(cls)
            o.w = v * 2
            return o

        def __init__(s, v):
            s.v = v

    results = compiled(lambda t: A(t * 2))(x)
    return results.v, results.w


def ops_dunder(compiled):
    class V:
        def __init__(s, a):
            s.a = a

        def __add__(s, o):
            return V(s.a + (o.a if isinstance(o, V) else o))

        __radd__ = __add__

        def __mul__(s, o):
            return NotImplemented

        def __rmul__(s, o):
            return V(s.a * o)

        def __iadd__(s, o):
            s.a = s.a + 100
            return s

        def __getitem__(s, i):
            return s.a[i]

        def __len__(s):
            return 3

        def __contains__(s, i):
            return i == 5

        def __call__(s, k):
            return s.a * k

        def __neg__(s):
            return V(-s.a)

        def __lt__(s, o):
            return True

        def __bool__(s):
            return False

    def g(t):
        v = V(t)
        w = v + 1
        u = 2 + v
        q = 3 * v
        v += 1
        return v.a, w.a, u.a, q.a, v[0], len(v), 5 in v, 6 in v, v(2), (-v).a, v < w, bool(v), not v

    return compiled(g)(x)


def mul_notimpl(compiled):
    class V:
        def __mul__(s, o):
            return NotImplemented

    try:
        compiled(lambda t: (t, V() * 3))(x)
    except TypeError as e:
        return str(e)


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
