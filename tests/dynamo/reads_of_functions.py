"""What programs read of functions, and how it changes between calls. Loaded anew for each run."""

from __future__ import annotations

import functools
import inspect
import types

import torch
from readers import changeable, collecting

READERS = {}
reads = collecting(READERS)
C0, _ = changeable()


@reads
def read_defaults():

    def h(x, k=2):
        return x * k

    def fn(x):
        return h(x)

    def m():
        h.__defaults__ = (5,)

    def m2():
        h.__defaults__ = None

    return (fn, [m, m2])


@reads
def read_own_defaults():

    def fn(x, k=2):
        return x * k

    def m():
        fn.__defaults__ = (5,)

    return (fn, [m])


@reads
def read_kwdefaults():

    def h(x, *, k=2):
        return x * k

    def fn(x):
        return h(x)

    def m():
        h.__kwdefaults__ = {"k": 5}

    def m2():
        h.__kwdefaults__["k"] = 6

    def m3():
        h.__kwdefaults__ = None

    return (fn, [m, m2, m3])


@reads
def read_own_kwdefaults():

    def fn(x, *, k=2):
        return x * k

    def m():
        fn.__kwdefaults__["k"] = 6

    return (fn, [m])


@reads
def read_code():

    def h(x):
        return x * 2

    def h2(x):
        return x * 3

    def fn(x):
        return h(x)

    def m():
        h.__code__ = h2.__code__

    return (fn, [m])


@reads
def read_own_code():

    def h2(x):
        return x * 3

    def fn(x):
        return x * 2

    def m():
        fn.__code__ = h2.__code__

    return (fn, [m])


@reads
def read_partial():

    def h(x, a, b=1):
        return x * a + b

    o = types.SimpleNamespace(p=functools.partial(h, a=2))

    def fn(x):
        return o.p(x)

    def m():
        o.p = functools.partial(h, a=5)

    def m2():
        o.p.keywords["a"] = 7

    def m3():
        o.p.keywords["b"] = 7

    def m4():
        o.p.__setstate__((h, (), {"a": 9}, {}))

    return (fn, [m, m2, m3, m4])


@reads
def read_partial_closure():

    def h(x, a):
        return x * a[0]

    held = [3]
    p = functools.partial(h, a=held)

    def fn(x):
        return p(x)

    def m():
        held[0] = 8

    def m2():
        p.__setstate__((lambda x, a: x, (), {"a": held}, {}))

    return (fn, [m, m2])


@reads
def read_bound_self():

    class A:
        def __init__(s, v):
            s.v = v

        def f(s, x):
            return x * s.v

    o = types.SimpleNamespace(f=A(2).f)

    def fn(x):
        return o.f(x)

    def m():
        o.f = A(3).f

    def m2():
        o.f.__self__.v = 8

    return (fn, [m, m2])


@reads
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

    def fn(x):
        return h(x)

    def m():
        h.k = 5

    def m2():
        del h.k

    return (fn, [m, m2])


@reads
def read_func_attr():

    def h(x):
        return x

    h.k = 2

    def fn(x):
        return (x * h.k, getattr(h, "z", 4), h.__name__)

    def m():
        h.k = 3

    def m2():
        h.z = 3

    def m3():
        h.__name__ = "other"

    def m4():
        h.__doc__ = "other"

    return (fn, [m, m2, m3, m4])


@reads
def read_doc_of_h():

    def h(a):
        """doc"""

    def fn(x):
        return (x, h.__doc__, h.__module__, h.__qualname__, h.__code__.co_argcount, h.__defaults__, h.__dict__)

    def m():
        h.__doc__ = "b"

    def m2():
        h.__qualname__ = "b"

    def m3():
        h.__defaults__ = (1,)

    def m4():
        h.q = 1

    return (fn, [m, m2, m3, m4])


@reads
def read_singledispatch():

    @functools.singledispatch
    def h(v):
        return 1

    def fn(x):
        return x * h(3)

    def m():
        h.register(int, lambda v: 5)

    return (fn, [m])


@reads
def read_lru():
    k = [1]

    @functools.lru_cache
    def h(v):
        return v * k[0]

    def fn(x):
        return x * h(3)

    def m():
        k[0] = 2

    def m2():
        h.cache_clear()

    return (fn, [m, m2])


@reads
def read_map_zip_global():
    it = (v * 2 for v in [1, 2, 3, 4, 5])
    z = zip([1, 2, 3, 4], [4, 3, 2, 1], strict=False)
    e = enumerate("abcdef")
    r = reversed([1, 2, 3, 4])

    def fn(x):
        return (x * next(it, 0), next(z, 0), next(e, 0), next(r, 0))

    return (fn, [lambda: next(z)])


@reads
def read_function_globals_fn():

    def h(x):
        return x * 2

    ns = types.SimpleNamespace(h=h)

    def fn(x):
        return ns.h(x)

    def m():
        ns.h = functools.partial(h)

    def m2():
        ns.h = staticmethod(lambda x: x * 7)

    def m3():
        ns.h = torch.sin

    def m4():
        ns.h = C0().f

    return (fn, [m, m2, m3, m4])


@reads
def read_lru_swapped():

    def mk(k):

        @functools.lru_cache
        def f(n):
            return n * k

        return f

    o = types.SimpleNamespace(f=mk(2))

    def fn(x):
        return x * o.f(3)

    def m():
        o.f = mk(5)

    return (fn, [m])


@reads
def read_partial_fn():

    def a(x):
        return x * 2

    def b(x):
        return x * 3

    o = types.SimpleNamespace(f=functools.partial(a))

    def fn(x):
        return o.f(x)

    def m():
        o.f = functools.partial(b)

    return (fn, [m])


@reads
def read_lambda_closure():

    def mk(k):
        return lambda x: x * k

    o = types.SimpleNamespace(f=mk(2))

    def fn(x):
        return o.f(x)

    def m():
        o.f = mk(3)

    def m2():
        o.f = mk(torch.tensor(2.0))

    return (fn, [m, m2])


@reads
def read_defaults_mutable():
    held = [2]

    def h(x, a=held):
        return x * a[0] + len(a)

    def fn(x):
        return h(x)

    def m():
        held[0] = 3

    def m2():
        held.append(1)

    def m3():
        h.__defaults__ = ([7],)

    return (fn, [m, m2, m3])


@reads
def read_annotations():

    def h(a: int): ...

    class K:
        a: int

    def fn(x):
        return (x, h.__annotations__, K.__annotations__)

    def m():
        h.__annotations__["b"] = 3

    def m2():
        K.__annotations__["b"] = 3

    def m3():
        h.__annotations__ = {}

    return (fn, [m, m2, m3])


@reads
def read_signature():

    def h(a): ...

    def fn(x):
        return x * len(inspect.signature(h).parameters)

    def m():
        h.__code__ = (lambda a, b: 0).__code__

    def m2():
        h.__signature__ = inspect.signature(lambda: 0)

    def m3():
        del h.__signature__
        h.__wrapped__ = lambda a, b, c: 0

    return (fn, [m, m2, m3])


@reads
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

    def m():
        h.__defaults__ = (7,)

    def m2():
        K.__init__ = lambda s: None

    def m3():
        K.__call__ = lambda s: None

    return (fn, [m, m2, m3])


@reads
def read_callable_object():

    class K:
        def __call__(self, x):
            return x * 2

    o = types.SimpleNamespace(r=K())

    def fn(x):
        return o.r(x)

    def m():
        K.__call__ = lambda s, x: x * 3

    def m2():
        o.r.__call__ = lambda x: x * 4

    def m3():
        o.r = lambda x: x * 4

    return (fn, [m, m2, m3])


@reads
def read_iter_global():
    it = iter([1, 2, 3, 4, 5, 6])

    def fn(x):
        return x * next(it, 0)

    return (fn, [lambda: next(it)])
