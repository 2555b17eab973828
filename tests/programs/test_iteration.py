"""Iterators over containers that change, with graph breaks between the steps."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def for_append_break(compiled):
    items = [1]
    out = []

    def g(t):
        for i in items:
            out.append(t[i].item())
            if i < 3:
                items.append(i + 1)
        return t + 1

    return compiled(g)(x), items, out


def for_append_break_list(compiled):
    out = []

    def g(t, items):
        for i in items:
            out.append(t[i].item())
            if i < 3:
                items.append(i + 1)
            t = t + 1
        return t + 1

    f = compiled(g)
    return f(x, [1]), f(x, [2]), out


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


def dict_items_update(compiled):
    out = []

    def g(t, d):
        for _k, v in d.items():
            out.append(v)
            d["b"] = 50
            t = t + v
        return t

    f = compiled(g)
    return f(x, {"a": 1, "b": 2}), out


def local_list_break(compiled):
    out = []

    def g(t):
        items = [1, 2]
        for i in items:
            out.append(t[i].item())
            if len(items) < 5:
                items.append(3)
        return t, items

    return compiled(g)(x), out


def enumerate_break(compiled):
    out = []

    def g(t):
        items = ["a", "b"]
        for i, v in enumerate(items):
            out.append((i, v, t[i].item()))
            if len(items) < 4:
                items.append("c")
        return t

    return compiled(g)(x), out


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


def iter_kept(compiled):
    def g(t, items):
        it = iter(items)
        a = next(it)
        s = t.sum().item()
        items.append(7)
        return [a, *it], t * s

    return compiled(g)(x, [1, 2])


def iter_shared(compiled):
    def g(t):
        it = iter([1, 2, 3, 4])
        z = zip(it, it, strict=False)
        a = next(z)
        t.sum().item()
        return a, list(z), list(it)

    return compiled(g)(x)


def iter_shared2(compiled):
    def g(t):
        it = iter([1, 2, 3, 4])
        e = enumerate(it)
        next(e)
        t.sum().item()
        n = next(it)
        return n, list(e)

    return compiled(g)(x)


def iter_returned(compiled):
    def g(t):
        it = iter([1, 2, 3])
        next(it)
        return it, it, t + 1

    a, b, _t = compiled(g)(x)
    return a is b, next(a), next(b)


def reversed_break(compiled):
    out = []

    def g(t):
        items = [1, 2, 3]
        for i in reversed(items):
            out.append((i, t[i].item()))
            items[0] = 99 if i == 3 else items[0]
        return t

    return compiled(g)(x), out


def range_break(compiled):
    out = []

    def g(t):
        for i in range(3):
            for j in range(2):
                out.append(t[i + j].item())
                t = t + 1
        return t

    return compiled(g)(x), out


def map_raise_continue(compiled):
    def g(t):
        it = (1 // v for v in [0, 1, 1])
        with contextlib.suppress(ZeroDivisionError):
            next(it)
        return t + 1, list(it)

    return compiled(g)(x)


def gen_with_drop(compiled):
    items = []

    class M:
        def __enter__(s):
            items.append("in")

        def __exit__(s, *a):
            items.append("out")

    def gen():
        with M():
            yield 1
            yield 2

    def g(t):
        for v in gen():
            t = t + v
            break
        items.append("after")
        return t

    f = compiled(g)
    return f(x), f(x), items


def gen_next_only(compiled):
    items = []

    def gen():
        try:
            yield 5
        finally:
            items.append("f")

    def g(t):
        return t + next(gen())

    f = compiled(g)
    return f(x), items


def gen_no_grad(compiled):
    def gen(t):
        with torch.no_grad():
            yield t * 2
            yield t * 3

    def g(t):
        results = []
        for v in gen(t):
            results.append(v)
            results.append(torch.is_grad_enabled())
        return results, torch.is_grad_enabled()

    return compiled(g)(x.clone().requires_grad_())


def break_in_gen(compiled):
    out = []

    def gen(t):
        for i in range(3):
            out.append(t[i].item())
            yield i

    def g(t):
        for i in gen(t):
            t = t + i
        return t

    return compiled(g)(x), out


def any_all_short(compiled):
    out = []

    def p(v):
        out.append(v)
        return v > 1

    def g(t):
        return (
            t + 1,
            any(p(v) for v in [1, 2, 3]),
            all(p(v) for v in [2, 1, 5]),
            next((v for v in [1, 2, 3] if p(v)), None),
        )

    return compiled(g)(x), out


def star_unpack_iter(compiled):
    def g(t):
        it = iter([1, 2, 3])
        a, *b = it
        return a, b, list(it), t + 1

    return compiled(g)(x)


def tensor_iter_break(compiled):
    out = []

    def g(t):
        for v in t:
            out.append(v.item())
        return t

    return compiled(g)(x), out


def iter_sentinel(compiled):
    def g(t):
        items = [3, 2, 1, 0, 5]
        it = iter(lambda: items.pop(), 0)
        return list(it), items, t + 1

    return compiled(g)(x)


def dict_iter_del(compiled):
    def g(t, d):
        for k in list(d):
            if k == "a":
                del d[k]
        return t + len(d), d

    return compiled(g)(x, {"a": 1, "b": 2})


def dict_views(compiled):
    def g(t, d):
        k = d.keys()
        v = d.values()
        i = d.items()
        d["z"] = 3
        return t + 1, list(k), list(v), list(i), len(k), "z" in k, k & {"z", "q"}

    return compiled(g)(x, {"a": 1})


def dict_view_returned(compiled):
    def g(t, d):
        return t + 1, d.keys(), d.items()

    d = {"a": 1}
    results = compiled(g)(x, d)
    d["b"] = 2
    return list(results[1]), list(results[2])


def deque_breaks(compiled):
    import collections

    out = []

    def g(t):
        d = collections.deque([1, 2, 3])
        for i in d:
            out.append(t[i].item())
        for i in reversed(d):
            out.append(t[i].item())
        for i in reversed((0, 1)):
            out.append(t[i].item())
        return t, d

    return compiled(g)(x), out


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
