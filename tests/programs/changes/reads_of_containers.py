"""Programs that read containers, which change between calls. Loaded anew for each run."""

from __future__ import annotations

import collections
import types

import torch


def read_dict_entry():
    d = {"a": 2, "b": {"c": 3}}
    yield lambda x: x * d["a"] + d["b"]["c"]
    d["a"] = 3
    yield
    d["b"]["c"] = 7
    yield
    d["b"] = {"c": 1}
    yield
    del d["a"]


def read_dict_get_missing():
    d = {"a": 2}
    yield lambda x: (x * d.get("z", 4), "z" in d)
    d["z"] = 3


def read_list():
    held = [1, 2]
    yield lambda x: (x * held[0], len(held), sum(held), 5 in held, held == [1, 2], bool(held))
    held[0] = 3
    yield
    held.append(5)
    yield
    held.clear()
    held.append(1)


def read_set():
    held = {1, 2}
    yield lambda x: (x * len(held), 5 in held, held == {1, 2}, bool(held), sum(held), held | {9})
    held.add(5)
    yield
    held.remove(1)


def read_deque():
    held = collections.deque([1, 2])
    yield lambda x: (x * len(held), 5 in held, held[0], sum(held))
    held.append(5)
    yield
    held.popleft()
    yield
    held.rotate(1)


def read_mapping_proxy():
    held = {"a": 2, "b": 1}
    shown = types.MappingProxyType(held)
    yield lambda x: (x * shown["a"], len(shown), "z" in shown, shown.get("z", 4), list(shown), dict(shown))
    held["a"] = 3
    yield
    held["z"] = 5
    yield
    del held["b"]
    yield
    shown = types.MappingProxyType({"a": 7})
    yield
    shown = types.MappingProxyType(collections.ChainMap({"a": 1}))


def read_default_dict():
    d = collections.defaultdict(lambda: 3)
    yield lambda x: (x * d["q"], len(d))
    d["q"] = 5
    yield
    del d["q"]
    d.default_factory = lambda: 9
    yield
    del d["q"]
    d.default_factory = None


def read_chainmap():
    a, b = ({"x": 1}, {"y": 2})
    c = collections.ChainMap(a, b)
    yield lambda x: x * c["y"]
    a["y"] = 5
    yield
    c.maps.insert(0, {"y": 7})


def read_counter():
    c = collections.Counter("aab")
    yield lambda x: (x * c["a"], c["z"], c.most_common(1))
    c["z"] += 5


def read_range_slice():
    o = types.SimpleNamespace(r=range(3), s=slice(0, 2))
    yield lambda x: ([x * i for i in o.r], x[o.s])
    o.r = range(2)
    yield
    o.s = slice(1, 3)


def read_size_device():
    o = types.SimpleNamespace(r=torch.Size([2, 2]), d=torch.float32, dev=torch.device("cpu"))
    yield lambda x: (x.reshape(o.r).to(o.d), o.dev.type)
    o.r = torch.Size([4, 1])
    yield
    o.d = torch.float64
    yield
    o.dev = torch.device("meta")


def read_frozenset():
    o = types.SimpleNamespace(r=frozenset([1]))
    yield lambda x: x * 2 if 1 in o.r else x
    o.r = frozenset([2])


def read_nested_tuple():
    o = types.SimpleNamespace(r=(1, [2, (3,)]))
    yield lambda x: x * o.r[1][1][0] + o.r[1][0]
    o.r[1][0] = 5
    yield
    o.r[1][1] = (9,)


def read_eq_of_containers():
    a = [1, {"k": (2, 3)}]
    o = types.SimpleNamespace(b=[1, {"k": (2, 3)}])
    yield lambda x: (x if a == o.b else x * 2, a[1] == {"k": (2, 3)})
    o.b[1]["k"] = (2, 4)
    yield
    a[1]["k"] = (2, 4)


def read_dict_iter():
    d = {"a": 2, "b": 3}
    yield lambda x: ([x * v for v in d.values()], list(d), len(d), next(iter(d.items())))
    d["c"] = 3
    yield
    d.pop("a")
    d["a"] = 2
    yield
    d.clear()


def read_namedtuple():
    P = collections.namedtuple("P", "a b")
    o = types.SimpleNamespace(r=P(1, 2))
    yield lambda x: x * o.r.a
    o.r = P(5, 2)
    yield
    P.a = property(lambda s: 77)
    yield
    o.r = (5, 2)


def read_eq_key():
    class K:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __hash__(s):
            return hash(s.v)

    d = {K(1): 5}
    yield lambda x: x * d.get(K(1), 0)
    d[K(1)] = 7
    yield
    next(iter(d)).v = 3


def read_type_ignored():
    class K(dict):
        def __missing__(self, k):
            return 4

    d = K(a=1)
    yield lambda x: x * d["q"]
    K.__missing__ = lambda s, k: 9
    yield
    K.__getitem__ = lambda s, k: 11


def read_list_subclass():
    class K(list):
        pass

    d = K([1, 2])
    yield lambda x: (x * d[0], len(d), list(d))
    K.__getitem__ = lambda s, k: 9
    yield
    K.__len__ = lambda s: 11
    yield
    K.__iter__ = lambda s: iter([5])


def read_dict_subclass_attr():
    class D(dict):
        pass

    d = D(a=1)
    d.v = 2
    yield lambda x: x * d["a"] + d.v + len(d)
    d.v = 3
    yield
    d["a"] = 5
    yield
    D.__len__ = lambda s: 70
    yield
    D.v = property(lambda s: 9)


def read_length_limit_of_a_deque():
    holder = types.SimpleNamespace(held=collections.deque([1, 2], maxlen=2))

    def fn(x):
        holder.held.append(3)
        return x * holder.held[0], holder.held.maxlen, len(holder.held)

    yield fn
    holder.held = collections.deque([1, 2], maxlen=5)
    yield
    holder.held = collections.deque([1, 2])


def read_dict_truth():
    d = {}
    items = []
    s = set()
    yield lambda t: (t * 2 if d else t) + (10 if items else 0) + (100 if s else 0)
    d[1] = 2
    yield
    items.append(0)
    yield
    s.add(1)


def read_nested_dict_obj_key():
    K = type("K", (), {})
    k1, k2 = K(), K()
    d = {k1: 1, k2: 2}

    def g(t):
        for _k, v in d.items():
            t = t * 2 + v
        return t

    yield g
    d[k1] = 7
    yield
    del d[k1]
    d[k1] = 7


def read_userdict():
    d = collections.UserDict(k=2)
    yield lambda t: t * d["k"]
    d["k"] = 9


def read_ordereddict():
    d = collections.OrderedDict(a=1, b=2)

    def g(t):
        for _k, v in d.items():
            t = t * 2 + v
        return t

    yield g
    d.move_to_end("a")
