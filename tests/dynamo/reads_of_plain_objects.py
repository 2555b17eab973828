"""What programs read of plain objects, and how it changes between calls. Loaded anew for each run."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
import weakref

import numpy as np
import torch
from readers import changeable, collecting

READERS = {}
reads = collecting(READERS)
_, fresh = changeable()


@reads
def read_namespace_types():
    o = types.SimpleNamespace(v=2)

    def fn(x):
        return x * o.v

    def m():
        o.v = True

    def m2():
        o.v = 2.0

    def m3():
        o.v = np.float64(3)

    def m4():
        o.v = torch.tensor(3.0)

    def m5():
        o.v = "a"

    return (fn, [m, m2, m3, m4, m5])


@reads
def read_minus_zero():
    o = types.SimpleNamespace(v=0.0)

    def fn(x):
        return (math.copysign(1, o.v) * x, 1 if o.v == 0 else 2)

    def m():
        o.v = -0.0

    def m2():
        o.v = float("nan")

    return (fn, [m, m2])


@reads
def read_int_big():
    o = types.SimpleNamespace(v=1)

    def fn(x):
        return (x * float(o.v % 7), o.v + 1)

    def m():
        o.v = 2

    def m2():
        o.v = 2**70

    def m3():
        o.v = -(2**63)

    def m4():
        o.v = True

    return (fn, [m, m2, m3, m4])


@reads
def read_typing_alias():
    ns = types.SimpleNamespace(t=int)

    def fn(x):
        return x * 2 if isinstance(3, ns.t) else x

    def m():
        ns.t = int | str

    def m2():
        ns.t = (str, bytes)

    def m3():
        ns.t = typing.Union.__getitem__((str, int))

    def m4():
        ns.t = list[int]

    return (fn, [m, m2, m3, m4])


@reads
def read_getattr_added():
    C = fresh()
    o = C()

    def fn(x):
        return x * getattr(o, "zz", 4)

    def m():
        C.__getattr__ = lambda s, n: 11

    def m2():
        del C.__getattr__

    def m3():
        C.zz = 1

    return (fn, [m, m2, m3])


@reads
def read_slots():

    class S:
        __slots__ = ("a",)

    s = S()
    s.a = 2

    def fn(x):
        return x * s.a

    def m():
        s.a = 3

    def m2():
        del s.a

    return (fn, [m, m2])


@reads
def read_weakref():

    class W:
        v = 2

    h = [W()]
    h[0].v = 3
    r = weakref.ref(h[0])

    def fn(x):
        return x * 2 if r() is None else x * r().v

    def m():
        h[0].v = 4

    def m2():
        h.clear()

    return (fn, [m, m2])


@reads
def read_dataclass():

    @dataclasses.dataclass
    class D:
        a: int = 2

    d = D()

    def fn(x):
        return (x * d.a, D().a)

    def m():
        d.a = 3

    def m2():
        D.__init__ = lambda s: setattr(s, "a", 9)

    return (fn, [m, m2])


@reads
def read_hasattr():
    C = fresh()
    o = C()

    def fn(x):
        return (x * 2 if hasattr(o, "zz") else x, callable(o), hasattr(o, "__len__"), bool(o))

    def m():
        o.zz = 1

    def m2():
        C.__call__ = lambda s: 3

    def m3():
        C.__len__ = lambda s: 0

    return (fn, [m, m2, m3])


@reads
def read_ops():
    C = fresh()
    o = C()
    C.__add__ = lambda s, v: v
    C.__mul__ = lambda s, v: v * 2

    def fn(x):
        return (o + x, o * x, o == o, o == 3)

    def m():
        C.__add__ = lambda s, v: v * 5

    def m2():
        C.__eq__ = lambda s, v: True

    def m3():
        C.__radd__ = lambda s, v: v * 9

    return (fn, [m, m2, m3])


@reads
def read_ctx():

    class K:
        def __enter__(self):
            return 2

        def __exit__(self, *a):
            return False

    def fn(x):
        with K() as k:
            return x * k

    def m():
        K.__enter__ = lambda s: 4

    return (fn, [m])


@reads
def read_cached_property():

    class K:
        n = 0

        @functools.cached_property
        def v(self):
            self.n += 1
            return self.n

    o = K()

    def fn(x):
        return (x * o.v, o.n)

    def m():
        del o.v

    def m2():
        o.v = 8

    return (fn, [m, m2])


@reads
def read_str_subclass():

    class S(str):
        pass

    o = types.SimpleNamespace(v="a")

    def fn(x):
        return (x * len(o.v), type(o.v).__name__, o.v == "a")

    def m():
        o.v = S("a")

    return (fn, [m])


@reads
def read_descriptor():

    class De:
        def __get__(self, o, t):
            return 2

    class K:
        d = De()

    o = K()

    def fn(x):
        return x * o.d

    def m():
        De.__get__ = lambda s, o, t: 5

    def m2():
        De.__set__ = lambda s, o, v: None

    def m3():
        o.__dict__["d"] = 9

    def m4():
        del De.__set__

    return (fn, [m, m2, m3, m4])


@reads
def read_dunder_dict():

    class K:
        pass

    o = K()
    o.v = 2

    def fn(x):
        return (x * o.v, vars(o), sorted(o.__dict__))

    def m():
        o.__dict__ = {"v": 5}

    def m2():
        o.__dict__["z"] = 5

    return (fn, [m, m2])


@reads
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

    def m():
        A.__match_args__ = ("b", "a")

    def m2():
        o.b = 2

    def m3():
        A.__match_args__ = ()

    return (fn, [m, m2, m3])


@reads
def read_id_hash():

    class K:
        def __hash__(self):
            return 4

    o = types.SimpleNamespace(a=K())

    def fn(x):
        return (x * hash(o.a), hash("a") == hash("a"), hash((1, 2)))

    def m():
        K.__hash__ = lambda s: 7

    return (fn, [m])


@reads
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

    def m():
        K.v = K.v.setter(lambda s, a: setattr(s, "_v", 100))

    def m2():
        K.__setattr__ = lambda s, n, a: None

    return (fn, [m, m2])


@reads
def read_exceptions():

    class E(Exception):
        pass

    ns = types.SimpleNamespace(E=E, cls=E)

    def fn(x):
        try:
            raise ns.E("a")
        except ns.cls:
            return x * 2

    def m():
        ns.cls = KeyError

    def m2():
        ns.cls = (KeyError, E)

    def m3():
        ns.cls = 3

    return (fn, [m, m2, m3])


@reads
def read_exc_cls_attr():

    class Er(Exception):
        code = 2

    def fn(x):
        try:
            raise Er("a")
        except Er as e:
            return (x * e.code, e.args, str(e))

    def m():
        Er.code = 3

    def m2():
        Er.__str__ = lambda s: "S"

    def m3():
        Er.__init__ = lambda s, *a: setattr(s, "code", 9)

    return (fn, [m, m2, m3])


@reads
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

    def m():
        Cm.__exit__ = lambda s, *a: True

    return (fn, [m])


@reads
def read_str_format_obj():

    class P:
        v = 2

        def __str__(s):
            return f"P{s.v}"

        def __format__(s, f):
            return f"F{s.v}{f}"

    p = P()

    def fn(x):
        return (x, str(p), f"{p:z}", f"{p}", f"{p}", f"{p!s}")

    def m():
        P.v = 3

    def m2():
        p.v = 4

    def m3():
        P.__str__ = lambda s: "new"

    return (fn, [m, m2, m3])


@reads
def read_fields_of_a_dataclass():
    @dataclasses.dataclass
    class Record:
        a: int = 2

    def fn(x):
        return x * len(dataclasses.fields(Record)), [field.default for field in dataclasses.fields(Record)]

    def other_default():
        Record.__dataclass_fields__["a"].default = 7

    def none():
        Record.__dataclass_fields__.clear()

    return fn, [other_default, none]


@reads
def read_format_that_is_none():
    class Shown:
        def __format__(self, spec):
            return "shown"

    shown = Shown()

    def fn(x):
        return x * 2, f"{shown}"

    def none():
        Shown.__format__ = None

    return fn, [none]
