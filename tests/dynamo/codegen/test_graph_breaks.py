"""Programs whose graphs end early: what runs natively in between, and that the rest goes on right."""

# ruff: noqa: B904, SIM105, E741, B905
from __future__ import annotations

import types

import pytest
import torch
from tests.differential import check, corpus
from torch import nn

import stator

PROGRAMS, program = corpus()


def x3():
    return torch.arange(6.0).reshape(2, 3)


def show(*a):
    print(*a)


LOG = []


def inner(x):
    y = x * 3
    print("inner", y.sum())
    return y - 1


@program(x3)
def break_in_with(x):
    with torch.no_grad():
        x = x + 1
        print("w")
        x = x * 2
    return x, torch.is_grad_enabled()


@program(x3)
def break_in_try(x):
    try:
        x = x + 1
        print("t")
        x = x * 2
        raise ValueError("q")
    except ValueError:
        x = x - 5
    finally:
        x = x + 100
    return x


@program(x3, lambda: [1])
def break_with_state(x, l):
    l.append(x)
    d = {"l": l, "z": [l]}
    o = types.SimpleNamespace(v=x)
    print(len(l))
    l.append(2)
    d["z"].append(3)
    o.v = o.v + 1
    return d, o.v, l


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
        self.n = 0

    def forward(self, x):
        x = self.l(x)
        self.n += 1
        print("M", self.n)
        return self.l(x).relu()


@program(x3)
def raises_(x):
    try:
        y = x + 1
        if y.sum() > 0:
            raise KeyError("data")
    except KeyError:
        return y * 2


@program(x3)
def attr_tensor(x):
    s = x.tolist()
    return x + s[0][1]


@program(x3)
def and_or(x):
    return (x.sum() > 3 and x * 2), (x.sum() > 100 or x * 3), not x.any()


@program(x3)
def break_zip(x):
    out = []
    for a, (b, c) in zip([1, 2, 3], enumerate("abc")):
        out.append(x * a + b)
        print(c)
    return out


@program(x3)
def gen_break(x):
    def g():
        for i in range(3):
            yield x + i

    t = 0
    for y in g():
        print("g")
        t = t + y
    return t


@program(x3)
def stateful_iter(x):
    it = iter([1, 2, 3])
    next(it)
    print("x")
    return x + next(it)


@program(x3)
def dict_iter(x):
    d = {"a": x, "b": x + 1}
    t = 0
    for k, v in d.items():
        print(k)
        t = t + v
    return t


@program(x3)
def del_local(x):
    y = x + 1
    z = y * 2
    del y
    print("d")
    return z + x


class Counter:
    def __init__(self):
        self.v = 1
        self.l = [1]


def make_counter():
    return Counter()


@program(x3, make_counter)
def load_before_effect(x, o):
    old = o.v
    l = o.l
    o.v = 100
    o.l = [5]
    print("lb")
    return old, l, o.v, o.l, x + old


@program(x3, make_counter)
def return_before_effect(x, o):
    old = o.v
    o.v = old and 7
    y = x + 1
    return old, y, o.l


@program(x3)
def bare_raise(x):
    def f():
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b")

    try:
        try:
            raise TypeError("t")
        except TypeError:
            try:
                f()
            except ValueError:
                pass
            raise
    except TypeError as e:
        return x, str(e)


@pytest.mark.parametrize("program", PROGRAMS)
def test_same_as_eager_with_breaks(program):
    check(program)


def test_a_break_where_a_block_of_except_ends_has_a_line_of_it():
    def items(x):
        yield x

    def throws(x):
        generator = items(x + 1)
        next(generator)
        try:
            return generator.throw(ValueError("thrown"))
        except TypeError:  # another one: it leaves the frame behind this line
            return x

    with pytest.raises(stator.Unsupported) as error:
        stator.compile(throws, backend="eager", fullgraph=True)(torch.ones(2))
    assert error.value.place.line == throws.__code__.co_firstlineno + 5
