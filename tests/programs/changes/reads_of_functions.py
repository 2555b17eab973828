"""Programs that read functions, which change between calls. Loaded anew for each run."""

from __future__ import annotations

import functools
import inspect
import types

import torch
from tests.programs.changes.changeable import changeable

C0, _ = changeable()


def read_defaults():
    def h(x, k=2):
        return x * k

    yield lambda x: h(x)
    h.__defaults__ = (5,)
    yield
    h.__defaults__ = None


def read_own_defaults():
    def fn(x, k=2):
        return x * k

    yield fn
    fn.__defaults__ = (5,)


def read_kwdefaults():
    def h(x, *, k=2):
        return x * k

    yield lambda x: h(x)
    h.__kwdefaults__ = {"k": 5}
    yield
    h.__kwdefaults__["k"] = 6
    yield
    h.__kwdefaults__ = None


def read_own_kwdefaults():
    def fn(x, *, k=2):
        return x * k

    yield fn
    fn.__kwdefaults__["k"] = 6


def read_code():
    def h(x):
        return x * 2

    def h2(x):
        return x * 3

    yield lambda x: h(x)
    h.__code__ = h2.__code__


def read_own_code():
    def h2(x):
        return x * 3

    def fn(x):
        return x * 2

    yield fn
    fn.__code__ = h2.__code__


def read_partial():
    def h(x, a, b=1):
        return x * a + b

    o = types.SimpleNamespace(p=functools.partial(h, a=2))
    yield lambda x: o.p(x)
    o.p = functools.partial(h, a=5)
    yield
    o.p.keywords["a"] = 7
    yield
    o.p.keywords["b"] = 7
    yield
    o.p.__setstate__((h, (), {"a": 9}, {}))


def read_partial_closure():
    def h(x, a):
        return x * a[0]

    held = [3]
    p = functools.partial(h, a=held)
    yield lambda x: p(x)
    held[0] = 8
    yield
    p.__setstate__((lambda x, a: x, (), {"a": held}, {}))


def read_bound_self():
    class A:
        def __init__(s, v):
            s.v = v

        def f(s, x):
            return x * s.v

    o = types.SimpleNamespace(f=A(2).f)
    yield lambda x: o.f(x)
    o.f = A(3).f
    yield
    o.f.__self__.v = 8


def read_wrapped():
    def deco(f):

        @functools.wraps(f)
        def w(*a):
            return f(*a) * w.k

        w.k = 2
        return w

    @deco
    def h(x):
        return x + 1

    yield lambda x: h(x)
    h.k = 5
    yield
    del h.k


def read_func_attr():
    def h(x):
        return x

    h.k = 2
    yield lambda x: (x * h.k, getattr(h, "z", 4), h.__name__)
    h.k = 3
    yield
    h.z = 3
    yield
    h.__name__ = "other"
    yield
    h.__doc__ = "other"


def read_singledispatch():
    @functools.singledispatch
    def h(v):
        return 1

    yield lambda x: x * h(3)
    h.register(int, lambda v: 5)


def read_lru():
    k = [1]

    @functools.lru_cache
    def h(v):
        return v * k[0]

    yield lambda x: x * h(3)
    k[0] = 2
    yield
    h.cache_clear()


def read_map_zip_global():
    it = (v * 2 for v in [1, 2, 3, 4, 5])
    z = zip([1, 2, 3, 4], [4, 3, 2, 1], strict=False)
    e = enumerate("abcdef")
    r = reversed([1, 2, 3, 4])
    yield lambda x: (x * next(it, 0), next(z, 0), next(e, 0), next(r, 0))
    next(z)


def read_function_globals_fn():
    def h(x):
        return x * 2

    ns = types.SimpleNamespace(h=h)
    yield lambda x: ns.h(x)
    ns.h = functools.partial(h)
    yield
    ns.h = staticmethod(lambda x: x * 7)
    yield
    ns.h = torch.sin
    yield
    ns.h = C0().f


def read_lambda_closure():
    def mk(k):
        return lambda x: x * k

    o = types.SimpleNamespace(f=mk(2))
    yield lambda x: o.f(x)
    o.f = mk(3)
    yield
    o.f = mk(torch.tensor(2.0))


def read_defaults_mutable():
    held = [2]

    def h(x, a=held):
        return x * a[0] + len(a)

    yield lambda x: h(x)
    held[0] = 3
    yield
    held.append(1)
    yield
    h.__defaults__ = ([7],)


def read_annotations():
    def h(a: int): ...

    class K:
        a: int

    yield lambda x: (x, h.__annotations__, K.__annotations__)
    h.__annotations__["b"] = 3
    yield
    K.__annotations__["b"] = 3
    yield
    h.__annotations__ = {}


def read_signature():
    def h(a): ...

    yield lambda x: x * len(inspect.signature(h).parameters)
    h.__code__ = (lambda a, b: 0).__code__
    yield
    h.__signature__ = inspect.signature(lambda: 0)
    yield
    del h.__signature__
    h.__wrapped__ = lambda a, b, c: 0


def read_signature_defaults():
    def h(a, b=1): ...

    class K:
        def __init__(self, a): ...

        def __call__(self, a, b): ...

    k = K(1)

    def fn(x):
        return (
            x * inspect.signature(h).parameters["b"].default,
            len(inspect.signature(K).parameters),
            len(inspect.signature(k).parameters),
            len(inspect.signature(k.__call__).parameters),
        )

    yield fn
    h.__defaults__ = (7,)
    yield
    K.__init__ = lambda s: None
    yield
    K.__call__ = lambda s: None


def read_callable_object():
    class K:
        def __call__(self, x):
            return x * 2

    o = types.SimpleNamespace(r=K())
    yield lambda x: o.r(x)
    K.__call__ = lambda s, x: x * 3
    yield
    o.r.__call__ = lambda x: x * 4
    yield
    o.r = lambda x: x * 4
