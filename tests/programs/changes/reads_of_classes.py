"""Programs that read classes, which change between calls. Loaded anew for each run."""

from __future__ import annotations

import abc
import types

from tests.programs.changes.changeable import changeable

C0, fresh = changeable()


def read_class_attr():
    C = fresh(v=2)
    o = C()
    yield lambda x: x * o.v
    C.v = 3
    yield
    o.v = 5
    yield
    del o.v
    yield
    del C.v
    yield
    C.v = property(lambda s: 8)


def read_class_attr_base():
    B = fresh(v=2)
    C = fresh(B)
    o = C()
    yield lambda x: x * o.v
    B.v = 3
    yield
    C.v = 9
    yield
    C.__getattribute__ = lambda s, n: 11


def read_class_attr_direct():
    C = fresh(v=2)
    yield lambda x: x * C.v
    C.v = 3
    yield
    del C.v


def read_class_static():
    C = fresh()
    o = C()
    yield lambda x: o.s(x) + C.c(x)
    C.s = staticmethod(lambda x: x * 5)
    yield
    C.v = 8
    yield
    C.c = classmethod(lambda c, x: x)


def read_metaclass_attr():
    class Me(type):
        v2 = 2

    class C(metaclass=Me):
        pass

    yield lambda x: x * C.v2
    Me.v2 = 3
    yield
    C.v2 = 4
    yield
    Me.v2 = property(lambda c: 6)


def read_metaclass_call():
    class Me(type):
        pass

    class C(metaclass=Me):
        def __init__(self):
            self.v = 2

    yield lambda x: x * C().v
    Me.__call__ = lambda c: types.SimpleNamespace(v=8)
    yield
    C.__init__ = lambda s: setattr(s, "v", 3)
    del Me.__call__
    yield
    C.__new__ = lambda c: types.SimpleNamespace(v=9)


def read_metaclass_getattr():
    class Me(type):
        pass

    class C(metaclass=Me):
        pass

    yield lambda x: x * getattr(C, "zz", 2)
    Me.__getattr__ = lambda c, n: 8


def read_instancecheck():
    class Me(type):
        pass

    class C(metaclass=Me):
        pass

    o = C0()
    yield lambda x: x * 2 if isinstance(o, C) else x
    Me.__instancecheck__ = lambda c, o: True


def read_mro():
    class A:
        v = 1

        def f(self):
            return 1

    class B:
        v = 2

        def f(self):
            return 2

    class D(A):
        def f(self):
            return super().f()

    o = D()
    yield lambda x: (x * o.v + o.f(), isinstance(o, B), issubclass(D, A))
    D.__bases__ = (B,)


def read_class_assign():
    class A:
        v = 2

    class B:
        v = 3

    o = A()
    yield lambda x: (x * o.v, type(o).__name__, isinstance(o, A))
    o.__class__ = B


def read_name_of_class():
    C = fresh()
    yield lambda x: (x, C.__name__, C.__module__, C.__doc__, C.__qualname__, C().__class__.__name__)
    C.__name__ = "N"
    yield
    C.__module__ = "N"
    yield
    C.__doc__ = "N"
    yield
    C.__qualname__ = "a.N"


def read_abc_register():
    class A(abc.ABC):  # noqa: B024
        pass

    o = C0()
    yield lambda x: x * 2 if isinstance(o, A) else x
    A.register(C0)


def read_abc_mapping():
    import collections.abc as ca

    class K:
        def __len__(self):
            return 1

    o = K()
    yield lambda x: (x * 2 if isinstance(o, ca.Iterable) else x, isinstance(o, ca.Sized), isinstance(o, ca.Mapping))
    K.__iter__ = lambda s: iter([])
    yield
    ca.Mapping.register(K)


def read_init_subclass():
    class A:
        n = 2

        def __init_subclass__(cls, k=3):
            cls.k = k

    def fn(x):

        class B(A, k=5):
            pass

        return x * B.k

    yield fn
    A.__init_subclass__ = classmethod(lambda cls, k: setattr(cls, "k", 9))


def read_class_getitem():
    class A:
        def __class_getitem__(cls, k):
            return k

    yield lambda x: x * A[3]
    A.__class_getitem__ = classmethod(lambda c, k: 8)


def read_super_inserted():
    class A:
        def f(self):
            return 1

    class B(A):
        pass

    class C(B):
        def f(self):
            return super().f()

    o = C()
    yield lambda x: x * o.f()
    B.f = lambda s: 7
    yield
    del B.f
    yield
    C.__bases__ = (A,)
    A.f = lambda s: 9


def read_super_class():
    class A:
        @classmethod
        def f(cls):
            return 1

        v = 3

    class B(A):
        pass

    class C(B):
        v = 8

        @classmethod
        def f(cls):
            return super().f() + super().v

    yield lambda x: x * C.f()
    B.f = classmethod(lambda s: 7)
    yield
    B.v = 5


def read_subclasscheck():
    class Me(type):
        pass

    class A(metaclass=Me):
        pass

    yield lambda x: x if issubclass(int, A) else x * 2
    Me.__subclasscheck__ = lambda c, s: True


def read_abc_hook():
    import abc

    class A(abc.ABC):  # noqa: B024
        pass

    yield lambda x: (x if isinstance(3, A) else x * 2, isinstance([], A))
    A.__subclasshook__ = classmethod(lambda c, s: True)
    abc._reset_caches(A) if hasattr(abc, "_reset_caches") else None
