"""Classes that captured code makes, whole: each program is run as it is and twice compiled as one graph, and what it gives
back is compared down to what is in the dictionaries of its classes. In each call a class is another one.
"""

# ruff: noqa: B007, B010, B018, B905, E501, E741, E742, F401, RUF005, RUF021, RUF059, UP004, UP008, UP028, UP042, F841, UP014, C416

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import gc
import types
import typing

import pytest
import torch
from torch import nn

import stator

X = torch.arange(3.0)
P = []


def p(f):
    P.append(f)
    return f


T = typing.TypeVar("T")


class Hooked:
    seen = []

    def __init_subclass__(cls, tag=None, **kw):
        super().__init_subclass__(**kw)
        cls.tag = tag
        Hooked.seen.append(cls.__name__)


class Meta(type):
    log = []

    def __new__(m, name, bases, ns, *, extra=0, **kw):
        ns["extra"] = extra
        return super().__new__(m, name, bases, ns, **kw)

    def __init__(cls, name, bases, ns, *, extra=0, **kw):
        super().__init__(name, bases, ns)
        Meta.log.append(name)

    def __call__(cls, *a, **k):
        made = super().__call__(*a, **k)
        made.by_meta = True
        return made

    def __len__(cls):
        return 7


class WithMeta(metaclass=Meta):
    pass


class Desc:
    def __init__(s, v):
        s.v = v

    def __set_name__(s, o, n):
        s.n = n
        s.o = o.__name__

    def __get__(s, i, t=None):
        return s if i is None else (s.n, s.v, s.o)

    def __set__(s, i, v):
        i.__dict__["_" + s.n] = v


class Gen(typing.Generic[T]):
    def g(self):
        return 3


@p
def returned_instance(x):
    class A:
        k = 2

        def __init__(self, v):
            self.v = v

        def twice(self):
            return self.v * self.k

    a = A(x + 1)
    return a.twice(), a


@p
def returned_class(x):
    n = 4

    class A:
        k = n
        t = x * 2
        l = [1, x]

        def f(self, y):
            return y + n + self.k

        @property
        def q(self):
            return self.t + 1

        @q.setter
        def q(self, v):
            self.z = v

        @staticmethod
        def s(a, b=2):
            return a * b

        @classmethod
        def c(cls):
            return cls.k

        @functools.cached_property
        def cp(self):
            return self.t * 3

    return A, A().q


@p
def sup(x):
    class A:
        def __init__(self):
            self.a = 1

        def f(self, y):
            return y + 1

    class B(A):
        def __init__(self):
            super().__init__()
            self.b = 2

        def f(self, y):
            return super().f(y) * self.b

    class C(B):
        def f(self, y):
            return super(C, self).f(y) - self.a

    c = C()
    return c.f(x), isinstance(c, A), issubclass(C, B), C.__mro__[1].__name__, c


@p
def deco(x):
    def add(cls):
        cls.added = 5
        cls.m = lambda self, y: y + self.added
        return cls

    @add
    class A:
        pass

    return A().m(x), A


@p
def hooked(x):
    Hooked.seen.clear()

    class A(Hooked, tag=3):
        def f(self, y):
            return y * self.tag

    class B(A, tag=4):
        pass

    return A().f(x) + B().f(x), list(Hooked.seen), B


@p
def hooked_bad(x):
    try:

        class A(object, tag=3):
            pass
    except TypeError as e:
        return x + 1, str(e)


@p
def meta(x):
    Meta.log.clear()

    class A(metaclass=Meta, extra=3):
        def f(self, y):
            return y * self.extra

    class B(WithMeta, extra=6):
        pass

    b = B()
    return A().f(x), b.by_meta, len(B), list(Meta.log), type(B).__name__, B.extra, b


@p
def descr(x):
    class A:
        d = Desc(3)
        e = Desc(x)

    a = A()
    a.d = 7
    return x + a.d[1], a.d[0], a.d[2], a.__dict__["_d"], A.e.v, A


@p
def dc(x):
    @dataclasses.dataclass
    class A:
        t: torch.Tensor
        n: int = 2
        l: list = dataclasses.field(default_factory=list)
        c: typing.ClassVar[int] = 9

        def __post_init__(self):
            self.l.append(self.n)

        def total(self):
            return self.t * self.n + len(self.l)

    a = A(x)
    b = dataclasses.replace(a, n=5)
    return a.total(), b.total(), b.l, len(dataclasses.fields(A)), b, A


@p
def dc2(x):
    @dataclasses.dataclass(frozen=True, order=True, eq=True)
    class A:
        a: int
        b: int = 3

    try:
        A(1).a = 4
    except dataclasses.FrozenInstanceError as e:
        m = str(e)
    return (
        x + A(2).b,
        m,
        A(1) < A(2),
        A(1) == A(1),
        hash(A(1)) == hash(A(1)),
        repr(A(1)).split(".")[-1],
        dataclasses.asdict(A(5)),
    )


@p
def dc3(x):
    @dataclasses.dataclass(slots=True, kw_only=True)
    class A:
        a: int = 1
        t: torch.Tensor = None

    a = A(t=x + 1)
    try:
        a.zz = 1
    except AttributeError:
        r = 1
    return a.t * a.a, r, a, A.__slots__


@p
def dc_inherit(x):
    @dataclasses.dataclass
    class A:
        a: int

    @dataclasses.dataclass
    class B(A):
        b: int = 2

    class C(B):
        def s(self):
            return self.a + self.b

    return x + C(1).s(), B(1), C(4, 5)


@p
def nt(x):
    P_ = collections.namedtuple("P_", ["a", "b"], defaults=[3])
    q = P_(x)
    r = q._replace(b=4)
    a, b = r
    return q.a * q.b + b, r._asdict()["b"], P_._fields, q, P_.__module__, P_.__name__, P_


@p
def nt2(x):
    class Q(typing.NamedTuple):
        "doc"

        a: torch.Tensor
        b: int = 3

        def s(self):
            return self.a * self.b

    q = Q(x)
    return q.s(), q._replace(b=1), Q.__doc__, Q.__annotations__["b"], Q


@p
def nt3(x):
    Q = typing.NamedTuple("Q", [("a", int), ("b", int)])
    return x + Q(1, 2).b, Q.__module__, Q(1, 2)


@p
def nt_sub(x):
    class Q(collections.namedtuple("QB", "a b")):
        __slots__ = ()

        @property
        def s(self):
            return self.a + self.b

    return x + Q(1, 2).s, Q(3, 4), Q._make([5, 6])


@p
def en(x):
    class E(enum.Enum):
        A = 1
        B = enum.auto()
        C = "z"
        ALIAS = 1

        def m(self):
            return self.name + "!"

        @property
        def p(self):
            return self.value

        @classmethod
        def d(cls):
            return cls.A

    return (
        x + E.B.value + len(E),
        E.A.m(),
        E("z").name,
        E["B"].name,
        [e.name for e in E],
        E.ALIAS is E.A,
        E.d().name,
        E.A.p,
        E.B,
    )


@p
def en2(x):
    E = enum.Enum("E", "A B")
    F = enum.IntFlag("F", {"R": 4, "W": 2})
    I = enum.IntEnum("I", [("P", 3), ("Q", 5)])
    return x * E.B.value + I.Q, E.A.name, E.__module__, E, F.R, I.P


@p
def en_str(x):
    class S(str, enum.Enum):
        A = "a"

    class I(enum.IntEnum):
        A = 2
        B = 3

    return x + I.B, S.A.value, S("a").name, I.A < I.B, I.A + 1, {I.A: 4}[I.A]


@p
def module(x):
    scale = x + 1

    class M(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def forward(self, y):
            return y * self.k + scale

    return M(3)(x)


@p
def ab(x):
    class A(abc.ABC):
        @abc.abstractmethod
        def f(self): ...
        @property
        @abc.abstractmethod
        def g(self): ...

    class B(A):
        def f(self):
            return 3

        g = 4

    try:
        A()
    except TypeError as e:
        m = str(e)
    return x + B().f() + B().g, m, isinstance(B(), A), sorted(A.__abstractmethods__), B


@p
def generic(x):
    class A(Gen[T]):
        def f(self, y: T) -> T:
            return y + self.g()

    class B(A[int]):
        pass

    return A().f(x), B().f(x), A[int]().f(x)


@p
def generic2(x):
    class A(typing.Generic[T]):
        def f(self, y: T) -> T:
            return y + 1

    return A().f(x), A


@p
def slots(x):
    class A:
        __slots__ = ("v", "w")

        def __init__(self, v):
            self.v = v

    a = A(x)
    try:
        a.z = 1
    except AttributeError as e:
        m = str(e)
    try:
        a.w
    except AttributeError as e:
        n = str(e)
    del a.v
    return x + 1, m, n, hasattr(a, "v"), a


@p
def exc(x):
    class E(ValueError):
        def __init__(self, a, b):
            super().__init__(a)
            self.b = b

    class F(E):
        pass

    try:
        try:
            raise F("m", 3)
        except E as e:
            y = x + e.b
            k = str(e), e.args, type(e).__name__
    finally:
        y = y + 1
    return y, k


@p
def exc_out(x):
    class E(ValueError):
        pass

    return x + 1, E("q")


@p
def specials(x):
    class V:
        def __init__(self, v):
            self.v = v

        def __add__(self, o):
            return V(self.v + (o.v if isinstance(o, V) else o))

        def __radd__(self, o):
            return V(self.v + o)

        def __eq__(self, o):
            return self.v == o.v

        def __hash__(self):
            return hash(self.v)

        def __len__(self):
            return self.v

        def __getitem__(self, i):
            return self.v * i

        def __iter__(self):
            return iter([self.v, 1])

        def __contains__(self, o):
            return o == self.v

        def __call__(self, y):
            return y * self.v

        def __enter__(self):
            return self

        def __exit__(self, *a):
            self.v += 1

        def __bool__(self):
            return self.v > 2

        def __getattr__(self, n):
            return n + "!"

        def __repr__(self):
            return f"V({self.v})"

        def __lt__(self, o):
            return self.v < o.v

    a = V(2)
    with a as b:
        pass
    c = 1 + a + 3 + V(1)
    return (
        a(x),
        c.v,
        len(a),
        a[3],
        list(a),
        3 in a,
        bool(a),
        a.zz,
        V(3) == a,
        repr(a),
        f"{a}",
        sorted([V(3), V(1)])[0].v,
    )


@p
def gens(x):
    class A:
        def __iter__(self):
            for i in range(3):
                yield i

    class It:
        def __init__(s):
            s.n = 0

        def __iter__(s):
            return s

        def __next__(s):
            s.n += 1
            if s.n > 3:
                raise StopIteration
            return s.n

    return x + sum(A()) + sum(It())


@p
def nested(x):
    class A:
        z = 1

        class B:
            y = 2

            def f(self):
                return self.y

        l = [i * 2 for i in range(3)]
        m = {k: v for k, v in zip("ab", l)}
        z2 = z + 1
        del z
        if z2 > 1:
            w = 3
        for q in range(2):
            pass

    return x + A.B().f() + sum(A.l), A.m, hasattr(A, "z"), A.z2, A.w, A.q, A.B.__qualname__, A


@p
def scopes(x):
    v = 1

    class A:
        nonlocal v
        v = 2
        global GG
        GG = 5
        u = v + GG

    return x + v + A.u, hasattr(A, "v")


GG = 0


@p
def setattrs(x):
    class A:
        k = 1

        def f(self):
            return self.k

    A.k = 2
    A.g = lambda self: self.k + 1
    setattr(A, "h", 7)
    del A.f
    a = A()
    a.k = 5
    return x + a.g() + A.k + A.h, hasattr(A, "f"), A


@p
def total(x):
    @functools.total_ordering
    class A:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

    return x + 1, A(1) <= A(2), A(3) >= A(2), A(1) > A(2), A


@p
def loop(x):
    out = []
    for i in range(3):

        class A:
            k = i

            def f(self, y):
                return y * self.k + i

        out.append(A)
    return sum(c().f(x) for c in out), len(set(map(id, out))), out[0] is not out[1], [c.k for c in out]


@p
def typed3(x):
    A = type("A", (dict,), {"f": lambda self, y: y + len(self)})
    a = A()
    a["k"] = 1
    return a.f(x), a, A.__name__, type(A) is type


@p
def mutable_default(x):
    class A:
        items = []

        def add(self, v):
            self.items.append(v)
            return len(self.items)

    a, b = A(), A()
    a.add(x)
    b.add(2)
    b.items = [0]
    return x + a.add(1), len(A.items), b.items, a


@p
def builtin_bases(x):
    class L(list):
        def s(self):
            return sum(self)

    class D(dict):
        def __missing__(self, k):
            return k * 2

    class I(tuple):
        def f(self):
            return self[0]

    class S(set):
        pass

    class O(collections.OrderedDict):
        pass

    class DD(collections.defaultdict):
        pass

    l = L([1, 2])
    d = D(a=1)
    return x + l.s() + d["a"] + I((4, 5)).f(), l, d, I((1,)), d["z"], O(a=1)


@p
def autograd2(x):
    k = 3

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a * k

        @staticmethod
        def backward(ctx, g):
            return g * k * 10

    return F.apply(W)


W = torch.ones(3, requires_grad=True)


@p
def closure_self(x):
    class A:
        def make(self):
            return A()

        @classmethod
        def new(cls):
            return cls()

        def again(self):
            return __class__

    return x + 1, type(A().make()) is A, type(A.new()) is A, A().again() is A, A


@p
def ctxm(x):
    class C(contextlib.ContextDecorator):
        def __enter__(self):
            self.n = 1
            return self

        def __exit__(self, *a):
            self.n += 1
            return True

    with C() as c:
        raise ValueError
    return x + c.n, c


@p
def annotations(x):
    class A:
        a: int
        b: "str" = "q"

        def f(self, z: int = 3) -> float: ...

    return x + 1, A.__annotations__, A.f.__annotations__, A


@p
def matchargs(x):
    class A:
        __match_args__ = ("a", "b")

        def __init__(self, a, b):
            self.a, self.b = a, b

    match A(1, x):
        case A(1, b):
            return b + 1
    return None


@p
def stored(x):
    class A:
        def f(self):
            return 4

    STORE.append(A)
    STORE2["a"] = A()
    return x + STORE[-1]().f()


STORE = []
STORE2 = {}


@p
def weird_new(x):
    class A:
        inst = None

        def __new__(cls, *a):
            if cls.inst is None:
                cls.inst = super().__new__(cls)
            return cls.inst

        def __init__(self, v):
            self.v = v

    a, b = A(1), A(2)
    return x + a.v, a is b, A


@p
def class_getitem(x):
    class A:
        def __class_getitem__(cls, k):
            return (cls.__name__, k)

    return x + 1, A[3]


@p
def raises_in_body(x):
    try:

        class A:
            q = 1
            raise KeyError("b")
    except KeyError as e:
        return x + 1, str(e)


@p
def conflict(x):
    try:

        class A(WithMeta, metaclass=abc.ABCMeta):
            pass
    except TypeError as e:
        return x + 1, str(e)


@p
def break_inside(x):
    class A:
        def f(self, y):
            y = y + 1
            stator.graph_break()
            return y * 2

    a = A()
    a.z = 3
    return a.f(x) + a.z, type(a).__name__, isinstance(a, A)


@p
def break_between(x):
    k = 3

    class A:
        def __init__(self, v):
            self.v = v

        def f(self, y):
            return y + self.v + k + len(super().__repr__()) * 0

    a = A(2)
    y = a.f(x)
    stator.graph_break()
    b = A(4)
    return b.f(y) + a.f(y), type(a) is type(b), isinstance(a, A), a


def show(v, seen=()):
    if (
        isinstance(v, type)
        and "<locals>" in v.__qualname__
        or isinstance(v, type)
        and v.__name__ in ("P_", "Q", "E", "F")
    ):
        d = {
            k: (show(w, seen + (id(v),)) if id(w) not in seen else "rec")
            for k, w in vars(v).items()
            if k not in ("_abc_impl", "__dict__", "__weakref__", "_autograd_function_id")
        }
        return (
            type(v).__name__,
            v.__name__,
            v.__qualname__,
            v.__module__,
            [b.__name__ for b in v.__mro__],
            [type(w).__name__ for w in vars(v).values()],
            d,
        )
    if isinstance(v, (tuple, list)):
        return (type(v).__name__, [show(w, seen) for w in v])
    if isinstance(v, dict):
        return (type(v).__name__, [(show(k, seen), show(w, seen)) for k, w in v.items()])
    if isinstance(v, types.FunctionType):
        return (
            "fn",
            v.__name__,
            v.__qualname__,
            v.__code__.co_filename,
            show(v.__defaults__, seen),
            v.__module__,
            v.__doc__,
            sorted(v.__dict__),
            len(v.__closure__ or ()),
            show(v.__annotations__, seen),
        )
    if isinstance(v, (staticmethod, classmethod)):
        return (type(v).__name__, show(v.__func__, seen))
    if isinstance(v, property):
        return ("prop", show(v.fget, seen), show(v.fset, seen), v.__doc__)
    if isinstance(v, torch.Tensor):
        return ("T", v.tolist(), v.requires_grad)
    if isinstance(v, Exception):
        return (type(v).__name__, v.args)
    if type(v).__module__ in ("builtins", "torch", "typing") or isinstance(v, type):
        return repr(v).split(" at 0x")[0]
    if id(v) in seen:
        return "rec"
    s = seen + (id(v),)
    return (
        type(v).__qualname__,
        show(type(v), s) if "<locals>" in type(v).__qualname__ else 0,
        {k: show(w, s) for k, w in getattr(v, "__dict__", {}).items()},
        [show(getattr(v, k, None), s) for k in getattr(type(v), "__slots__", ())]
        if not isinstance(getattr(type(v), "__slots__", ()), str)
        else 0,
    )


def outcome(function, x):
    try:
        return show(function(x))
    except stator.Unsupported:
        raise
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("function", P, ids=lambda f: f.__name__)
def test_as_in_eager(function):
    stator.reset()
    expected = [outcome(function, X + i) for i in range(2)]
    compiled = stator.compile(function, fullgraph="break" not in function.__name__, backend="eager")
    assert [outcome(compiled, X + i) for i in range(2)] == expected


def test_what_is_abstract_by_the_truth_of_an_object():
    def program(x):
        class A:
            def f(self):
                pass

            f.__isabstractmethod__ = [1]
            g = property(f)

        return x + 1, A.g.__isabstractmethod__

    stator.reset()
    assert show(stator.compile(program, backend="eager")(X)) == show(program(X))
