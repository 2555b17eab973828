"""Programs in all of Python's control flow, functions, classes and exceptions, captured whole."""

# ruff: noqa: C406, RUF005, SIM222, B007, E741, C416
from __future__ import annotations

import contextlib
import dataclasses
import functools
import typing

import torch


def comprehension(x):
    return (
        [i * x for i in range(3) if i != 1],
        {i: x + i for i in range(2)},
        tuple(x * j for j in (1, 2)),
        {i for i in range(3)},
    )


def closure(x):
    n = 3

    def add(y, *, k=2):
        nonlocal n
        n += 1
        return y + n * k

    return add(x), add(x, k=5), n


def varargs(x):
    def g(a, b=2, *args, c, d=4, **kw):
        return a * b + sum(args) * c - d + sum(kw.values())

    return g(x, 1, 2, 3, c=x, e=5), g(*[x, 2], **{"c": 1, "z": x})


def gen(n, x):
    for i in range(n):
        got = yield x + i
        if got:
            x = x * got
    return "done"


def generators(x):
    out = list(gen(3, x))
    g = gen(3, x)
    out.append(next(g))
    out.append(g.send(3))

    def outer():
        r = yield from gen(2, x)
        yield r

    return out, list(outer()), sum(y.sum() for y in gen(2, x))


@contextlib.contextmanager
def ctx(log):
    log.append("enter")
    try:
        yield 5
    finally:
        log.append("exit")


def with_contextmanager(x):
    log = []
    with ctx(log) as v:
        x = x + v
    try:
        with ctx(log):
            raise ValueError("bad")
    except ValueError as e:
        log.append(str(e))
    return x, log


def exceptions(x):
    out = []
    try:
        {}["k"]
    except KeyError as e:
        out.append(e.args[0])
    else:
        out.append("no")
    finally:
        out.append("fin")
    try:
        try:
            raise RuntimeError("a")
        except RuntimeError as e:
            raise ValueError("b") from e
    except (TypeError, ValueError) as e:
        out.append(repr(e.args))

    def f():
        try:
            return 1
        finally:
            out.append("f")

    out.append(f())
    for i in range(3):
        try:
            if i == 1:
                continue
            if i == 2:
                break
            out.append(i)
        finally:
            out.append(("it", i))
    try:
        _ = [1][5]
    except IndexError:
        out.append("ie")
    try:
        int("zz")
    except ValueError:
        out.append("ve")
    try:
        out.append((3).foo)
    except AttributeError:
        out.append("ae")
    return x, out


@dataclasses.dataclass
class DC:
    a: torch.Tensor
    b: int = 3
    c: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.a * self.b

    @property
    def twice(self):
        return self.a * 2

    @staticmethod
    def st(x):
        return x - 1

    @classmethod
    def make(cls, x):
        return cls(x, 7)

    def __add__(self, o):
        return DC(self.a + o.a)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.a[i]

    def __call__(self, y):
        return self.a + y

    def __contains__(self, k):
        return k == 3

    def __iter__(self):
        yield self.a
        yield self.b

    def __bool__(self):
        return False


def dataclass_(x):
    d = DC(x)
    e = DC.make(x + 1)
    s = d + e
    a, b = d
    return (
        d,
        e.total(),
        s.twice,
        DC.st(x),
        len(d),
        d[0],
        d(x),
        3 in d,
        not d,
        a,
        b,
        dataclasses.replace(d, b=9) if False else None,
    )


class Base:
    k = 10

    def __init__(self, x):
        self.x = x

    def go(self):
        return self.x + self.k


class Child(Base):
    __slots__ = ()

    def __init__(self, x):
        super().__init__(x)
        self.y = [x]

    def go(self):
        return super().go() * 2

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return name[4:]
        raise AttributeError(name)


def classes(x):
    c = Child(x)
    c.k = 20
    c.z = x
    del c.z
    return (
        c.go(),
        c.dyn_abc,
        hasattr(c, "nope"),
        getattr(c, "nope", 1),
        isinstance(c, Base),
        type(c).__name__,
        issubclass(Child, Base),
        c,
    )


def no_grad_(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        z = y + 1
    with contextlib.nullcontext():
        z = z + 1
    return y, z, torch.is_grad_enabled()


@torch.no_grad()
def ng(x):
    return x + 1


def no_grad_decorated(x):
    return ng(x) * 2


def mutate_input(x):
    x.mul_(2)
    x[0, 0] = 9
    return x.sum(), x


class Obj:
    pass


counter = 0


def mutate_global(x):
    global counter
    counter = 5
    counter += 1
    return x + counter


def unpack(x):
    a, *b = [1, x, 3]
    (c, d), e = (1, 2), 3
    first, *_, last = range(5)
    return a, b, c + d + e, first, last


def ternary_loops(x):
    n = 0
    while True:
        n += 1
        if n > 3:
            break
    else:
        n = 100
    for i in range(2):
        pass
    else:
        n += 10
    return x + n if n else x, (n := 5), n and x, None or 3, 1 < 2 < 3, not n


def star_expr(x):
    t = (*[1, 2], *(3,))
    return torch.cat([*[x, x]], **{"dim": 0}), t, [*range(2)], {*[1]}


def rec(x, n):
    return x if n == 0 else rec(x + 1, n - 1)


def recursion(x):
    return rec(x, 5)


def vars_(x):
    o = Obj()
    o.a = x
    o.__dict__["b"] = 2
    return o.b, sorted(vars(o)), "a" in o.__dict__, o.__class__.__name__


def match_(x):
    def m(v):
        match v:
            case 1:
                return "one"
            case [a, b]:
                return (a, b)
            case "q":
                return "s"
            case _:
                return None

    return m(1), m([1, x]), m("q"), m(2.5)


def called_until(x):
    left, caught = [1, 2, 0, 4], []

    def take():
        if not left:
            raise StopIteration
        return left.pop(0)

    first = [x * item for item in iter(take, 0)]
    rest = iter(take, None)
    found = next(rest), list(rest), list(rest), iter(rest) is rest
    try:
        iter(3, 0)
    except TypeError as error:
        caught.append(str(error))
    return first, found, left, caught, sum(iter(functools.partial(next, iter([x, x, None])), None))


def returns_function(x):
    def g(y):
        return y + x

    return g, functools.partial(g, 1)


def type_ann(x: torch.Tensor) -> torch.Tensor:
    y: int = 3
    assert y == 3, "no"
    return typing.cast(torch.Tensor, x) + y


def import_inside(x):
    import math as m
    from collections import OrderedDict as O

    return x + m.pi, O(a=1)


class Meta(type):
    def __call__(cls, *a):
        return super().__call__(*a)


class WithMeta(metaclass=Meta):
    def __init__(self, v):
        self.v = v


class Desc:
    def __get__(self, obj, owner):
        return 42 if obj is not None else self

    def __set__(self, obj, v):
        obj._d = v


class WithDesc:
    d = Desc()

    @functools.cached_property
    def cp(self):
        return [1]


def meta_desc(x):
    w = WithMeta(x)
    o = WithDesc()
    o.d = 5
    return w.v, o.d, o._d, o.cp is o.cp


def deco(f):
    @functools.wraps(f)
    def inner(*a, **k):
        return f(*a, **k) * 2

    return inner


@deco
def decorated(x, y=1):
    return x + y


def decorator_(x):
    return decorated(x), decorated(x, y=3), decorated.__name__


def object_identity(x):
    a = []
    b = [a, a]
    b[0].append(x)
    return b


def cyc(x):
    a = [x]
    a.append(a)
    return a[1][0], len(a)


def comprehension_closures(x):
    fs = [lambda: i * x for i in range(3)]
    i = 10
    gs = [[(lambda: i + j)() for j in range(2)] for i in range(2)]
    return [f() for f in fs], gs, i


def delete_and_walrus(x):
    d = {"a": x, "b": x}
    l = [1, 2, 3, 4]
    del d["a"], l[1:3]
    if (n := len(l)) > 1:
        x = x + n
    return d, l, x, [y := 1, y**2]


def nested_tuple_const(x):
    return (
        (1, (2, 3)) + (4,),
        (1, 2) == (1, 2),
        1 in (1, 2),
        {(1, 2): x}[(1, 2)],
        isinstance(x, (int, torch.Tensor)),
        [a for a in ((1, 2), (3, 4))],
        "ab"[0],
        (1, 2)[1],
        len((1, 2)),
        tuple(reversed((1, 2))),
        dict(((1, 2), (3, 4))),
        max((1, 5)),
        (1, 2) < (2,),
        hash((1, 2)),
    )
