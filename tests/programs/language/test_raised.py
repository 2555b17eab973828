"""Exceptions that compiled code raises, catches and lets through, beside plain Python."""

# ruff: noqa: F821, F524, B016, B018
from __future__ import annotations

import functools
import operator

import pytest
import torch
from tests.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def partial_effects_then_raise(compiled):
    items = []
    d = {}

    def g(t, k):
        items.append(t + 1)
        d["k"] = k
        if k > 2:
            raise ValueError(f"bad {k}")
        items.append(t * 2)
        return t

    f = compiled(g)
    results = [f(x, 1)]
    for k in (3, 4, 1):
        try:
            results.append(f(x, k))
        except ValueError as e:
            results.append(str(e))
    return results, items, d


def exception_attrs(compiled):
    class E(Exception):
        def __init__(s, a, b):
            super().__init__(a)
            s.b = b

    def g(t):
        try:
            raise E(1, t * 2)
        except E as e:
            return e.b + e.args[0], str(e), repr(e)

    return compiled(g)(x)


def exception_context(compiled):
    def g(t):
        try:
            try:
                raise ValueError("a")
            finally:
                raise KeyError("b")
        except KeyError as k:
            return t * 2, type(k.__context__).__name__

    return compiled(g)(x)


def exception_lines(compiled):
    def g(t):
        t = t + 1
        t = t * 2
        raise RuntimeError("here")

    f = compiled(g)
    try:
        f(x)
    except RuntimeError as e:
        tb = e.__traceback__
        out = []
        while tb:
            out.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
            tb = tb.tb_next
        return [o for o in out if o[0] == "g"][-1:]


def exception_lines_torch(compiled):
    def g(t):
        t = t + 1
        u = t * 2
        v = u @ torch.ones(7, 7)
        return v

    f = compiled(g)
    try:
        f(x)
    except RuntimeError as e:
        tb = e.__traceback__
        out = []
        while tb:
            out.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
            tb = tb.tb_next
        return str(e)[:40], [o for o in out if o[0] == "g"][-1:]


def list_errs(compiled):
    out = []
    for fn in (
        lambda t: [].pop(),
        lambda t: [1].remove(2),
        lambda t: [1].index(2),
        lambda t: {}["q"],
        lambda t: (1,)[3],
        lambda t: [1][3],
        lambda t: int("z"),
        lambda t: None.foo,
        lambda t: t.nonexistent,
        lambda t: 1 / 0,
        lambda t: undefined_name,
        lambda t: next(iter([])),
        lambda t: {}.popitem(),
        lambda t: set().pop(),
        lambda t: "a" + 1,
        lambda t: [] + (),
        lambda t: len(5),
        lambda t: iter(5),
        lambda t: t(),
        lambda t: min([]),
        lambda t: max(()),
        lambda t: "abc".index("z"),
        lambda t: dict(a=1)["b"],
        lambda t: [1, 2].__getitem__("a"),
        lambda t: range(3)[7],
        lambda t: [*5],
        lambda t: {**5},
        lambda t: (lambda a: a)(),
        lambda t: (lambda a: a)(1, 2),
        lambda t: (lambda *, a: a)(),
        lambda t: (lambda a: a)(b=1),
        lambda t: (lambda a: a)(1, a=1),
        lambda t: t.view(3),
        lambda t: t[9],
        lambda t: t + torch.ones(3),
        lambda t: torch.zeros(2)[None, ..., 5],
        lambda t: {[]: 1},
        lambda t: {1: 2}.fromkeys(5),
        lambda t: isinstance(t, 5),
        lambda t: issubclass(3, int),
        lambda t: getattr(t, 5),
        lambda t: sorted([1, "a"]),
        lambda t: sum(["a"]),
        lambda t: (1, 2) < (1, "a"),
        lambda t: 1 < "a",
        lambda t: -[],
        lambda t: t.shape[7],
        lambda t: zip(1),
        lambda t: list(zip([1], [1, 2], strict=True)),
        lambda t: {1, 2} | [3],
        lambda t: "a",
        lambda t: "{}{}".format(1),
        lambda t: divmod(1, 0),
        lambda t: 1 << -1,
        lambda t: 2**-1.5j,
        lambda t: chr(-1),
        lambda t: bool(t),
        lambda t: float(t),
        lambda t: (a for a in 5),
        lambda t: dict([1]),
        lambda t: [1, 2, 3][0:2:0],
        lambda t: type("a", (), {})().q,
        lambda t: super().q,
        lambda t: functools.reduce(operator.add, []),
    ):
        f = compiled(lambda t: (t * 2, fn(t))[0])
        try:
            out.append(f(x))
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return out


def unpack_errs(compiled):
    out = []

    def d(t):
        p, _q = t
        return p

    def e(t):
        _p, _q = 5
        return t

    def f_(t):
        assert t.shape[0] == 9, "msg"
        return t

    def g_(t):
        del undefined_local
        return t

    def h_(t):
        if t is None:
            z = 1
        return z

    def i_(t):
        raise ValueError

    def j_(t):
        raise 5

    def k_(t):
        raise ValueError("a") from 5

    def l_(t):
        with 5:
            pass

    def o_(t):
        def q():
            return zz

        results = q()
        zz = 1
        return results

    def p_(t):
        x.y.z
        return t

    def q_(t):
        for _i in t.sum():
            pass
        return t

    for fn in (d, e, f_, g_, h_, i_, j_, k_, l_, o_, p_, q_):
        f = compiled(fn)
        try:
            out.append(f(x))
        except Exception as ex:
            out.append((type(ex).__name__, str(ex)))
    return out


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
