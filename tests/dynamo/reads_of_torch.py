"""What programs read of torch, and how it changes between calls. Loaded anew for each run."""

from __future__ import annotations

import logging
import os
import sys
import types

import numpy as np
import torch
from readers import collecting

READERS = {}
reads = collecting(READERS)


@reads
def read_tensor_attr():
    o = types.SimpleNamespace(t=torch.ones(4))

    def fn(x):
        return (x * o.t, o.t.requires_grad)

    def m():
        o.t = torch.full((4,), 2.0)

    def m2():
        o.t.requires_grad_()

    def m3():
        o.t = torch.ones(1, dtype=torch.float64)

    def m4():
        o.t.foo = 3

    def m5():
        o.t = None

    return (fn, [m, m2, m3, m4, m5])


@reads
def read_tensor_own_attr():
    t = torch.ones(4)
    t.foo = 3

    def fn(x):
        return (x * t.foo, hasattr(t, "bar"))

    def m():
        t.foo = 5

    def m2():
        t.bar = 5

    def m3():
        del t.foo

    return (fn, [m, m2, m3])


@reads
def read_numpy_array():
    a = np.ones(4, dtype=np.float32)
    o = types.SimpleNamespace(a=a)

    def fn(x):
        return (x * torch.from_numpy(o.a), o.a.shape, o.a.sum())

    def m():
        o.a[0] = 5

    def m2():
        o.a = np.ones(4)

    def m3():
        o.a = o.a[::-1].copy()

    return (fn, [m, m2, m3])


@reads
def read_numpy_obj():
    o = types.SimpleNamespace(a=np.array([1, 2, 3]))

    def fn(x):
        return (x * int(o.a[0]), [x * int(v) for v in o.a])

    def m():
        o.a[0] = 5

    return (fn, [m])


@reads
def read_dtype_default():

    def fn(x):
        return (
            torch.zeros(2),
            torch.tensor(1.5).dtype,
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
        )

    def m():
        torch.set_default_dtype(torch.float64)

    def m2():
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(False)

    def m3():
        torch.set_grad_enabled(True)

    return (fn, [m, m2, m3])


@reads
def read_training():
    mod = torch.nn.Dropout(0.0)

    def fn(x):
        return (mod(x), mod.training)

    def m():
        mod.eval()

    def m2():
        mod.p = 1.0
        mod.train()

    return (fn, [m, m2])


@reads
def read_recursion_limit():

    sys.setrecursionlimit(1000)

    def fn(x):
        return (x, sys.getrecursionlimit(), os.getpid() > 0, os.getcwd() if 0 else 1)

    def m():
        sys.setrecursionlimit(3333)

    return (fn, [m])


@reads
def read_log_level():

    held = logging.getLogger("bb.cc")
    held.propagate = False
    got = []

    class Hd(logging.Handler):
        def emit(self, r):
            got.append(r.getMessage())

    held.addHandler(Hd())
    held.setLevel(logging.WARNING)

    def fn(x):
        held.info("m %s", 1)
        return (x * 2 if held.isEnabledFor(logging.INFO) else x, list(got))

    def m():
        held.setLevel(logging.INFO)

    def m2():
        logging.disable(logging.CRITICAL)

    def m3():
        logging.disable(logging.NOTSET)
        logging.getLogger("bb").setLevel(5)
        held.setLevel(0)

    return (fn, [m, m2, m3])


@reads
def read_moduledict():
    md = torch.nn.ModuleDict({"a": torch.nn.ReLU()})
    ml = torch.nn.ModuleList([torch.nn.Tanh()])

    def fn(x):
        for _k, v in md.items():
            x = v(x)
        for v in ml:
            x = v(x)
        return (x, len(md), "b" in md)

    def m():
        md["b"] = torch.nn.Sigmoid()

    def m2():
        ml.insert(0, torch.nn.Softplus())

    def m3():
        del md["a"]

    return (fn, [m, m2, m3])


@reads
def read_named_params():
    lin = torch.nn.Linear(4, 4)
    with torch.no_grad():
        lin.weight.fill_(0.5)
        lin.bias.fill_(0.1)

    def fn(x):
        return (
            x * len(list(lin.parameters())),
            [n for n, _ in lin.named_parameters()],
            list(lin.state_dict()),
            [n for n, _ in lin.named_buffers()],
            [n for n, _ in lin.named_modules()],
            lin.extra if hasattr(lin, "extra") else 0,
        )

    def m():
        lin.register_parameter("extra", torch.nn.Parameter(torch.ones(1)))

    def m2():
        lin.register_buffer("buf", torch.ones(1))

    def m3():
        lin.add_module("sub", torch.nn.ReLU())

    def m4():
        lin.bias = None

    return (fn, [m, m2, m3, m4])


@reads
def read_bool_of_array_attr():
    ns = types.SimpleNamespace(s=np.float32(2), i=np.int64(3), b=np.bool_(True))

    def fn(x):
        return x * ns.s + ns.i if ns.b else x

    def m():
        ns.s = np.float32(3)

    def m2():
        ns.b = np.bool_(False)

    def m3():
        ns.b = np.bool_(True)
        ns.i = np.int32(9)

    def m4():
        ns.s = np.float64(3)

    return (fn, [m, m2, m3, m4])


@reads
def read_nn():
    mod = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())

    def fn(x):
        return mod(x)

    def m():
        mod[0] = torch.nn.Sigmoid()

    def m2():
        mod.append(torch.nn.Softplus())

    def m3():
        mod[1].forward = lambda x: x * 2

    def m4():
        mod[0].register_forward_hook(lambda m, i, o: o + 1)

    def m5():
        mod.k = 1

    return (fn, [m, m2, m3, m4, m5])


@reads
def read_tensor_method_replaced():
    old = torch.Tensor.sin

    def fn(x):
        return x.sin()

    def m():
        torch.Tensor.sin = lambda s: s * 5

    def m2():
        torch.Tensor.sin = old

    return (fn, [m, m2])


@reads
def read_nn_getattr():

    class M(torch.nn.Module):
        def forward(self, x):
            return x * getattr(self, "k", 2)

    md = M()

    def fn(x):
        return md(x)

    def m():
        md.k = 5

    def m2():
        del md.k
        M.k = 7

    def m3():
        M.__getattr__ = lambda s, n: 3
        del M.k

    return (fn, [m, m2, m3])
