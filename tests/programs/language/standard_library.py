"""Programs that use the standard library on their way to a result: one graph each, equal to eager."""

from __future__ import annotations

import bisect
import functools
import heapq
import sys
from collections import deque
from typing import Protocol, runtime_checkable

import torch

INPUT = torch.tensor([1.5, -2.25, 3.0, 0.5])


def bounded_index_of_a_deque(x):
    held = deque([1, 2, 3, 2, 1], maxlen=8)
    return x * held.index(2, 2) + held.index(1, 1, 5), held.index(3, -4)


def heaps(x):
    heap = [5, 1, 4, 9, 2, 2]
    heapq.heapify(heap)
    heapq.heappush(heap, 3)
    least = heapq.heappop(heap)
    pushed = heapq.heappushpop(heap, 0), heapq.heappushpop(heap, 7), heapq.heapreplace(heap, 8)
    return x * least, heap, pushed


def insertion(x):
    held = [1, 3, 5]
    bisect.insort(held, 4)
    bisect.insort_left(held, 3)
    bisect.insort(held, -6, key=abs)
    return x * held[2], held


@functools.total_ordering
class Version:
    def __init__(self, number, name=""):
        self.number, self.name = number, name

    def __eq__(self, other):
        return self.number == other.number

    def __lt__(self, other):
        return self.number < other.number

    __hash__ = None


def objects_in_order(x):
    held = [Version(number, str(at)) for at, number in enumerate((3, 1, 2, 3, 0, 1, 3))]
    upwards, downwards = sorted(held), sorted(held, reverse=True)
    held.sort(key=lambda one: Version(-one.number))
    names = ["".join(one.name for one in row) for row in (upwards, downwards, held)]
    return x * max(held).number, names, Version(1) <= Version(2), Version(3) >= Version(4)


def by_comparison(x):
    by_length = functools.cmp_to_key(lambda a, b: len(a) - len(b))
    return x, sorted(["ccc", "a", "bb", "d"], key=by_length), max(["a", "bbb", "ccc"], key=by_length)


class Scaled:
    def scaled(self, x, by, more=0):
        return x * by + more

    doubled = functools.partialmethod(scaled, by=2)


def partial_methods(x):
    return Scaled().doubled(x), Scaled().doubled(x, more=3)


@functools.singledispatch
def kind(value):
    return 1


@kind.register
def _(value: int):
    return 2


@kind.register(list)
def _(value):
    return 3


@kind.register(torch.Tensor)
def _(value):
    return value * 2


def dispatched_by_class(x):
    return x * kind(3) + kind([]) + kind("text"), kind(x), kind.dispatch(bool)(True)


@runtime_checkable
class Sized(Protocol):
    size: int

    def grow(self): ...


class Box:
    def __init__(self, size=None):
        if size is not None:
            self.size = size

    def grow(self): ...


def protocols(x):
    return x, isinstance(Box(3), Sized), isinstance(Box(), Sized), isinstance(3, Sized)


def sets_in_place(x):
    held, other = {1, 2, 3, 4}, {3, 4, 5}
    held.symmetric_difference_update([9, 1])
    held.difference_update([2], {77})
    held.intersection_update(other | {9})
    return x * len(held), held


def sequences_in_order(x):
    return x, sys.version_info >= (3, 8), sys.version_info[:2] < (3, 9), [x.shape[0], 1] < [4, 2], (1, "a") > (1, "b")


def twice(value):
    return value * 2


WRAPPED = functools.update_wrapper(functools.partial(twice), twice)


def attributes_of_partials(x):
    return WRAPPED(x), WRAPPED.__name__, hasattr(WRAPPED, "__wrapped__"), getattr(WRAPPED, "other", 5)
