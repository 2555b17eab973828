"""Programs over built-in containers, iterators, numbers, text and tensors, captured whole."""

# ruff: noqa: RUF059, C409, C410, E741, F841, B905, C416, C405, RUF005
from __future__ import annotations

import collections
import copy
import enum
import functools
import itertools
import math
import operator
import types
import typing

import torch
import torch.nn.functional as F

T = torch.ones(3) * 2


class Shade(enum.Enum):
    LIGHT = 1
    DARK = 2
    BLACK = 2


_SHOWN = types.MappingProxyType({"scale": 2.0, "shift": 1})


def read_only_mappings(x):
    entries = {"a": x}
    shown = types.MappingProxyType(entries)
    entries["b"] = x * _SHOWN["scale"]
    members = Shade.__members__
    return (
        shown["b"] + _SHOWN.get("shift"),
        (list(shown), len(shown), "c" in shown, bool(types.MappingProxyType({}))),
        (isinstance(shown, dict), isinstance(shown, collections.abc.Mapping), type(shown).__name__),
        ({**shown, **_SHOWN}, dict(shown), shown.copy(), list(_SHOWN.items())),
        ([x * member.value for member in members.values()], list(members), "BLACK" in members, len(members)),
        members["BLACK"] is Shade.DARK,
        dict(types.MappingProxyType(entries)),
    )


def list_ops(x):
    a = [x, x + 1]
    a.append(x * 2)
    a.insert(0, x - 1)
    b = a.pop()
    a.reverse()
    a += [b]
    a.extend((x,))
    return a[1:], len(a), a[-1], a * 2, [*a, 1]


def dict_ops(x):
    d = {"a": x, "b": x + 1}
    d["c"] = d.pop("a")
    d.update(z=x * 3)
    d.setdefault("q", []).append(x)
    return (
        {k: v for k, v in d.items()},
        list(d),
        "b" in d,
        d.get("nope", 4),
        {**d, "n": 1},
        sum(v.sum() for k, v in d.items() if k != "q"),
    )


def set_ops(x):
    s = {1, 2, 3} | {4}
    s.discard(2)
    t = frozenset([1, 5])
    return x + len(s & t) + len(s - t), sorted(s | t), 1 in s


NT = collections.namedtuple("NT", "a b")


class NT2(typing.NamedTuple):
    p: torch.Tensor
    q: int = 4


def namedtuples(x):
    n = NT(x, 2)
    m = n._replace(b=x)
    o = NT2(x)
    return n, m.b, o.q, n._asdict(), n == NT(x, 2) if False else 0, o


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class IE(enum.IntEnum):
    A = 1
    B = 2


def enums(x):
    return (
        x + IE.B,
        Color.RED,
        Color("b").name,
        Color["RED"].value,
        IE.A == 1,
        [c.name for c in Color],
        Color.RED is Color.RED,
    )


def builtins_(x):
    return (
        max(1, 2, 3),
        min([4, 5]),
        max([1, 3], key=lambda v: -v),
        sum([1, 2], 3),
        any([0, 1]),
        all([]),
        abs(-3),
        round(2.567, 1),
        divmod(7, 3),
        pow(2, 5),
        list(zip([1, 2], [x, x])),
        list(enumerate("ab", 1)),
        list(map(lambda a, b: a + b, [1, 2], [3, 4])),
        list(filter(None, [0, 1])),
        list(reversed([1, 2])),
        sorted([3, 1], reverse=True),
        sorted("ba"),
        int("3"),
        float(2),
        str(4),
        bool([]),
        tuple([1]),
        list((1,)),
        dict(a=1),
        set([1]),
        type(x) is torch.Tensor,
        callable(len),
        isinstance(x, torch.Tensor),
        len(x),
        chr(65),
        hash(3),
        range(5)[2],
        list(range(3, 0, -1)),
    )


def iters(x):
    it = iter([1, 2, 3])
    a = next(it)
    b = list(it)
    return (
        x,
        a,
        b,
        next(iter([]), "d"),
        list(itertools.chain([1], [2])),
        list(itertools.product([1, 2], "ab")),
        list(itertools.accumulate([1, 2, 3])),
        list(itertools.islice(itertools.count(), 3)),
        list(itertools.repeat(1, 2)),
        list(itertools.zip_longest([1], [2, 3])),
        list(itertools.combinations([1, 2, 3], 2)),
        list(itertools.pairwise([1, 2, 3])),
        [(k, list(g)) for k, g in itertools.groupby("aab")],
    )


def functools_(x):
    p = functools.partial(lambda a, b, c=1: a * b + c, x, c=3)

    @functools.wraps(list_ops)
    def w(*a):
        return 1

    return (
        p(2),
        functools.reduce(lambda a, b: a + b, [1, 2, 3]),
        functools.reduce(operator.mul, [x, 2], 3),
        w.__name__,
    )


def math_(x):
    return (
        x * math.sqrt(4) + math.pi,
        math.prod(x.shape),
        math.ceil(2.2),
        math.isclose(1, 1),
        math.inf > 3,
        math.log2(8),
    )


def inplace(x):
    y = x.clone()
    y.add_(1)
    y[0] = 5
    y[:, 1] *= 2
    y += 1
    z = torch.zeros(2, 3)
    torch.add(x, 1, out=z)
    return y, z, y.add_(1) is y


def tensors(x):
    b, s = x.shape
    a, c = x.unbind()
    v, i = x.max(dim=1)
    h = x.split(1, dim=1)
    m = torch.stack([x, x]).mean(0)
    k = x.topk(2)
    return (
        x.size(0) * x.size()[1],
        x.T,
        x.view(-1)[None, ..., ::2],
        v,
        i,
        h,
        m,
        k.values,
        x.dtype,
        x.device,
        x.shape,
        x.numel(),
        x.dim(),
        torch.cat([x, x], dim=-1),
        x[x > 2] if False else 0,
        torch.where(x > 2, x, 0),
        F.softmax(x, -1),
        x.is_contiguous(),
        x.stride(),
        -x,
        ~(x > 1),
        1 - x,
        2**x,
        x @ x.T,
        x.float().to(torch.float64),
        x.type(torch.int32),
        torch.finfo(x.dtype).max,
        x.new_zeros(2),
        torch.zeros_like(x),
        x.to("cpu"),
        [r for r in x],
        torch.einsum("ij,kj->ik", x, x),
        x.masked_fill(x > 1, 0.0),
        x.expand(2, 2, 3),
        torch.arange(3, device=x.device),
        x is x,
        x is not None,
        torch.tensor([1, 2]),
        torch.tensor(3.5),
    )


def globals_tensor(x):
    return x + T


def local_class_use(x):
    od = collections.OrderedDict(a=1)
    od["b"] = x
    dd = collections.defaultdict(list)
    dd["k"].append(x)
    c = collections.Counter("aab") if False else None
    return od, dict(dd), od.popitem(last=False)


def copy_(x):
    l = [[1], x]
    m = copy.copy(l)
    n = copy.deepcopy([[1]])
    n[0].append(2)
    return m, n


def same_tensor(x):
    def f(a, b):
        return (a is b, a + b)

    return f(x, x)


def torch_size(x):
    s = x.shape + (4,)
    t = torch.Size([1, 2])
    return (
        s,
        t.numel(),
        x.shape[:-1],
        tuple(x.shape),
        x.shape == (2, 3),
        isinstance(x.shape, tuple),
        type(x.shape[:1]),
        s[1:],
    )


def list_methods_(x):
    l = [3, 1, 2]
    l.sort()
    l.remove(3)
    m = l.copy()
    m.clear()
    return l, l.index(2), l.count(1), m, l == [1, 2], [1, 2] < [1, 3], (1, 2) + (3,), l != [1], 2 in l, x in [x]


def dict_views(x):
    d = {"a": 1, "b": 2}
    return (
        x,
        sorted(d.keys() | {"c"}),
        "a" in d,
        list(d.values()),
        dict(d.items()),
        len(d.items()),
        d == {"a": 1, "b": 2},
        d | {"z": 1},
        list(reversed(d)),
    )


def slices(x):
    s = slice(0, 1)
    return (
        x[s],
        x[..., 0],
        x[:, [0, 2]],
        x[torch.tensor([0])],
        x[None],
        x[0, 1],
        x[-1:],
        [1, 2, 3][::-1],
        x[(slice(None), 1)],
    )
