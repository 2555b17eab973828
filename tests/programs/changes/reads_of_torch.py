"""Programs that read torch, which change between calls. Loaded anew for each run."""

from __future__ import annotations

import logging
import os
import sys
import types

import numpy as np
import torch


def read_tensor_attr():
    o = types.SimpleNamespace(t=torch.ones(4))
    yield lambda x: (x * o.t, o.t.requires_grad)
    o.t = torch.full((4,), 2.0)
    yield
    o.t.requires_grad_()
    yield
    o.t = torch.ones(1, dtype=torch.float64)
    yield
    o.t.foo = 3
    yield
    o.t = None


def read_tensor_own_attr():
    t = torch.ones(4)
    t.foo = 3
    yield lambda x: (x * t.foo, hasattr(t, "bar"))
    t.foo = 5
    yield
    t.bar = 5
    yield
    del t.foo


def read_numpy_array():
    a = np.ones(4, dtype=np.float32)
    o = types.SimpleNamespace(a=a)
    yield lambda x: (x * torch.from_numpy(o.a), o.a.shape, o.a.sum())
    o.a[0] = 5
    yield
    o.a = np.ones(4)
    yield
    o.a = o.a[::-1].copy()


def read_dtype_default():
    def fn(x):
        return (
            torch.zeros(2),
            torch.tensor(1.5).dtype,
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
        )

    yield fn
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(False)
    yield
    torch.set_grad_enabled(True)


def read_recursion_limit():
    sys.setrecursionlimit(1000)
    yield lambda x: (x, sys.getrecursionlimit(), os.getpid() > 0, os.getcwd() if 0 else 1)
    sys.setrecursionlimit(3333)


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

    yield fn
    held.setLevel(logging.INFO)
    yield
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    logging.getLogger("bb").setLevel(5)
    held.setLevel(0)


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

    yield fn
    lin.register_parameter("extra", torch.nn.Parameter(torch.ones(1)))
    yield
    lin.register_buffer("buf", torch.ones(1))
    yield
    lin.add_module("sub", torch.nn.ReLU())
    yield
    lin.bias = None


def read_bool_of_array_attr():
    ns = types.SimpleNamespace(s=np.float32(2), i=np.int64(3), b=np.bool_(True))
    yield lambda x: x * ns.s + ns.i if ns.b else x
    ns.s = np.float32(3)
    yield
    ns.b = np.bool_(False)
    yield
    ns.b = np.bool_(True)
    ns.i = np.int32(9)
    yield
    ns.s = np.float64(3)


def read_nn():
    mod = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())
    yield lambda x: mod(x)
    mod[0] = torch.nn.Sigmoid()
    yield
    mod.append(torch.nn.Softplus())
    yield
    mod[1].forward = lambda x: x * 2
    yield
    mod[0].register_forward_hook(lambda m, i, o: o + 1)
    yield
    mod.k = 1


def read_tensor_method_replaced():
    old = torch.Tensor.sin
    yield lambda x: x.sin()
    torch.Tensor.sin = lambda s: s * 5
    yield
    torch.Tensor.sin = old


def read_nn_getattr():
    class M(torch.nn.Module):
        def forward(self, x):
            return x * getattr(self, "k", 2)

    md = M()
    yield lambda x: md(x)
    md.k = 5
    yield
    del md.k
    M.k = 7
    yield
    M.__getattr__ = lambda s, n: 3
    del M.k


def read_buffer_none():
    m = torch.nn.Module()
    m.register_buffer("b", None)
    yield lambda t: t * 2 if m.b is None else t + m.b
    m.b = torch.ones(4)
    yield
    m.b = None


def read_module_list_dict():
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.items = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
            s.d = torch.nn.ModuleDict({"a": torch.nn.ReLU()})
            s.p = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4))])
            s.pl = [torch.nn.Linear(4, 4)]

        def forward(s, t):
            for q in s.items:
                t = q(t)
            for _k, v in s.d.items():
                t = v(t)
            return t + s.p[0] + s.pl[0](t)

    m = M()
    yield m
    m.items.append(torch.nn.Tanh())
    yield
    m.d["b"] = torch.nn.Sigmoid()
    yield
    m.p[0] = torch.nn.Parameter(torch.zeros(4))
    yield
    m.items[0] = torch.nn.Identity()
    yield
    m.pl[0] = torch.nn.Identity()
    yield
    m.items.insert(0, torch.nn.ReLU())
    yield
    del m.d["a"]


def read_weightnorm_parametrize():
    m = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
    yield m
    with torch.no_grad():
        m.parametrizations.weight.original0.mul_(2)
    yield
    torch.nn.utils.parametrize.remove_parametrizations(m, "weight")


def read_load_state():
    m = torch.nn.Linear(4, 4)
    yield m
    m.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.ones(4)})
    yield
    m.load_state_dict({"weight": torch.zeros(4, 4), "bias": torch.ones(4)}, assign=True)


def read_share_mem():
    m = torch.nn.Linear(4, 4)
    yield m
    m.share_memory()
    yield
    with torch.no_grad():
        m.weight.zero_()


def read_resize_param():
    a = torch.ones(4)
    yield lambda t: t * a.sum() + a.shape[0]
    a.resize_(2)
    yield
    a.set_(torch.full((6,), 2.0))
    yield
    a.t_()


def read_F_patched():
    m = torch.nn.ReLU()
    yield m
    old = torch.nn.functional.relu
    torch.nn.functional.relu = lambda t, inplace=False: t
    try:
        yield
    finally:
        torch.nn.functional.relu = old


def read_module_hook_replaced():
    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def mk(v):
        return lambda m, i, o: o + v

    h = m[0].register_forward_hook(mk(1))
    yield m
    h.remove()
    h = m[0].register_forward_hook(mk(5))


def read_deterministic():
    yield lambda t: t * 2 if torch.are_deterministic_algorithms_enabled() else t
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
