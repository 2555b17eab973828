"""Numbers, strings and containers that change between two calls of compiled code."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import math
import sys
import types
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from scenarios import Scenario, check, collector

import stator
from stator.base import counters

scenarios, scenario = collector()
x = torch.arange(4.0)


@scenario
def int_types(compiled):
    f = compiled(lambda t, k: (t * k, k))
    xi = torch.arange(3)
    return [f(xi, 1), f(xi, True), f(xi, 1.0), f(xi, -0.0), f(xi, 0.0), f(xi, 0), f(xi, False), f(xi, 1 + 0j)]


@scenario
def neg_zero(compiled):
    f = compiled(lambda t, k: math.copysign(1.0, k) * t)
    return [f(x, 0.0), f(x, -0.0)]


@scenario
def neg_zero2(compiled):
    f = compiled(lambda t, k: t * k)
    return [f(x + 1, 0.0), f(x + 1, -0.0)]


@scenario
def neg_zero_const(compiled):
    def g(t):
        return t * 0.0, t * -0.0, (0.0, -0.0), (t + 1) * 0.0

    return compiled(g)(x + 1)


@scenario
def neg_zero_attr(compiled):
    class A:
        pass

    a = A()
    a.k = 0.0
    f = compiled(lambda t: t * a.k)
    results = [f(x + 1)]
    a.k = -0.0
    results.append(f(x + 1))
    return results


@scenario
def neg_zero_tuple(compiled):
    f = compiled(lambda t, k: t * k[0])
    return [
        f(x + 1, (0.0,)),
        f(x + 1, (-0.0,)),
        f(torch.arange(3), (1,)),
        f(torch.arange(3), (True,)),
        f(torch.arange(3), (1.0,)),
    ]


@scenario
def nan_const(compiled):
    n = float("nan")
    f = compiled(lambda t, k: t * 2 if k == k else t)
    return [f(x, n), f(x, float("nan")), f(x, 1.0)]


@scenario
def dict_key_types(compiled):
    f = compiled(lambda t, d: (t * next(iter(d)), next(iter(d))))
    xi = torch.arange(3)
    return [f(xi, {1: 1}), f(xi, {True: 1}), f(xi, {1.0: 1})]


@scenario
def set_member_types(compiled):
    f = compiled(lambda t, d: (t * next(iter(d)), 1 in d))
    xi = torch.arange(3)
    return [f(xi, {1}), f(xi, {True}), f(xi, {1.0}), f(xi, frozenset({1}))]


@scenario
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


@scenario
def str_subclass(compiled):
    class S(str):
        def __eq__(s, o):
            return True

        __hash__ = str.__hash__

    f = compiled(lambda t, s: t * 2 if s == "a" else t)
    return [f(x, "a"), f(x, "b"), f(x, S("b")), f(x, S("a"))]


@scenario
def int_subclass(compiled):
    class S(int):
        def __mul__(s, o):
            return 7

    f = compiled(lambda t, s: t * (s * 2))
    return [f(x, 3), f(x, S(3)), f(x, S(4))]


@scenario
def numpy_scalar(compiled):
    import numpy as np

    f = compiled(lambda t, s: t * s)
    return [f(x, np.float32(2)), f(x, np.float64(3)), f(x, np.int64(3)), f(x, np.float64(4)), f(x, 2)]


@scenario
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


@scenario
def dataclass_frozen(compiled):
    @dataclasses.dataclass(frozen=True)
    class D:
        k: int = 2
        z: float = 1.0

    f = compiled(lambda t, d: t * d.k + d.z)
    results = [f(x, D()), f(x, D(3)), f(x, D(True)), f(x, dataclasses.replace(D(), z=4.0))]
    return results


@scenario
def dataclass_eq(compiled):
    @dataclasses.dataclass
    class D:
        k: int = 2

    f = compiled(lambda t, d, e: t * 2 if d == e else t)
    return [f(x, D(), D()), f(x, D(), D(3))]


@scenario
def dict_order(compiled):
    def g(t, d):
        for k in d:
            t = t * 2 + d[k]
        return t

    f = compiled(g)
    return [f(x, {"a": 1, "b": 2}), f(x, {"b": 2, "a": 1}), f(x, {"a": 1}), f(x, {"a": 1, "b": 5})]


@scenario
def dict_get_missing(compiled):
    d = {}
    f = compiled(lambda t: t * d.get("k", 1))
    results = [f(x)]
    d["k"] = 5
    results.append(f(x))
    return results


@scenario
def dict_in(compiled):
    d = {"z": 0}
    f = compiled(lambda t: t * 2 if "k" in d else t)
    results = [f(x)]
    d["k"] = 1
    results.append(f(x))
    del d["k"]
    results.append(f(x))
    return results


@scenario
def dict_len(compiled):
    d = {}
    f = compiled(lambda t: t * len(d))
    results = [f(x)]
    d[1] = 2
    results.append(f(x))
    return results


@scenario
def dict_truth(compiled):
    d = {}
    items = []
    s = set()
    f = compiled(lambda t: (t * 2 if d else t) + (10 if items else 0) + (100 if s else 0))
    results = [f(x)]
    d[1] = 2
    results.append(f(x))
    items.append(0)
    results.append(f(x))
    s.add(1)
    results.append(f(x))
    return results


@scenario
def nested_dict_obj_key(compiled):
    class K:
        pass

    k1, k2 = K(), K()
    d = {k1: 1, k2: 2}

    def g(t):
        for _k, v in d.items():
            t = t * 2 + v
        return t

    f = compiled(g)
    results = [f(x)]
    d[k1] = 7
    results.append(f(x))
    del d[k1]
    d[k1] = 7
    results.append(f(x))
    return results


@scenario
def tensor_key(compiled):
    a, b = torch.ones(1), torch.zeros(1)
    d = {a: 1, b: 2}
    f = compiled(lambda t, k: t * d[k])
    return [f(x, a), f(x, b)]


@scenario
def list_mut(compiled):
    items = [1, 2]
    f = compiled(lambda t: t * items[0] + sum(items))
    results = [f(x)]
    items[1] = 5
    results.append(f(x))
    items.append(1)
    results.append(f(x))
    items[0] = True
    results.append(f(x))
    return results


@scenario
def deque_mut(compiled):
    items = collections.deque([1, 2], maxlen=3)
    f = compiled(lambda t: t * items[0])
    results = [f(x)]
    items.appendleft(5)
    results.append(f(x))
    return results


@scenario
def defaultdict_(compiled):
    d = collections.defaultdict(lambda: 3)
    f = compiled(lambda t: t * d["k"])
    results = [f(x), dict(d)]
    d["k"] = 5
    results += [f(x), dict(d)]
    return results


@scenario
def counter_(compiled):
    d = collections.Counter("aab")
    f = compiled(lambda t: t * d["a"] + d["z"])
    results = [f(x), dict(d)]
    d["a"] = 5
    results += [f(x), dict(d)]
    return results


@scenario
def namedtuple_(compiled):
    P = collections.namedtuple("P", "a b")
    f = compiled(lambda t, p: t * p.a + p.b)
    return [f(x, P(1, 2)), f(x, P(3, 2)), f(x, P(1, 5))]


@scenario
def dtype_arg(compiled):
    f = compiled(lambda t, d: t.to(d))
    return [f(x, torch.float64), f(x, torch.int32), f(x, torch.device("cpu"))]


@scenario
def kw_order(compiled):
    def g(t, **kw):
        for _k, v in kw.items():
            t = t * 2 + v
        return t, list(kw)

    f = compiled(g)
    return [f(x, a=1, b=2), f(x, b=2, a=1), f(x), f(x, b=2)]


@scenario
def varargs(compiled):
    f = compiled(lambda *a, **k: (sum(a), len(a), k))
    return [f(x), f(x, x), f(x, 1), f(x, z=x)]


@scenario
def weird_list_subclass(compiled):
    class L(list):
        def __getitem__(s, i):
            return 5

    items = L([1, 2])
    f = compiled(lambda t, items: t * items[0])
    return [f(x, [1, 2]), f(x, items)]


@scenario
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


@scenario
def userdict(compiled):
    d = collections.UserDict(k=2)
    f = compiled(lambda t: t * d["k"])
    results = [f(x)]
    d["k"] = 9
    results.append(f(x))
    return results


@scenario
def chainmap(compiled):
    d = collections.ChainMap({}, {"k": 2})
    f = compiled(lambda t: t * d["k"])
    results = [f(x)]
    d["k"] = 9
    results.append(f(x))
    return results


@scenario
def ordereddict(compiled):
    d = collections.OrderedDict(a=1, b=2)

    def g(t):
        for _k, v in d.items():
            t = t * 2 + v
        return t

    f = compiled(g)
    results = [f(x)]
    d.move_to_end("a")
    results.append(f(x))
    return results


@scenario
def bytes_range(compiled):
    f = compiled(lambda t, b: t * b[0])
    return [f(x, b"a"), f(x, b"b"), f(x, range(3, 5)), f(x, range(4, 9)), f(x, bytearray(b"a"))]


@scenario
def generator_arg(compiled):
    f = compiled(lambda t, g: t * sum(g))
    return [f(x, (i for i in range(3))), f(x, (i for i in range(4))), f(x, iter([1, 2])), f(x, map(abs, [1, -5]))]


@scenario
def weakref_(compiled):
    import weakref

    class A:
        k = 2

    a = A()
    w = weakref.ref(a)
    f = compiled(lambda t: t * 2 if w() is None else t * 3)
    results = [f(x)]
    del a
    gc.collect()
    results.append(f(x))
    return results


@pytest.mark.parametrize("function", scenarios, ids=lambda function: function.__name__)
def test_scenario(function: Scenario) -> None:
    check(function)


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
