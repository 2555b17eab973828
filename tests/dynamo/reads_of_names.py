"""What programs read of names, and how it changes between calls. Loaded anew for each run."""

from __future__ import annotations

import contextvars
import math
import os
import sys
import threading
import types

import torch
from readers import collecting

READERS = {}
reads = collecting(READERS)


glob = 2


@reads
def read_global():

    def fn(x):
        return x * glob

    def m():
        global glob
        glob = 3

    def m2():
        global glob
        glob = 2.5

    def m3():
        global glob
        del glob

    return (fn, [m, m2, m3])


@reads
def read_global_builtin_shadow():

    def fn(x):
        return x * len([1, 2])

    def m():
        globals()["len"] = lambda v: 7

    def m2():
        del globals()["len"]

    return (fn, [m, m2])


@reads
def read_builtin_replaced():
    import builtins

    old = builtins.sum

    def fn(x):
        return x * sum([1, 2])

    def m():
        builtins.sum = lambda v: 7

    def m2():
        builtins.sum = old

    return (fn, [m, m2])


@reads
def read_closure():
    k = 2

    def fn(x):
        return x * k

    def m():
        nonlocal k
        k = 3

    def m2():
        nonlocal k
        del k

    return (fn, [m, m2])


@reads
def read_closure_contents():
    k = 2

    def fn(x):
        return x * k

    def m():
        fn.__closure__[0].cell_contents = 9

    return (fn, [m])


@reads
def read_module_attr():
    M = types.ModuleType("M")
    M.k = 2
    M.f = lambda x: x * 2

    def fn(x):
        return M.f(x) * M.k

    def m():
        M.k = 3

    def m2():
        M.f = lambda x: x + 1

    def m3():
        M.__getattr__ = lambda n: 8

    def m4():
        del M.k

    return (fn, [m, m2, m3, m4])


@reads
def read_module_missing():
    M = types.ModuleType("M")

    def fn(x):
        return (x * getattr(M, "q", 2), hasattr(M, "q"))

    def m():
        M.__getattr__ = lambda n: 8

    def m2():
        del M.__getattr__

    def m3():
        M.q = 5

    return (fn, [m, m2, m3])


@reads
def read_env():
    os.environ["BAT"] = "2"

    def fn(x):
        return (x * int(os.environ.get("BAT", "9")), os.getenv("BAT"), "BAT" in os.environ)

    def m():
        os.environ["BAT"] = "3"

    def m2():
        del os.environ["BAT"]

    def m3():
        os.environ["BAT"] = "4"

    return (fn, [m, m2, m3])


@reads
def read_env_missing():

    os.environ.pop("BAT2", None)

    def fn(x):
        return x * int(os.environ.get("BAT2", "9"))

    def m():
        os.environ["BAT2"] = "3"

    return (fn, [m])


@reads
def read_contextvar():
    cv = contextvars.ContextVar("cv", default=2)

    def fn(x):
        return x * cv.get()

    def m():
        cv.set(3)

    def m2():
        cv.set(4.5)

    return (fn, [m, m2])


@reads
def read_contextvar_unset():
    cv = contextvars.ContextVar("cv")

    def fn(x):
        return x * cv.get(6)

    def m():
        cv.set(3)

    return (fn, [m])


@reads
def read_threadlocal():
    t = threading.local()
    t.v = 2

    def fn(x):
        return x * t.v

    def m():
        t.v = 3

    def m2():
        del t.v

    return (fn, [m, m2])


@reads
def read_sys_modules():

    sys.modules.pop("battery_mod", None)

    def fn(x):
        return x * 2 if "battery_mod" in sys.modules else x

    def m():
        sys.modules["battery_mod"] = types.ModuleType("battery_mod")

    return (fn, [m])


@reads
def read_import():
    M = types.ModuleType("battery_m2")
    M.v = 2
    sys.modules["battery_m2"] = M

    def fn(x):
        import battery_m2
        from battery_m2 import v

        return x * battery_m2.v + v

    def m():
        M.v = 5

    def m2():
        N = types.ModuleType("battery_m2")
        N.v = 9
        sys.modules["battery_m2"] = N

    def m3():
        del sys.modules["battery_m2"]

    return (fn, [m, m2, m3])


@reads
def read_torch_fn_replaced():
    old = torch.sin

    def fn(x):
        return torch.sin(x)

    def m():
        torch.sin = torch.cos

    def m2():
        torch.sin = old

    return (fn, [m, m2])


@reads
def read_math_replaced():
    old = math.sqrt

    def fn(x):
        return x * math.sqrt(4)

    def m():
        math.sqrt = lambda v: 9

    def m2():
        math.sqrt = old

    return (fn, [m, m2])


@reads
def read_global_in_other_module():
    ns = {"k": 2}
    exec("def h(x): return x * k", ns)
    h = ns["h"]

    def fn(x):
        return h(x)

    def m():
        ns["k"] = 5

    def m2():
        del ns["k"]

    return (fn, [m, m2])


@reads
def read_builtins_of_function():
    ns = {"__builtins__": {"len": lambda v: 3}}
    exec("def h(x): return x * len([])", ns)
    h = ns["h"]

    def fn(x):
        return h(x)

    def m():
        ns["__builtins__"]["len"] = lambda v: 8

    return (fn, [m])


@reads
def read_module_fn_getattr_torch():
    import torch.nn.functional as F

    if hasattr(F, "nope_x"):
        del F.nope_x

    def fn(x):
        return getattr(F, "nope_x", torch.sin)(x)

    def m():
        F.nope_x = torch.cos

    return (fn, [m])
