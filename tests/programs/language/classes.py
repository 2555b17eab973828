"""Programs over special methods, user containers, classes of the standard library, and odder torch calls."""

# ruff: noqa: B905, C402, C416, F841, UP031
from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import math
import numbers
import typing

import torch
import torch.nn.functional as F


class SetA:
    def __init__(self):
        self.__dict__["log"] = []

    def __setattr__(self, k, v):
        self.log.append(k)
        super().__setattr__(k, v)

    def __delattr__(self, k):
        self.log.append("-" + k)
        object.__delattr__(self, k)


def setattr_override(x):
    s = SetA()
    s.a = x
    s.b = 2
    del s.b
    return s.log, s.a, s.__dict__["log"]


class EqH:
    def __init__(self, v):
        self.v = v

    def __eq__(self, o):
        return isinstance(o, EqH) and self.v == o.v

    def __lt__(self, o):
        return self.v < o.v

    def __repr__(self):
        return f"EqH({self.v})"

    def __format__(self, spec):
        return "F" + spec

    def __index__(self):
        return self.v

    def __bool__(self):
        return self.v > 0

    def __neg__(self):
        return EqH(-self.v)

    def __radd__(self, o):
        return o + self.v

    def __iadd__(self, o):
        self.v += o
        return self

    def __contains__(self, o):
        return o == self.v

    def __reversed__(self):
        return iter([1, 2])

    def __len__(self):
        return 3

    def __getitem__(self, i):
        if i > 2:
            raise IndexError
        return i * 10


def dunders(x):
    a, b = EqH(1), EqH(1)
    c = EqH(2)
    a2 = EqH(5)
    a2 += 3
    return (
        x + 0,
        a == b,
        a != c,
        a < c,
        repr(a),
        str(c),
        [1, 2, 3, 4][EqH(2)],
        bool(EqH(0)),
        (-a).v,
        3 + a,
        a2.v,
        1 in a,
        list(reversed(a)),
        len(a),
        a[1],
        max(a, c).v,
        sorted([c, a])[0].v if False else 0,
    )


@dataclasses.dataclass(frozen=True, order=True)
class FD:
    a: int
    b: str = "q"


def frozen_dc(x):
    f = FD(1)
    g = dataclasses.replace(f, b="z")
    try:
        f.a = 3
    except dataclasses.FrozenInstanceError as e:
        m = "frozen"
    return x + f.a, g, f < FD(2), f == FD(1), m


@dataclasses.dataclass
class D3:
    a: int
    b: list


def dc_utils(x):
    d = D3(1, [x])
    return (
        dataclasses.asdict(D3(1, [2])),
        dataclasses.astuple(D3(1, [2])),
        [f.name for f in dataclasses.fields(d)],
        dataclasses.is_dataclass(d),
    )


def exitstack(x):
    log = []
    with contextlib.ExitStack() as st:
        st.enter_context(ctxm(log))
        st.callback(log.append, "cb")
        x = x + 1
    with contextlib.suppress(KeyError):
        {}["a"]
    return x, log


@contextlib.contextmanager
def ctxm(log):
    log.append(1)
    try:
        yield
    finally:
        log.append(2)


class Supp:
    def __enter__(self):
        return self

    def __exit__(self, t, v, tb):
        self.t = t
        return t is not None and issubclass(t, ValueError)


def suppressing(x):
    s = Supp()
    with s:
        raise ValueError
    try:
        with Supp():
            raise KeyError("k")
    except KeyError as e:
        pass
    return x, s.t.__name__


class Abs(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
    @property
    @abc.abstractmethod
    def p(self): ...


class Conc(Abs):
    _p = 3

    def f(self):
        return 2

    @property
    def p(self):
        return self._p

    @p.setter
    def p(self, v):
        self._p = v * 2


def abstract(x):
    c = Conc()
    c.p = 5
    return (
        x * c.f(),
        c.p,
        isinstance(c, Abs),
        isinstance(3, numbers.Number),
        isinstance([], collections.abc.Sequence),
    )


class UD(collections.UserDict):
    pass


def userdict(x):
    u = UD(a=1)
    u["b"] = x
    return dict(u), "a" in u, len(u), list(u.items())


def chainmap(x):
    c = collections.ChainMap({"a": 1}, {"b": x})
    return c["a"], c["b"], "z" in c


class Miss(dict):
    def __missing__(self, k):
        return k * 2


def missing(x):
    return Miss()["a"], x, Miss(a=1)["a"], Miss(b=x)


def strs(x):
    return (
        x,
        "abc".replace("a", "z").title(),
        ["a", "b"],
        "x".join(["1", "2"]),
        f"{3:>5}|{2.5:.1f}|{'a'!r}",
        "%05.2f" % 2.5,
        "abc"[::-1],
        "a" < "b",
        "abc".find("c"),
        f"{1}-{2}",
        str([1, 2]),
        str({"a": 1}),
        repr("x"),
        b"abc",
        b"ab" + b"c",
        "Ab".isupper(),
        "1".zfill(3),
        ord("a"),
        str(None),
        str(torch.float32),
        f"{x.dtype}",
        f"{x.device}",
        f"{tuple(x.shape)}",
    )


T1 = typing.TypeVar("T1")


class Gen(typing.Generic[T1]):
    def __init__(self, v):
        self.v = v


def generic(x):
    return Gen(x).v, Gen[int]


def inner_generators(x):
    return (
        sum(a * b for a in range(3) for b in (1, 2) if a != b),
        [[i + j for j in range(2)] for i in range(2)],
        {k: [v] for k, v in zip("ab", [x, 1])},
        any(i > 1 for i in range(3)),
        dict((i, i * i) for i in range(3)),
        max((i for i in range(4)), key=lambda i: -i),
        next((i for i in range(10) if i > 5), None),
    )


class It:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


def custom_iter(x):
    return [i for i in It(3)], list(It(2)), sum(It(4)), list(zip(It(2), "ab")), x, tuple(map(str, It(2)))


def tensor_keys(x):
    z = x * 2
    d = {z: 1}
    y = x + 1
    d[y] = 2
    return d[z], d[y], y in d, len({z, y, z})


def method_refs(x):
    f = x.add
    g = [].append
    d = {}
    h = d.get
    s = "a".join
    g(1)
    return f(2), h("q", 3), s(["1", "2"]), list(map(x.mul, [1, 2]))


def torch_misc(x):
    idx = torch.tensor([0, 1])
    y = x.clone()
    y[idx, idx] = 0.0
    y[y > 3] = -1
    z = torch.empty(2, 2)
    z.fill_(3)
    z.zero_()
    w = x.new_tensor([1.0, 2.0])
    q = torch.stack([r for r in x])
    a, b = torch.split(x, [1, 2], dim=1)
    m = torch.max(x)
    mm = torch.max(x, 1)
    u = x.std(dim=0, unbiased=False)
    return (
        y,
        z,
        w,
        q,
        a,
        b,
        m,
        mm[0],
        mm.indices,
        u,
        x.sum().reshape(()),
        torch.linalg.norm(x),
        torch.clamp(x, min=1),
        x.T.contiguous(),
        x.t() @ x,
        torch.tril(torch.ones(3, 3)),
        x.repeat(2, 1),
        x.roll(1, 0),
        torch.outer(x[0], x[1]),
        x.sort(descending=True),
        torch.cumsum(x, 0),
        x.bool().any(),
        torch.logical_not(x > 1),
        x.flip(0),
        x.gather(1, torch.zeros(2, 1, dtype=torch.long)),
        torch.bmm(x[None], x.T[None]),
        F.one_hot(torch.tensor([0, 2])),
        x.square().mean().sqrt(),
        F.pad(x, (1, 1)),
        x.tile(2),
        torch.chunk(x, 3, 1),
        x.view(3, -1),
        x.squeeze().unsqueeze(0),
        torch.allclose(x, x) if False else 0,
    )


def out_and_views(x):
    y = torch.empty_like(x)
    torch.mul(x, 2, out=y)
    v = y[0]
    v += 1
    w = y.view(-1)
    w[2] = 100
    return y, v, w


def returns_input(x):
    return x, x[0], [x, {"q": x}], x.detach() is x


def int_ops(x):
    b, s = x.shape
    return (
        x.view(b * s),
        x.reshape(b, -1),
        s // 2,
        s % 2,
        b**s,
        -s,
        s / 2,
        b < s,
        (b, s) == (2, 3),
        int(s * 0.5),
        round(s / 2),
        min(b, s),
        divmod(s, b),
        b & s,
        b << 2,
        float(b),
        bool(b),
        s.bit_length(),
        math.ceil(s / 2),
        isinstance(s, int),
        max(x.shape),
        sum(x.shape),
        list(x.shape),
        x.shape.index(3),
        x.shape.count(2),
    )
