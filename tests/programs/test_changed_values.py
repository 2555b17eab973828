"""Numbers, strings and containers that change between two calls of compiled code."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import types

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

import stator
from stator.base import counters

x = torch.arange(4.0)


def int_types(compiled):
    f = compiled(lambda t, k: (t * k, k))
    xi = torch.arange(3)
    return [f(xi, 1), f(xi, True), f(xi, 1.0), f(xi, -0.0), f(xi, 0.0), f(xi, 0), f(xi, False), f(xi, 1 + 0j)]


def neg_zero(compiled):
    f = compiled(lambda t, k: math.copysign(1.0, k) * t)
    return [f(x, 0.0), f(x, -0.0)]


def neg_zero2(compiled):
    f = compiled(lambda t, k: t * k)
    return [f(x + 1, 0.0), f(x + 1, -0.0)]


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


def numpy_scalar(compiled):
    import numpy as np

    f = compiled(lambda t, s: t * s)
    return [f(x, np.float32(2)), f(x, np.float64(3)), f(x, np.int64(3)), f(x, np.float64(4)), f(x, 2)]


def simple_namespace(compiled):
    c = types.SimpleNamespace(k=2, d={"a": [1, 2]})
    f = compiled(lambda t: t * c.k + c.d["a"][1])
    results = [f(x)]
    c.k = 3
    results.append(f(x))
    c.d["a"][1] = 50
    results.append(f(x))
    c.d = {"a": (0, 9)}
    results.append(f(x))
    c.q = 1
    results.append(f(x))
    del c.k
    try:
        f(x)
    except AttributeError as e:
        results.append(str(e))
    return results


def dataclass_frozen(compiled):
    @dataclasses.dataclass(frozen=True)
    class D:
        k: int = 2
        z: float = 1.0

    f = compiled(lambda t, d: t * d.k + d.z)
    results = [f(x, D()), f(x, D(3)), f(x, D(True)), f(x, dataclasses.replace(D(), z=4.0))]
    return results


def dataclass_eq(compiled):
    @dataclasses.dataclass
    class D:
        k: int = 2

    f = compiled(lambda t, d, e: t * 2 if d == e else t)
    return [f(x, D(), D()), f(x, D(), D(3))]


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


def defaultdict_(compiled):
    d = collections.defaultdict(lambda: 3)
    f = compiled(lambda t: t * d["k"])
    results = [f(x), dict(d)]
    d["k"] = 5
    results += [f(x), dict(d)]
    return results


def counter_(compiled):
    d = collections.Counter("aab")
    f = compiled(lambda t: t * d["a"] + d["z"])
    results = [f(x), dict(d)]
    d["a"] = 5
    results += [f(x), dict(d)]
    return results


def namedtuple_(compiled):
    P = collections.namedtuple("P", "a b")
    f = compiled(lambda t, p: t * p.a + p.b)
    return [f(x, P(1, 2)), f(x, P(3, 2)), f(x, P(1, 5))]


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


def varargs(compiled):
    f = compiled(lambda *a, **k: (sum(a), len(a), k))
    return [f(x), f(x, x), f(x, 1), f(x, z=x)]


def weird_list_subclass(compiled):
    class L(list):
        def __getitem__(s, i):
            return 5

    items = L([1, 2])
    f = compiled(lambda t, items: t * items[0])
    return [f(x, [1, 2]), f(x, items)]


def dict_subclass_missing(compiled):
    class D(dict):
        def __missing__(s, k):
            return 5

    d = D()
    f = compiled(lambda t, d: t * d["k"])
    results = [f(x, d)]
    d["k"] = 2
    results.append(f(x, d))
    return results


def bytes_range(compiled):
    f = compiled(lambda t, b: t * b[0])
    return [f(x, b"a"), f(x, b"b"), f(x, range(3, 5)), f(x, range(4, 9)), f(x, bytearray(b"a"))]


def generator_arg(compiled):
    f = compiled(lambda t, g: t * sum(g))
    return [f(x, (i for i in range(3))), f(x, (i for i in range(4))), f(x, iter([1, 2])), f(x, map(abs, [1, -5]))]


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)


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
