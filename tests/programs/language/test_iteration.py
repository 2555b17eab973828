"""Iterators over containers that change, with graph breaks between the steps."""

from __future__ import annotations

import pytest
import torch
from tests.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def dict_items_update_break(compiled):
    out = []

    def g(t, d):
        for _k, v in d.items():
            out.append((v, t[0].item()))
            d["b"] = 50
            t = t + v
        return t

    f = compiled(g)
    return f(x, {"a": 1, "b": 2}), out


def zip_break(compiled):
    out = []

    def g(t):
        items = [1, 2]
        m = [3, 4]
        for i, v in zip(items, m, strict=False):
            out.append((i, v, t[i].item()))
            m[1] = 9
        return t

    return compiled(g)(x), out


def iter_returned(compiled):
    def g(t):
        it = iter([1, 2, 3])
        next(it)
        return it, it, t + 1

    a, b, _t = compiled(g)(x)
    return a is b, next(a), next(b)


def dict_view_returned(compiled):
    def g(t, d):
        return t + 1, d.keys(), d.items()

    d = {"a": 1}
    results = compiled(g)(x, d)
    d["b"] = 2
    return list(results[1]), list(results[2])


def ordered_move(compiled):
    import collections

    out = []

    def g(t, d):
        for k, v in d.items():
            out.append((k, v, t[0].item()))
        for k in d:
            out.append((k, t[0].item()))
        return t + 1, d.keys()

    d = collections.OrderedDict(a=1, b=2)
    d.move_to_end("a")
    f = compiled(g)
    results = f(x, d)
    return results[0], list(results[1]), out


def iterate_outside(compiled):
    d = {"a": 1, "b": 2}

    def g(t, k):
        d[k] = d[k] + 1
        return t * d[k]

    f = compiled(g)
    results = []
    for k in d:
        results.append(f(x, k))
    for k in d:
        results.append(f(x, k))
    return results, d


def dict_reorders(compiled):
    d = {"a": 1, "b": 2, "c": 3}

    def g(t, op):
        if op == 0:
            d["a"] = d.pop("a")
        if op == 1:
            del d["b"]
            d["z"] = 1
        if op == 2:
            d.clear()
            d["q"] = 1
        if op == 3:
            d["b"] = 9
            del d["q"]
        return t * len(d)

    f = compiled(g)
    results = []
    for i in range(4):
        results += [f(x, i), list(d.items())]
    return results


def set_muts(compiled):
    s = {1, 2, 3}

    def g(t, v):
        s.discard(v)
        s.add(v + 10)
        s.update([50, v])
        return t * len(s), 50 in s

    f = compiled(g)
    return f(x, 1), f(x, 2), s


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
