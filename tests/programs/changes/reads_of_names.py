"""Programs that read names, which change between calls. Loaded anew for each run."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import types

import torch

glob = 2


def read_global():
    global glob
    yield lambda x: x * glob  # noqa: F821
    glob = 3
    yield
    glob = 2.5
    yield
    del glob


def read_global_builtin_shadow():
    yield lambda x: x * len([1, 2])
    globals()["len"] = lambda v: 7
    yield
    del globals()["len"]


def read_builtin_replaced():
    import builtins

    old = builtins.sum
    yield lambda x: x * sum([1, 2])
    builtins.sum = lambda v: 7
    yield
    builtins.sum = old


def read_closure():
    k = 2
    yield lambda x: x * k  # noqa: F821
    k = 3
    yield
    k = 3.0
    yield
    k = True
    yield
    del k


def read_closure_contents():
    k = 2

    def fn(x):
        return x * k

    yield fn
    fn.__closure__[0].cell_contents = 9


def read_module_attr():
    M = types.ModuleType("M")
    M.k = 2
    M.f = lambda x: x * 2
    yield lambda x: M.f(x) * M.k
    M.k = 3
    yield
    M.f = lambda x: x + 1
    yield
    M.__getattr__ = lambda n: 8
    yield
    del M.k


def read_module_missing():
    M = types.ModuleType("M")
    yield lambda x: (x * getattr(M, "q", 2), hasattr(M, "q"))
    M.__getattr__ = lambda n: 8
    yield
    del M.__getattr__
    yield
    M.q = 5


def read_env():
    os.environ["BAT"] = "2"
    yield lambda x: (x * int(os.environ.get("BAT", "9")), os.getenv("BAT"), "BAT" in os.environ)
    os.environ["BAT"] = "3"
    yield
    del os.environ["BAT"]
    yield
    os.environ["BAT"] = "4"


def read_contextvar():
    cv = contextvars.ContextVar("cv", default=2)
    yield lambda x: x * cv.get()
    cv.set(3)
    yield
    cv.set(4.5)


def read_contextvar_unset():
    cv = contextvars.ContextVar("cv")
    yield lambda x: x * cv.get(6)
    cv.set(3)


def read_threadlocal():
    t = threading.local()
    t.v = 2
    yield lambda x: x * t.v
    t.v = 3
    yield
    del t.v


def read_sys_modules():
    sys.modules.pop("battery_mod", None)
    yield lambda x: x * 2 if "battery_mod" in sys.modules else x
    sys.modules["battery_mod"] = types.ModuleType("battery_mod")


def read_import():
    M = types.ModuleType("battery_m2")
    M.v = 2
    sys.modules["battery_m2"] = M

    def fn(x):
        import battery_m2
        from battery_m2 import v

        return x * battery_m2.v + v

    yield fn
    M.v = 5
    yield
    N = types.ModuleType("battery_m2")
    N.v = 9
    sys.modules["battery_m2"] = N
    yield
    del sys.modules["battery_m2"]


def read_torch_fn_replaced():
    old = torch.sin
    yield lambda x: torch.sin(x)
    torch.sin = torch.cos
    yield
    torch.sin = old


def read_global_in_other_module():
    ns = {"k": 2}
    exec("def h(x): return x * k", ns)
    h = ns["h"]
    yield lambda x: h(x)
    ns["k"] = 5
    yield
    del ns["k"]


def read_builtins_of_function():
    ns = {"__builtins__": {"len": lambda v: 3}}
    exec("def h(x): return x * len([])", ns)
    h = ns["h"]
    yield lambda x: h(x)
    ns["__builtins__"]["len"] = lambda v: 8


def read_cell_try():
    def mk():
        def g(t):
            try:
                v  # noqa: B018
            except NameError:
                return t
            return t * 2

        def s(d):
            nonlocal v
            if d:
                del v
            else:
                v = 1

        v = 1
        return g, s

    g, s = mk()
    yield g
    s(1)
    yield
    s(0)
