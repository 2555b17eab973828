"""What programs read of classes, and how it changes between calls. Loaded anew for each run."""

from __future__ import annotations

import abc
import types

from readers import changeable, collecting

READERS = {}
reads = collecting(READERS)
C0, fresh = changeable()


@reads
def read_class_attr():
    C = fresh(v=2)
    o = C()

    def fn(x):
        return x * o.v

    def m():
        C.v = 3

    def m2():
        o.v = 5

    def m3():
        del o.v

    def m4():
        del C.v

    def m5():
        C.v = property(lambda s: 8)

    return (fn, [m, m2, m3, m4, m5])


@reads
def read_class_attr_base():
    B = fresh(v=2)
    C = fresh(B)
    o = C()

    def fn(x):
        return x * o.v

    def m():
        B.v = 3

    def m2():
        C.v = 9

    def m3():
        C.__getattribute__ = lambda s, n: 11

    return (fn, [m, m2, m3])


@reads
def read_class_attr_direct():
    C = fresh(v=2)

    def fn(x):
        return x * C.v

    def m():
        C.v = 3

    def m2():
        del C.v

    return (fn, [m, m2])


@reads
def read_class_static():
    C = fresh()
    o = C()

    def fn(x):
        return o.s(x) + C.c(x)

    def m():
        C.s = staticmethod(lambda x: x * 5)

    def m2():
        C.v = 8

    def m3():
        C.c = classmethod(lambda c, x: x)

    return (fn, [m, m2, m3])


@reads
def read_metaclass_attr():

    class Me(type):
        v2 = 2

    class C(metaclass=Me):
        pass

    def fn(x):
        return x * C.v2

    def m():
        Me.v2 = 3

    def m2():
        C.v2 = 4

    def m3():
        Me.v2 = property(lambda c: 6)

    return (fn, [m, m2, m3])


@reads
def read_metaclass_call():

    class Me(type):
        pass

    class C(metaclass=Me):
        def __init__(self):
            self.v = 2

    def fn(x):
        return x * C().v

    def m():
        Me.__call__ = lambda c: types.SimpleNamespace(v=8)

    def m2():
        C.__init__ = lambda s: setattr(s, "v", 3)
        del Me.__call__

    def m3():
        C.__new__ = lambda c: types.SimpleNamespace(v=9)

    return (fn, [m, m2, m3])


@reads
def read_metaclass_getattr():

    class Me(type):
        pass

    class C(metaclass=Me):
        pass

    def fn(x):
        return x * getattr(C, "zz", 2)

    def m():
        Me.__getattr__ = lambda c, n: 8

    return (fn, [m])


@reads
def read_instancecheck():

    class Me(type):
        pass

    class C(metaclass=Me):
        pass

    o = C0()

    def fn(x):
        return x * 2 if isinstance(o, C) else x

    def m():
        Me.__instancecheck__ = lambda c, o: True

    return (fn, [m])


@reads
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

    def fn(x):
        return (x * o.v + o.f(), isinstance(o, B), issubclass(D, A))

    def m():
        D.__bases__ = (B,)

    return (fn, [m])


@reads
def read_class_assign():

    class A:
        v = 2

    class B:
        v = 3

    o = A()

    def fn(x):
        return (x * o.v, type(o).__name__, isinstance(o, A))

    def m():
        o.__class__ = B

    return (fn, [m])


@reads
def read_name_of_class():
    C = fresh()

    def fn(x):
        return (x, C.__name__, C.__module__, C.__doc__, C.__qualname__, C().__class__.__name__)

    def m():
        C.__name__ = "N"

    def m2():
        C.__module__ = "N"

    def m3():
        C.__doc__ = "N"

    def m4():
        C.__qualname__ = "a.N"

    return (fn, [m, m2, m3, m4])


@reads
def read_abc_register():

    class A(abc.ABC):  # noqa: B024
        pass

    o = C0()

    def fn(x):
        return x * 2 if isinstance(o, A) else x

    def m():
        A.register(C0)

    return (fn, [m])


@reads
def read_abc_mapping():
    import collections.abc as ca

    class K:
        def __len__(self):
            return 1

    o = K()

    def fn(x):
        return (x * 2 if isinstance(o, ca.Iterable) else x, isinstance(o, ca.Sized), isinstance(o, ca.Mapping))

    def m():
        K.__iter__ = lambda s: iter([])

    def m2():
        ca.Mapping.register(K)

    return (fn, [m, m2])


@reads
def read_super_attr():

    class A:
        def f(self, x):
            return x * 2

    class B(A):
        def f(self, x):
            return super().f(x)

    o = B()

    def fn(x):
        return o.f(x)

    def m():
        A.f = lambda s, x: x * 7

    def m2():
        del A.f

    return (fn, [m, m2])


@reads
def read_init_subclass():

    class A:
        n = 2

        def __init_subclass__(cls, k=3):
            cls.k = k

    def fn(x):

        class B(A, k=5):
            pass

        return x * B.k

    def m():
        A.__init_subclass__ = classmethod(lambda cls, k: setattr(cls, "k", 9))

    return (fn, [m])


@reads
def read_class_getitem():

    class A:
        def __class_getitem__(cls, k):
            return k

    def fn(x):
        return x * A[3]

    def m():
        A.__class_getitem__ = classmethod(lambda c, k: 8)

    return (fn, [m])


@reads
def read_metaclass_prop_of_instance():

    class Me(type):
        @property
        def k(cls):
            return cls._k

    class K(metaclass=Me):
        _k = 2

    def fn(x):
        return (x * K.k, type(K).__name__)

    def m():
        K._k = 5

    def m2():
        Me.k = property(lambda c: 9)

    return (fn, [m, m2])


@reads
def read_new_subclass_hook():

    class K:
        def __new__(cls, *a):
            return super().__new__(cls)

        def __init__(self, v):
            self.v = v

    def fn(x):
        return x * K(2).v

    def m():
        K.__new__ = lambda c, v: types.SimpleNamespace(v=8)

    return (fn, [m])


@reads
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

    def fn(x):
        return x * o.f()

    def m():
        B.f = lambda s: 7

    def m2():
        del B.f

    def m3():
        C.__bases__ = (A,)
        A.f = lambda s: 9

    return (fn, [m, m2, m3])


@reads
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

    def fn(x):
        return x * C.f()

    def m():
        B.f = classmethod(lambda s: 7)

    def m2():
        B.v = 5

    return (fn, [m, m2])


@reads
def read_isinstance_bases():

    class A:
        pass

    class B:
        pass

    o = B()

    def fn(x):
        return (x if isinstance(o, A) else x * 2, isinstance(o, (A, int)), issubclass(B, A))

    def m():
        B.__bases__ = (A,)

    return (fn, [lambda: None])


@reads
def read_subclasscheck():

    class Me(type):
        pass

    class A(metaclass=Me):
        pass

    def fn(x):
        return x if issubclass(int, A) else x * 2

    def m():
        Me.__subclasscheck__ = lambda c, s: True

    return (fn, [m])


@reads
def read_abc_hook():
    import abc

    class A(abc.ABC):  # noqa: B024
        pass

    def fn(x):
        return (x if isinstance(3, A) else x * 2, isinstance([], A))

    def m():
        A.__subclasshook__ = classmethod(lambda c, s: True)
        pass
        abc._reset_caches(A) if hasattr(abc, "_reset_caches") else None

    return (fn, [m])


@reads
def read_attr_on_class_obj_replaced():

    class A:
        pass

    o = types.SimpleNamespace(c=A)

    def fn(x):
        return (x * 2 if o.c is A else x, o.c().__class__.__name__)

    def m():
        o.c = type("Z", (), {})

    return (fn, [m])


@reads
def read_staticmethod_global():

    class A:
        @staticmethod
        def f(x):
            return x * 2

    def fn(x):
        return (A.f(x), A().f(x))

    def m():
        A.f = staticmethod(lambda x: x * 7)

    def m2():
        A.f = lambda *a: a[-1] * 8

    return (fn, [m, m2])
