"""Context managers, generators, global and nonlocal names of compiled code, beside plain Python."""

from __future__ import annotations

import contextlib
import functools
import threading

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


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


def ctx_effects_raise(compiled):
    items = []

    class M:
        def __enter__(s):
            items.append("in")
            return s

        def __exit__(s, k, v, tb):
            items.append(("out", k and k.__name__))
            return False

    def g(t):
        with M():
            boom(t)

    f = compiled(g)
    try:
        f(x)
    except ValueError as e:
        return str(e), items


def exitstack(compiled):
    items = []

    def g(t):
        with contextlib.ExitStack() as s:
            s.callback(items.append, 1)
            s.enter_context(torch.no_grad())
            t = t * 2
        return t, torch.is_grad_enabled()

    return compiled(g)(x), items


def no_grad_raise(compiled):
    def g(t):
        with torch.no_grad():
            boom(t + 1)

    f = compiled(g)
    with contextlib.suppress(ValueError):
        f(x)
    return torch.is_grad_enabled()


def set_grad_leak(compiled):
    def g(t):
        torch.set_grad_enabled(False)
        return t * 2

    f = compiled(g)
    w = x.clone().requires_grad_()
    results = [f(w), torch.is_grad_enabled()]
    torch.set_grad_enabled(True)
    results += [f(w), torch.is_grad_enabled()]
    torch.set_grad_enabled(True)
    return results


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


def global_del(compiled):
    def g(t):
        global G2
        G2 = 3
        y = t * G2
        del G2
        return y

    f = compiled(g)
    return f(x), f(x), "G2" in globals()


def nonlocal_(compiled):
    n = 0

    def g(t):
        nonlocal n
        n += 1
        return t * n

    f = compiled(g)
    return f(x), f(x), n


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


def thread_local(compiled):
    loc = threading.local()
    loc.v = 2
    f = compiled(lambda t: t * loc.v)
    results = [f(x)]
    loc.v = 3
    results.append(f(x))
    return results


def lock_(compiled):
    lk = threading.Lock()

    def g(t):
        with lk:
            return t * 2

    return compiled(g)(x), lk.locked()


def decorators(compiled):
    def deco(f):
        @functools.wraps(f)
        def w(*a, **k):
            w.n += 1
            return f(*a, **k) + w.n

        w.n = 0
        return w

    @deco
    def h(t):
        return t * 2

    f = compiled(h)
    return f(x), f(x), h.n, f.__name__


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
