"""Closures, recursion, classes and objects made by compiled code, beside plain Python."""

from __future__ import annotations

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


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
