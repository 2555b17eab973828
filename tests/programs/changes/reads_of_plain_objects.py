"""Programs that read plain objects, which change between calls. Loaded anew for each run."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
import weakref

import numpy as np
import torch
from tests.programs.changes.changeable import changeable

_, fresh = changeable()


def read_namespace_types():
    o = types.SimpleNamespace(v=2)
    yield lambda x: x * o.v
    o.v = True
    yield
    o.v = 2.0
    yield
    o.v = np.float64(3)
    yield
    o.v = torch.tensor(3.0)
    yield
    o.v = "a"


def read_minus_zero():
    o = types.SimpleNamespace(v=0.0)
    yield lambda x: (math.copysign(1, o.v) * x, 1 if o.v == 0 else 2)
    o.v = -0.0
    yield
    o.v = float("nan")


def read_int_big():
    o = types.SimpleNamespace(v=1)
    yield lambda x: (x * float(o.v % 7), o.v + 1)
    o.v = 2
    yield
    o.v = 2**70
    yield
    o.v = -(2**63)
    yield
    o.v = True


def read_typing_alias():
    ns = types.SimpleNamespace(t=int)
    yield lambda x: x * 2 if isinstance(3, ns.t) else x
    ns.t = int | str
    yield
    ns.t = (str, bytes)
    yield
    ns.t = typing.Union.__getitem__((str, int))
    yield
    ns.t = list[int]


def read_getattr_added():
    C = fresh()
    o = C()
    yield lambda x: x * getattr(o, "zz", 4)
    C.__getattr__ = lambda s, n: 11
    yield
    del C.__getattr__
    yield
    C.zz = 1


def read_slots():
    class S:
        __slots__ = ("a",)

    s = S()
    s.a = 2
    yield lambda x: x * s.a
    s.a = 3
    yield
    del s.a


def read_weakref():
    class W:
        v = 2

    h = [W()]
    h[0].v = 3
    r = weakref.ref(h[0])
    yield lambda x: x * 2 if r() is None else x * r().v
    h[0].v = 4
    yield
    h.clear()


def read_dataclass():
    @dataclasses.dataclass
    class D:
        a: int = 2

    d = D()
    yield lambda x: (x * d.a, D().a)
    d.a = 3
    yield
    D.__init__ = lambda s: setattr(s, "a", 9)


def read_hasattr():
    C = fresh()
    o = C()
    yield lambda x: (x * 2 if hasattr(o, "zz") else x, callable(o), hasattr(o, "__len__"), bool(o))
    o.zz = 1
    yield
    C.__call__ = lambda s: 3
    yield
    C.__len__ = lambda s: 0
    yield
    C.__bool__ = lambda s: True


def read_ops():
    C = fresh()
    o = C()
    C.__add__ = lambda s, v: v
    C.__mul__ = lambda s, v: v * 2
    yield lambda x: (o + x, o * x, o == o, o == 3)
    C.__add__ = lambda s, v: v * 5
    yield
    C.__eq__ = lambda s, v: True
    yield
    C.__radd__ = lambda s, v: v * 9


def read_ctx():
    class K:
        def __enter__(self):
            return 2

        def __exit__(self, *a):
            return False

    def fn(x):
        with K() as k:
            return x * k

    yield fn
    K.__enter__ = lambda s: 4


def read_cached_property():
    class K:
        n = 0

        @functools.cached_property
        def v(self):
            self.n += 1
            return self.n

    o = K()
    yield lambda x: (x * o.v, o.n)
    del o.v
    yield
    o.v = 8


def read_str_subclass():
    class S(str):
        pass

    o = types.SimpleNamespace(v="a")
    yield lambda x: (x * len(o.v), type(o.v).__name__, o.v == "a")
    o.v = S("a")


def read_descriptor():
    class De:
        def __get__(self, o, t):
            return 2

    class K:
        d = De()

    o = K()
    yield lambda x: x * o.d
    De.__get__ = lambda s, o, t: 5
    yield
    De.__set__ = lambda s, o, v: None
    yield
    o.__dict__["d"] = 9
    yield
    del De.__set__


def read_dunder_dict():
    K = type("K", (), {})
    o = K()
    o.v = 2
    yield lambda x: (x * o.v, vars(o), sorted(o.__dict__))
    o.__dict__ = {"v": 5}
    yield
    o.__dict__["z"] = 5


def read_match_args():
    class A:
        __match_args__ = ("a", "b")

        def __init__(self):
            self.a, self.b = (2, 3)

    o = A()

    def fn(x):
        match o:
            case A(2, v):
                return x * v
            case A(w):
                return x + w

    yield fn
    A.__match_args__ = ("b", "a")
    yield
    o.b = 2
    yield
    A.__match_args__ = ()


def read_id_hash():
    class K:
        def __hash__(self):
            return 4

    o = types.SimpleNamespace(a=K())
    yield lambda x: (x * hash(o.a), hash("a") == hash("a"), hash((1, 2)))
    K.__hash__ = lambda s: 7


def read_property_setter():
    class K:
        def __init__(s):
            s._v = 0

        @property
        def v(s):
            return s._v

        @v.setter
        def v(s, a):
            s._v = a * 2

    o = K()

    def fn(x):
        o.v = 3
        return x * o.v

    yield fn
    K.v = K.v.setter(lambda s, a: setattr(s, "_v", 100))
    yield
    K.__setattr__ = lambda s, n, a: None


def read_exceptions():
    class E(Exception):
        pass

    ns = types.SimpleNamespace(E=E, cls=E)

    def fn(x):
        try:
            raise ns.E("a")
        except ns.cls:
            return x * 2

    yield fn
    ns.cls = KeyError
    yield
    ns.cls = (KeyError, E)
    yield
    ns.cls = 3


def read_exc_cls_attr():
    class Er(Exception):
        code = 2

    def fn(x):
        try:
            raise Er("a")
        except Er as e:
            return (x * e.code, e.args, str(e))

    yield fn
    Er.code = 3
    yield
    Er.__str__ = lambda s: "S"
    yield
    Er.__init__ = lambda s, *a: setattr(s, "code", 9)


def read_ctx_exit():
    class Cm:
        def __enter__(s):
            return s

        def __exit__(s, *a):
            return False

    def fn(x):
        try:
            with Cm():
                raise ValueError
        except ValueError:
            return x * 2
        return x

    yield fn
    Cm.__exit__ = lambda s, *a: True


def read_str_format_obj():
    class P:
        v = 2

        def __str__(s):
            return f"P{s.v}"

        def __format__(s, f):
            return f"F{s.v}{f}"

    p = P()
    yield lambda x: (x, str(p), f"{p:z}", f"{p}", f"{p}", f"{p!s}")
    P.v = 3
    yield
    p.v = 4
    yield
    P.__str__ = lambda s: "new"


def read_fields_of_a_dataclass():
    @dataclasses.dataclass
    class Record:
        a: int = 2

    yield lambda x: (x * len(dataclasses.fields(Record)), [one.default for one in dataclasses.fields(Record)])
    Record.__dataclass_fields__["a"].default = 7
    yield
    Record.__dataclass_fields__.clear()


def read_format_that_is_none():
    class Shown:
        def __format__(self, spec):
            return "shown"

    shown = Shown()
    yield lambda x: (x * 2, f"{shown}")
    Shown.__format__ = None
