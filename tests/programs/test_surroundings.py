"""Threads, forks, tracing, copies, nested compilation, transforms and autograd around compiled code."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import sys
import threading
import weakref

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


class Net(torch.nn.Module):
    def __init__(s, n=4):
        super().__init__()
        s.a = torch.nn.Linear(n, n)
        s.b = torch.nn.Linear(n, n)
        s.register_buffer("c", torch.zeros(()))

    def forward(s, t):
        s.c = s.c + 1
        return s.b(torch.relu(s.a(t))) + s.c * 0


def threads_shapes(compiled):
    f = compiled(lambda t: (t * 2).sum() + t.shape[0])
    out = [None] * 8

    def w(i):
        for _k in range(12):
            out[i] = [f(torch.ones(n + 1)).item() for n in range(i % 4 + 1)]

    ts = [threading.Thread(target=w, args=(i,)) for i in range(8)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    return out


def threads_breaks(compiled):
    def g(t):
        v = t.sum().item()
        t = t * v
        return t + t.max().item()

    f = compiled(g)
    out = [None] * 6

    def w(i):
        for _k in range(12):
            out[i] = f(x + i).tolist()

    ts = [threading.Thread(target=w, args=(i,)) for i in range(6)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    return out


def threads_gradmode(compiled):
    w0 = torch.ones(4, requires_grad=True)
    f = compiled(lambda t: t * w0)
    out = [None] * 6

    def w(i):
        for _k in range(15):
            with torch.set_grad_enabled(bool(i % 2)):
                out[i] = f(x).requires_grad

    ts = [threading.Thread(target=w, args=(i,)) for i in range(6)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    return out


def fork_(compiled):
    f = compiled(lambda t: t * 2 + 1)
    f(x)
    results, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            v = f(x).tolist() + f(torch.ones(3)).tolist()
            g = compiled(lambda t: t - 5)
            v += g(x).tolist()
            os.write(w, repr(v).encode())
        except BaseException as e:
            os.write(w, repr(e).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(results, 9999).decode()


def deepcopy_module(compiled):
    m = Net()
    f = compiled(m)
    f(x)
    g = copy.deepcopy(f)
    with torch.no_grad():
        g.a.weight.zero_()
    return f(x), g(x), isinstance(g, Net), type(g).__name__, g.a is f.a, f.c, g.c, m.c


def pickle_module(compiled):
    m = Net()
    f = compiled(m)
    f(x)
    g = pickle.loads(pickle.dumps(f))
    return g(x), isinstance(g, Net), list(g.state_dict())


def save_load(compiled):
    m = Net()
    f = compiled(m)
    f(x)
    b = io.BytesIO()
    torch.save(f.state_dict(), b)
    b.seek(0)
    f.load_state_dict(torch.load(b))
    return f(x), list(f.state_dict()), [n for n, _ in f.named_modules()], repr(f)


def module_api(compiled):
    m = Net()
    f = compiled(m)
    results = [f(x)]
    f.eval()
    results += [f.training, m.training]
    f.train()
    f.double()
    results.append(f(x.double()))
    f.float()
    f.requires_grad_(False)
    results.append(f(x))
    f.zero_grad()
    results.append(len(list(f.children())))
    f.newattr = 5
    results += [m.newattr]
    del f.newattr
    results.append(hasattr(m, "newattr"))
    f.apply(lambda q: None)
    results.append(f.a is m.a)
    f.a = torch.nn.Identity()
    results.append(f(x))
    return results


def nested_compile(compiled):
    inner = compiled(lambda t: t * 3)
    outer = compiled(lambda t: inner(t) + 1)
    return outer(x), inner(x), outer(x.double())


def compile_twice(compiled):
    f = compiled(compiled(lambda t: t * 3))
    m = compiled(compiled(Net()))
    return f(x), m(x)


def submodule_compiled(compiled):
    m = Net()
    m.a = compiled(m.a)
    results = m(x)
    f = compiled(m)
    return results, f(x), list(m.state_dict())


def compile_inside(compiled):
    def g(t):
        h = compiled(lambda u: u * 2)
        return h(t) + 1

    return compiled(g)(x)


def bound_method(compiled):
    class A:
        k = 3

        def m(s, t):
            return t * s.k

        cm = classmethod(lambda c, t: t * c.k)

    a = A()
    f = compiled(a.m)
    results = [f(x)]
    a.k = 5
    results.append(f(x))
    results.append(compiled(A.cm)(x))
    return results


def method_decorator(compiled):
    class A:
        def __init__(s, k):
            s.k = k

        @compiled
        def m(s, t):
            return t * s.k

    return A(2).m(x), A(3).m(x), A(2.5).m(x)


def staticmethod_dec(compiled):
    class A:
        @staticmethod
        @compiled
        def s(t):
            return t * 2

        @classmethod
        @compiled
        def c(cls, t):
            return t * 3, cls.__name__

        @property
        @compiled
        def p(self):
            return torch.ones(2) * 4

    return A.s(x), A().s(x), A.c(x), A().p


def settrace_(compiled):
    n = [0]

    def tr(fr, ev, arg):
        n[0] += 1
        return tr

    f = compiled(lambda t: (t * 2).relu())
    old = sys.gettrace()
    sys.settrace(tr)
    try:
        results = [f(x), f(x), f(x + 1)]
    finally:
        sys.settrace(old)
    return [*results, f(x)]


def setprofile_(compiled):
    def tr(fr, ev, arg):
        pass

    def g(t):
        v = t.sum().item()
        return t * v

    f = compiled(g)
    sys.setprofile(tr)
    try:
        results = [f(x), f(x)]
    finally:
        sys.setprofile(None)
    return [*results, f(x)]


def trace_lines(compiled):
    seen = []

    def g(t):
        t = t + 1
        v = t.sum().item()
        return t * v

    def tr(fr, ev, arg):
        if fr.f_code.co_filename == __file__ and ev == "line" and fr.f_code.co_name == "g":
            seen.append(fr.f_lineno - g.__code__.co_firstlineno)
        return tr

    f = compiled(g)
    sys.settrace(tr)
    try:
        results = f(x)
    finally:
        sys.settrace(None)
    return results


def limit(compiled):
    f = compiled(lambda t, k: t * k)
    return [f(x, i) for i in range(30)]


def gc_during(compiled):
    f = compiled(lambda t: (t * 2, gc.collect() * 0))
    return f(x)


def weakref_module(compiled):
    m = Net()
    f = compiled(m)
    f(x)
    w = weakref.ref(f)
    del f
    gc.collect()
    return w() is None or w() is m


def script_(compiled):
    m = torch.jit.script(torch.nn.Linear(4, 4))
    f = compiled(lambda t: m(t))
    return f(x).shape


def fx_trace(compiled):
    f = compiled(lambda t: t * 2)
    g = torch.fx.symbolic_trace(lambda t: f(t) + 1)
    return g(x)


def vmap_(compiled):
    f = compiled(lambda t: t.sin())
    return torch.vmap(f)(torch.ones(2, 3)), f(x), torch.vmap(f)(torch.ones(2, 3))


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
