"""What programs read of containers, and how it changes between calls. Loaded anew for each run."""

from __future__ import annotations

import collections
import types

import torch
from readers import collecting

READERS = {}
reads = collecting(READERS)


@reads
def read_dict_entry():
    d = {"a": 2, "b": {"c": 3}}

    def fn(x):
        return x * d["a"] + d["b"]["c"]

    def m():
        d["a"] = 3

    def m2():
        d["b"]["c"] = 7

    def m3():
        d["b"] = {"c": 1}

    def m4():
        del d["a"]

    return (fn, [m, m2, m3, m4])


@reads
def read_dict_get_missing():
    d = {"a": 2}

    def fn(x):
        return (x * d.get("z", 4), "z" in d)

    def m():
        d["z"] = 3

    return (fn, [m])


@reads
def read_list():
    held = [1, 2]

    def fn(x):
        return (x * held[0], len(held), sum(held), 5 in held, held == [1, 2], bool(held))

    def m():
        held[0] = 3

    def m2():
        held.append(5)

    def m3():
        held.clear()
        held.append(1)

    return (fn, [m, m2, m3])


@reads
def read_set():
    held = {1, 2}

    def fn(x):
        return (x * len(held), 5 in held, held == {1, 2}, bool(held), sum(held), held | {9})

    def m():
        held.add(5)

    def m2():
        held.remove(1)

    return (fn, [m, m2])


@reads
def read_deque():
    held = collections.deque([1, 2])

    def fn(x):
        return (x * len(held), 5 in held, held[0], sum(held))

    def m():
        held.append(5)

    def m2():
        held.popleft()

    def m3():
        held.rotate(1)

    return (fn, [m, m2, m3])


@reads
def read_default_dict():
    d = collections.defaultdict(lambda: 3)

    def fn(x):
        return (x * d["q"], len(d))

    def m():
        d["q"] = 5

    def m2():
        del d["q"]
        d.default_factory = lambda: 9

    def m3():
        del d["q"]
        d.default_factory = None

    return (fn, [m, m2, m3])


@reads
def read_chainmap():
    a, b = ({"x": 1}, {"y": 2})
    c = collections.ChainMap(a, b)

    def fn(x):
        return x * c["y"]

    def m():
        a["y"] = 5

    def m2():
        c.maps.insert(0, {"y": 7})

    return (fn, [m, m2])


@reads
def read_counter():
    c = collections.Counter("aab")

    def fn(x):
        return (x * c["a"], c["z"], c.most_common(1))

    def m():
        c["z"] += 5

    return (fn, [m])


@reads
def read_range_slice():
    o = types.SimpleNamespace(r=range(3), s=slice(0, 2))

    def fn(x):
        return ([x * i for i in o.r], x[o.s])

    def m():
        o.r = range(2)

    def m2():
        o.s = slice(1, 3)

    return (fn, [m, m2])


@reads
def read_size_device():
    o = types.SimpleNamespace(r=torch.Size([2, 2]), d=torch.float32, dev=torch.device("cpu"))

    def fn(x):
        return (x.reshape(o.r).to(o.d), o.dev.type)

    def m():
        o.r = torch.Size([4, 1])

    def m2():
        o.d = torch.float64

    def m3():
        o.dev = torch.device("meta")

    return (fn, [m, m2, m3])


@reads
def read_frozenset():
    o = types.SimpleNamespace(r=frozenset([1]))

    def fn(x):
        return x * 2 if 1 in o.r else x

    def m():
        o.r = frozenset([2])

    return (fn, [m])


@reads
def read_nested_tuple():
    o = types.SimpleNamespace(r=(1, [2, (3,)]))

    def fn(x):
        return x * o.r[1][1][0] + o.r[1][0]

    def m():
        o.r[1][0] = 5

    def m2():
        o.r[1][1] = (9,)

    return (fn, [m, m2])


@reads
def read_eq_of_containers():
    a = [1, {"k": (2, 3)}]
    o = types.SimpleNamespace(b=[1, {"k": (2, 3)}])

    def fn(x):
        return (x if a == o.b else x * 2, a[1] == {"k": (2, 3)})

    def m():
        o.b[1]["k"] = (2, 4)

    def m2():
        a[1]["k"] = (2, 4)

    return (fn, [m, m2])


@reads
def read_dict_iter():
    d = {"a": 2, "b": 3}

    def fn(x):
        return ([x * v for v in d.values()], list(d), len(d), next(iter(d.items())))

    def m():
        d["c"] = 3

    def m2():
        d.pop("a")
        d["a"] = 2

    def m3():
        d.clear()

    return (fn, [m, m2, m3])


@reads
def read_namedtuple():
    P = collections.namedtuple("P", "a b")
    o = types.SimpleNamespace(r=P(1, 2))

    def fn(x):
        return x * o.r.a

    def m():
        o.r = P(5, 2)

    def m2():
        P.a = property(lambda s: 77)

    def m3():
        o.r = (5, 2)

    return (fn, [m, m2, m3])


@reads
def read_eq_key():

    class K:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __hash__(s):
            return hash(s.v)

    d = {K(1): 5}

    def fn(x):
        return x * d.get(K(1), 0)

    def m():
        d[K(1)] = 7

    def m2():
        next(iter(d)).v = 3

    return (fn, [m, m2])


@reads
def read_type_ignored():

    class K(dict):
        def __missing__(self, k):
            return 4

    d = K(a=1)

    def fn(x):
        return x * d["q"]

    def m():
        K.__missing__ = lambda s, k: 9

    def m2():
        K.__getitem__ = lambda s, k: 11

    return (fn, [m, m2])


@reads
def read_list_subclass():

    class K(list):
        pass

    d = K([1, 2])

    def fn(x):
        return (x * d[0], len(d), list(d))

    def m():
        K.__getitem__ = lambda s, k: 9

    def m2():
        K.__len__ = lambda s: 11

    def m3():
        K.__iter__ = lambda s: iter([5])

    return (fn, [m, m2, m3])


@reads
def read_dict_subclass_attr():

    class D(dict):
        pass

    d = D(a=1)
    d.v = 2

    def fn(x):
        return x * d["a"] + d.v + len(d)

    def m():
        d.v = 3

    def m2():
        d["a"] = 5

    def m3():
        D.__len__ = lambda s: 70

    def m4():
        D.v = property(lambda s: 9)

    return (fn, [m, m2, m3, m4])


@reads
def read_length_limit_of_a_deque():
    holder = types.SimpleNamespace(held=collections.deque([1, 2], maxlen=2))

    def fn(x):
        holder.held.append(3)
        return x * holder.held[0], holder.held.maxlen, len(holder.held)

    def grown():
        holder.held = collections.deque([1, 2], maxlen=5)

    def unlimited():
        holder.held = collections.deque([1, 2])

    return fn, [grown, unlimited]
