"""Functions of the standard library that are written in C, as expressions that capture takes whole."""

from __future__ import annotations

import collections
import functools
import heapq
import operator
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.dynamo.expressions import check_expression

import stator

GETTER = operator.itemgetter(1)
READER = operator.attrgetter("a.b", "c")
CALLER = operator.methodcaller("sum", 0)
CALLER_WITH_KEYWORDS = operator.methodcaller("sum", dim=0)
HOLDER = SimpleNamespace(a=SimpleNamespace(b=4), c=5)

LOCAL = threading.local()
LOCAL.x = 3


@functools.singledispatch
def doubled(one: Any) -> Any:
    return [one, one]


@doubled.register
def _(one: int) -> int:
    return 2 * one


@doubled.register
def _(one: torch.Tensor) -> torch.Tensor:
    return one + one


EXPRESSIONS = """
GETTER([x, x + 1])
GETTER(x)
READER(HOLDER)
CALLER(x)
operator.itemgetter(0, -1)([x, 1, 2])
operator.itemgetter(slice(1, 3))([1, 2, 3])
operator.attrgetter("shape")(x)
operator.attrgetter("a.b", "c")(HOLDER)
operator.methodcaller("sum", dim=0)(x)
sorted({"b": 1, "a": 0}.items(), key=operator.itemgetter(1))
max([HOLDER, SimpleNamespace(c=9)], key=operator.attrgetter("c")).c
operator.itemgetter("k")
isinstance({}, typing.Mapping)
isinstance([x], (typing.Mapping, typing.Sequence))
isinstance(x, typing.Iterable)
isinstance(len, typing.Callable)
isinstance((), typing.List)
isinstance(3, typing.Union[int, str]), isinstance(None, typing.Optional[int]), isinstance(x, typing.Union[int, str])
issubclass(collections.OrderedDict, typing.Dict)
collections.Counter("hello")["l"], collections.Counter([1, 2, 1]).most_common(1)
collections.Counter(a=1) + collections.Counter(a=2)
list(itertools.starmap(pow, [(2, 3), [3, 2]]))
list(itertools.starmap(torch.add, [(x, 1), (x, 2)]))
list(itertools.filterfalse(None, [0, 2, ""]))
list(itertools.filterfalse(lambda n: n > 1, [0, 2, 1]))
list(itertools.takewhile(lambda n: n < 2, [1, 2, 1])), list(itertools.dropwhile(bool, [1, 0, 1]))
list(itertools.compress([x, 2, 3], [1, 0, 1]))
list(itertools.permutations([x, 2])), list(itertools.permutations("abc", 2)), list(itertools.permutations([1], 2))
list(itertools.combinations_with_replacement("ab", 2))
[list(one) for one in itertools.tee([1, x, 3])]
[(next(b), a, b)[:1] for a, b in [itertools.tee(iter([1, 2]))]]
[p * q for a, b in [itertools.tee(range(4))] for p, q in zip(a, itertools.islice(b, 1, None))]
itertools.tee([], 0), itertools.tee([], -1)
heapq.nlargest(1, [3, 1, 2], key=lambda n: -n)
heapq.nsmallest(2, [3, 1, 2]), heapq.nsmallest(2, "abc", key=lambda c: -ord(c))
heapq.nsmallest(-1, [1]), heapq.nsmallest(1, [])
heapq.heappop([])
heapq.heapreplace([], 1)
heapq.heappushpop([], x)
bisect.bisect([1, 3, 5], 3, 1), bisect.bisect_left([1, 3], 3, hi=1)
bisect.bisect_left("cba", -98, key=lambda c: -ord(c)), bisect.bisect_right([3, 5], 4, key=lambda n: n + 1)
bisect.bisect_left([1], 1, lo=-1)
iter([1, x]).__next__(), list(iter(iter([1, 2, 3]).__next__, 3)), "ab".__iter__().__next__(), zip([x], [2]).__next__()
iter([]).__next__()
list(graphlib.TopologicalSorter({"c": {"b"}, "b": {"a"}}).static_order())
list(graphlib.TopologicalSorter({"c": {"b"}, "b": {"c"}}).static_order())
doubled(x), doubled(3), doubled("a"), doubled.dispatch(int)(4), doubled(True)
doubled()
LOCAL.x, getattr(LOCAL, "missing", 5), hasattr(LOCAL, "x"), hasattr(LOCAL, "missing")
LOCAL.missing
(made := [1, 3], bisect.insort(made, 2), bisect.insort_left(made, 3, key=lambda n: n))[0]
""".strip().splitlines()


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression(text: str) -> None:
    check_expression(text, globals())


def test_a_getter_with_keywords_from_outside_breaks() -> None:
    compiled = stator.compile(lambda x: CALLER_WITH_KEYWORDS(x + 1), backend="eager")
    assert compiled(torch.ones(2)) == 4


@pytest.mark.parametrize("kind", ["made", "outside"])
def test_moves_to_an_end_of_an_ordered_dictionary(kind: str) -> None:
    def program(x: torch.Tensor, cache: Any) -> Any:
        if kind == "made":
            cache = collections.OrderedDict(cache)
        cache.move_to_end("a")
        cache.move_to_end("c", last=False)
        cache["d"] = x + 1
        oldest = cache.popitem(last=False)
        try:
            cache.move_to_end("z")
        except KeyError as error:
            return oldest, list(cache), error.args, cache
        return None

    def run(function: Any) -> Any:
        cache = collections.OrderedDict(a=1, b=2, c=3)
        oldest, keys, args, result = function(torch.ones(2), cache)
        return oldest, keys, args, list(result), result is cache, list(cache)

    assert run(stator.compile(program, backend="eager", fullgraph=True)) == run(program)


@pytest.mark.parametrize("seed", range(20))
def test_heaps_are_laid_out_as_those_of_c(seed: int) -> None:
    choose = random.Random(seed)
    numbers = [choose.randrange(9) for _ in range(12)]

    def program(x: torch.Tensor) -> Any:
        heap = list(numbers[:8])
        heapq.heapify(heap)
        layouts = [list(heap)]
        for number in numbers[8:]:
            heapq.heappush(heap, number)
            layouts.append(list(heap))
            taken = heapq.heappop(heap), heapq.heapreplace(heap, number), heapq.heappushpop(heap, 4)
            layouts.append([*heap, *taken])
        return x + 1, layouts

    found = stator.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert found[1] == program(torch.ones(2))[1]


def test_a_function_that_is_registered_later() -> None:
    @functools.singledispatch
    def kind(one: Any) -> int:
        return 1

    compiled = stator.compile(lambda x, one: x * kind(one), backend="eager", fullgraph=True)
    x = torch.ones(1)
    assert [compiled(x, one).item() for one in (3, "a", 3)] == [1, 1, 1]
    kind.register(int, lambda one: 2)
    assert [compiled(x, one).item() for one in (3, "a", True)] == [2, 1, 2]


def test_attributes_of_a_thread() -> None:
    local = threading.local()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * getattr(local, "scale", 2)

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(1)
    found = [compiled(x).item()]
    local.scale = 3

    def other() -> None:
        found.append(compiled(x).item())
        local.scale = 5
        found.append(compiled(x).item())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    found.append(compiled(x).item())
    del local.scale
    found.append(compiled(x).item())
    assert found == [2, 2, 5, 3, 2]


def test_a_written_attribute_of_a_thread() -> None:
    local = threading.local()
    local.calls = 0

    def program(x: torch.Tensor) -> torch.Tensor:
        local.calls += 1
        return x * local.calls

    compiled = stator.compile(program, backend="eager")
    assert [compiled(torch.ones(1)).item() for _ in range(3)] == [1, 2, 3]
