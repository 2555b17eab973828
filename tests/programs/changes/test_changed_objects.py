"""Arguments, closures and globals that change, or stand for each other, between two calls of compiled code."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types

import pytest
import torch
from tests.scenarios import Scenario, check, scenarios

import stator
from stator.base import counters

x = torch.arange(4.0)


def str_is(compiled):
    f = compiled(lambda t, p: t * 2 if p is None else (t * 3 if p == "a" else t))
    return f(x, None), f(x, "a"), f(x, "b"), f(x, "".join(["a"]))


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


def transposed_inplace(compiled):
    a = torch.arange(6.0).view(2, 3)
    f = compiled(lambda: a * 2)
    results = [f()]
    a.t_()
    results.append(f())
    a.unsqueeze_(0)
    results.append(f())
    return results


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


def same_code_other_globals(compiled):
    s = "def h(t): return t*K"
    a = {"K": 2}
    b = {"K": 3}
    exec(s, a)
    exec(s, b)
    f = compiled(lambda t, h: h(t))
    h2 = types.FunctionType(a["h"].__code__, b)
    return [f(x, a["h"]), f(x, b["h"]), f(x, h2)]


def int_types(compiled):
    f = compiled(lambda t, k: (t * k, k))
    xi = torch.arange(3)
    return [f(xi, 1), f(xi, True), f(xi, 1.0), f(xi, -0.0), f(xi, 0.0), f(xi, 0), f(xi, False), f(xi, 1 + 0j)]


def neg_zero(compiled):
    f = compiled(lambda t, k: math.copysign(1.0, k) * t)
    return [f(x, 0.0), f(x, -0.0)]


def neg_zero_const(compiled):
    def g(t):
        return t * 0.0, t * -0.0, (0.0, -0.0), (t + 1) * 0.0

    return compiled(g)(x + 1)


def neg_zero_tuple(compiled):
    f = compiled(lambda t, k: t * k[0])
    return [
        f(x + 1, (0.0,)),
        f(x + 1, (-0.0,)),
        f(torch.arange(3), (1,)),
        f(torch.arange(3), (True,)),
        f(torch.arange(3), (1.0,)),
    ]


def nan_const(compiled):
    n = float("nan")
    f = compiled(lambda t, k: t * 2 if k == k else t)
    return [f(x, n), f(x, float("nan")), f(x, 1.0)]


def dict_key_types(compiled):
    f = compiled(lambda t, d: (t * next(iter(d)), next(iter(d))))
    xi = torch.arange(3)
    return [f(xi, {1: 1}), f(xi, {True: 1}), f(xi, {1.0: 1})]


def set_member_types(compiled):
    f = compiled(lambda t, d: (t * next(iter(d)), 1 in d))
    xi = torch.arange(3)
    return [f(xi, {1}), f(xi, {True}), f(xi, {1.0}), f(xi, frozenset({1}))]


def enum_case(compiled):
    class E(enum.Enum):
        A = 1
        B = 2

    class Kind(enum.IntEnum):
        A = 1
        B = 2

    f = compiled(lambda t, e: t * 2 if e is E.A else t * 3)
    g = compiled(lambda t, e: t * e)
    return [f(x, E.A), f(x, E.B), g(x, Kind.A), g(x, Kind.B), g(x, 1)]


def str_subclass(compiled):
    class S(str):
        def __eq__(s, o):
            return True

        __hash__ = str.__hash__

    f = compiled(lambda t, s: t * 2 if s == "a" else t)
    return [f(x, "a"), f(x, "b"), f(x, S("b")), f(x, S("a"))]


def int_subclass(compiled):
    class S(int):
        def __mul__(s, o):
            return 7

    f = compiled(lambda t, s: t * (s * 2))
    return [f(x, 3), f(x, S(3)), f(x, S(4))]


def dataclass_frozen(compiled):
    @dataclasses.dataclass(frozen=True)
    class D:
        k: int = 2
        z: float = 1.0

    f = compiled(lambda t, d: t * d.k + d.z)
    results = [f(x, D()), f(x, D(3)), f(x, D(True)), f(x, dataclasses.replace(D(), z=4.0))]
    return results


def dict_order(compiled):
    def g(t, d):
        for k in d:
            t = t * 2 + d[k]
        return t

    f = compiled(g)
    return [f(x, {"a": 1, "b": 2}), f(x, {"b": 2, "a": 1}), f(x, {"a": 1}), f(x, {"a": 1, "b": 5})]


def tensor_key(compiled):
    a, b = torch.ones(1), torch.zeros(1)
    d = {a: 1, b: 2}
    f = compiled(lambda t, k: t * d[k])
    return [f(x, a), f(x, b)]


def dtype_arg(compiled):
    f = compiled(lambda t, d: t.to(d))
    return [f(x, torch.float64), f(x, torch.int32), f(x, torch.device("cpu"))]


def kw_order(compiled):
    def g(t, **kw):
        for _k, v in kw.items():
            t = t * 2 + v
        return t, list(kw)

    f = compiled(g)
    return [f(x, a=1, b=2), f(x, b=2, a=1), f(x), f(x, b=2)]


def bytes_range(compiled):
    f = compiled(lambda t, b: t * b[0])
    return [f(x, b"a"), f(x, b"b"), f(x, range(3, 5)), f(x, range(4, 9)), f(x, bytearray(b"a"))]


def generator_arg(compiled):
    f = compiled(lambda t, g: t * sum(g))
    return [f(x, (i for i in range(3))), f(x, (i for i in range(4))), f(x, iter([1, 2])), f(x, map(abs, [1, -5]))]


def test_operators_on_none_and_a_number_do_not_rely_on_the_number() -> None:
    def program(x, number):
        try:
            return x * (None * number)
        except TypeError as error:
            return x * number, number == None, str(error)  # noqa: E711

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    counters.clear()
    for number in (0.5, 1.5, 2.5, 0.25):
        x = torch.randn(3)
        assert str(compiled(x, number)) == str(program(x, number))
    assert counters.counts["graphs"] == 2


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
