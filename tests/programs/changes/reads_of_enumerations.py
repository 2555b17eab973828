"""Programs that read enumerations, which change between calls. Loaded anew for each run."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types

import torch

TABLE = {1: 2, 2: 3}


K = 5


class E(enum.Enum):
    A = 1
    B = 2

    @property
    def t(self):
        return TABLE[self.value]

    def m(self, k=1):
        return K * k

    @classmethod
    def c(cls):
        return K

    @staticmethod
    def s():
        return K

    def __call__(self, x):
        return x * K

    def __len__(self):
        return K


class IE(int, enum.Enum):
    A = 1

    def m(self):
        return K

    def __add__(self, o):
        return K


class FN(enum.Enum):
    F = functools.partial(torch.add, alpha=3)

    def __call__(self, x):
        return self.value(x, x)


class Pl(enum.Enum):
    M = (1, 5.0)
    N = (2, 7.0)

    def __init__(self, a, b):
        self.a = a
        self.b = b

    @property
    def g(self):
        return self.a * self.b


class LenE(enum.Enum):
    A = 1

    def __eq__(self, o):
        return K == 5

    def __hash__(self):
        return 3


def setk(v):
    global K
    K = v


class Sub(str):
    def m(self):
        return K


class Ord(enum.Enum):
    LOW = 1
    HIGH = 2

    def __lt__(self, o):
        return self.value < o.value


class Fl(enum.Flag):
    A = 1
    B = 2
    AB = 3

    @property
    def n(self):
        return K


def read_property():
    yield lambda x: x * E.A.t
    TABLE[1] = 9


def read_method():
    yield lambda x: x * E.A.m(2) + E.A.c() + E.c() + E.s() + E.B.s()
    setk(6)


def read_iter():
    yield lambda x: ([x * e.t for e in E], len(E), E.A in E, [e.name for e in E if e is not E.A])
    TABLE[1] = 9


def read_enum():
    class E(enum.Enum):
        A = 1
        B = 2

    o = types.SimpleNamespace(e=E.A)
    yield lambda x: x * o.e.value if o.e is E.A else x + 1
    o.e = E.B
    yield
    o.e = E.A
    E.A._value_ = 7
    yield
    E.A.extra = 2


def read_call():
    yield lambda x: E.A(x) * len(E.A)
    setk(6)


def read_int():
    yield lambda x: x * IE.A.m() + (IE.A + 1)
    setk(6)


def read_eq():
    yield lambda x: x if LenE.A == 3 else x * 2
    setk(6)


def read_through_attr():
    o = types.SimpleNamespace(e=E.A)
    yield lambda x: x * o.e.t * o.e.m()
    TABLE[1] = 9
    yield
    setk(3)
    yield
    o.e = E.B
    yield
    E.m = lambda s: 77


def read_attrs():
    yield lambda x: x * Pl.M.g * Pl.N.a
    Pl.M.a = 4


def read_value():
    yield lambda x: (x * E.A.value, E.A.name, E(2).name, E["B"].value)
    E.A._value_ = 4


def read_missing():
    class Q(enum.Enum):
        A = 1

        @classmethod
        def _missing_(cls, v):
            return cls.A if K == 5 else None

    yield lambda x: x * Q(9).value
    setk(6)


def read_strsub():
    o = types.SimpleNamespace(s=Sub("a"))
    yield lambda x: x * o.s.m()
    setk(6)


def read_dtypeenum():
    class D(enum.Enum):
        F = torch.float32
        G = torch.float64

    o = types.SimpleNamespace(d=D.F)
    yield lambda x: x.to(o.d.value)
    o.d = D.G


def read_keys():
    d = {E.A: 3, E.B: 4}
    s = {E.A}

    def fn(x):
        return (
            x * d[E.A],
            E.B in d,
            {E.A: 1}[E.A],
            E.A in s,
            E.A is E.A,
            E.A == E.A,
            E.A != E.B,
            E(1) is E.A,
            str(E.A),
            f"{E.A}",
            isinstance(E.A, E),
            hash(E.A) == hash(E.A),
        )

    yield fn
    d[E.A] = 9


def read_order():
    o = types.SimpleNamespace(e=Ord.LOW)
    yield lambda x: (x if o.e < Ord.HIGH else x * 2, sorted([Ord.HIGH, Ord.LOW]), max(Ord.LOW, Ord.HIGH), o.e)
    o.e = Ord.HIGH


def read_flag():
    o = types.SimpleNamespace(e=Fl.A)

    def fn(x):
        return (
            x * (o.e | Fl.B).n,
            Fl.A in Fl.AB,
            (o.e & Fl.B).value,
            bool(o.e & Fl.B),
            ~o.e,
            [f.name for f in Fl.AB],
            o.e.n,
        )

    yield fn
    o.e = Fl.AB
    yield
    setk(6)


def read_enum_str():
    class Q(enum.Enum):
        A = 1

        def __str__(s):
            return f"Q{K}"

    o = types.SimpleNamespace(q=Q.A)
    yield lambda x: (x, str(Q.A), f"{Q.A}", f"{o.q}", f"{Q.A}", f"{Q.A!s:>4}", "-".join([str(Q.A)]))
    setk(6)


def read_dataclass_default():
    @dataclasses.dataclass
    class D:
        a: int = 2
        b: list = dataclasses.field(default_factory=lambda: [K])

    def fn(x):
        d = D()
        return (x * d.a + d.b[0], D.a, dataclasses.fields(D)[0].default)

    yield fn
    D.a = 7
    yield
    setk(6)
