"""Corners of Python that a captured program shares with the interpreter: keys with code of their own, text, names,
copies, containers that change meanwhile, calls that do not fit."""

# ruff: noqa: F821, F841, UP032

from __future__ import annotations

import bisect
import collections
import collections.abc
import copy
import functools
import heapq
import itertools
import weakref

import torch

INPUT = torch.ones(2)
WHOLE = False  # most of them compute no tensors


def pause():
    """A break of the graph: what is alive here is made outside of it."""
    print("", end="", file=None)


def outcome(function):
    try:
        return function()
    except Exception as error:
        return type(error), str(error)


# ---- keys ----


class Counting:
    asked = 0

    def __hash__(self):
        Counting.asked += 1
        return 5

    def __init__(self, value):
        self.value = value


def keys_are_hashed_as_often_as_in_eager(x):
    Counting.asked = 0
    table = {}
    for at in range(3):
        table[Counting(at)] = at
    return [(key.value, value) for key, value in table.items()], Counting.asked


class Name(str):
    pass


class Holder:
    size = 3


def attributes_by_names_of_another_class(x):
    return getattr(Holder(), Name("size")), hasattr(Holder(), Name("other"))


# ---- text ----


class Spoken:
    def __str__(self):
        return "str"

    def __repr__(self):
        return "repr"

    def __format__(self, spec):
        return f"format{spec}"


class Shown(str):
    def __repr__(self):
        return Shown("shown")


def templates_with_objects(x):
    one = Spoken()
    found = ["{} {!r} {!s:>5} {:x>4} {a.size}".format(one, one, one, one, a=Holder()), "{0[1]:{1}}".format([1, one], 7)]
    found += [outcome(lambda: text.format(one, 7)) for text in ("{0} {}", "{z}", "{!x}", "{", "{0.q}", "{:{}}")]
    return found, type(repr(Shown("a"))).__name__


def joining(x):
    return [
        outcome(join) for join in (lambda: "".join(), lambda: "".join([1]), lambda: "".join(3), lambda: "".join(*"ab"))
    ]


def a_number_too_long_for_text(x):
    return outcome(lambda: str(10**5000)), outcome(lambda: f"{10**5000}")


# ---- names ----


def names_without_values(x):
    one = other = 1

    def read():
        return one

    def drop():
        nonlocal one
        del one

    def read_other():
        del other_local
        return other_local

    other_local = other
    found = []
    del one
    for action in (read, drop, read_other):
        found.append(outcome(action))
    try:
        del other
        del other
    except UnboundLocalError as error:
        found.append(str(error))
    return found


short = 1


def a_global_deleted_twice(x):
    global short
    short = 2
    del short
    try:
        del short
    except NameError as error:
        return str(error)
    finally:
        short = 1


# ---- copies ----


class Whole(int):
    pass


def copies_of_what_is_shared(x):
    number, tensor = Whole(3), torch.ones(2)
    twins = copy.deepcopy([tensor, tensor])
    looped = ([],)
    looped[0].append(looped)
    again = copy.deepcopy(looped)
    pause()
    return (
        copy.copy(number) is number,
        type(copy.copy(number)).__name__,
        twins[0] is twins[1],
        twins[0] is tensor,
        again is not looped,
        again[0][0] is again,
    )


def copies_of_numbers_with_attributes(x):
    class Point(int):
        def __new__(cls, name):
            made = int.__new__(cls, 3)
            made.name = name
            return made

        def __getnewargs__(self):
            return (self.name,)

    one = Point("a")
    other = copy.copy(one)
    other.name = "b"
    return other is one, one.name, other.name, type(other).__name__


def what_cannot_be_copied(x):
    return outcome(lambda: copy.copy(one for one in "ab"))[0]


# ---- what changes meanwhile ----


def items_of_a_deque_replaced_below_an_iterator(x):
    queue = collections.deque([1, 2, 3])
    pause()
    items = iter(queue)
    seen = []
    for at, item in enumerate(queue):
        queue[at] = item * 10
        seen.append(item)
    pause()
    return list(items), seen


class Clearing:
    def __init__(self, items):
        self.items = items

    def __eq__(self, other):
        self.items.clear()
        return NotImplemented


def a_comparison_that_empties_the_lists(x):
    one, other = [], []
    one.append(Clearing(other))
    other.append(Clearing(one))
    left, right = [], []

    class First:
        def __eq__(self, what):
            right.clear()
            return NotImplemented

    class Second:
        def __eq__(self, what):
            left.clear()
            return NotImplemented

    left.append(First())
    right.append(Second())
    return one == other, left == right, [1, 2] == [1, 3], [1] == [1]


class Nothing(float):
    kept = 1


def what_is_not_equal_to_itself(x):
    number = Nothing("nan")
    return number == number, number != number, [number] == [number]


class First:
    pass


class Second(First):
    pass


def bases_that_change(x):
    class Third(First):
        pass

    found = [Third.__bases__]
    Third.__bases__ = (Second,)
    return [*found, Third.__bases__, Third.__mro__[1:]]


class Angry:
    def __init__(self, calm):
        self.calm = calm

    def __getattribute__(self, name):
        if name == "__class__":
            raise KeyError("angry")
        return super().__getattribute__(name)


def an_object_that_raises_when_looked_at(x):
    return outcome(lambda: isinstance(3, Angry(1))), Angry(5).calm


def misused_constructors(x):
    return [outcome(lambda: dict({}, {})), outcome(lambda: len([1] * 200_000)), outcome(lambda: __import__())]


class Described:
    @property
    def __dict__(self):
        return {"a": 1}

    @property
    def __doc__(self):
        return "text"


def properties_named_like_parts_of_classes(x):
    return vars(Described()), Described().__doc__


def a_proxy_outlives_nothing(x):
    number = Nothing(2.0)
    proxy = weakref.proxy(number)
    pause()
    return proxy + 1.0


def text_in_plain_letters(x):
    class Letters:
        def __repr__(self):
            return "\xe9"

        def __str__(self):
            return "no"

    return f"{Letters()!a} {Letters()!r} {Letters()}"


class Pair(tuple):
    def __new__(cls, one, other):
        return super().__new__(cls, (one, other))


class Two(set):
    def __init__(self, one, other):
        super().__init__([one, other])
        self.one = one


class OwnList(frozenset):
    pass


class Link:
    pass


def containers_that_hold_themselves(x):
    found = []
    for kind in (Two, Pair):
        link = Link()
        made = kind(link, 1)
        link.value = made
        pause()
        found.append(link.value is made and any(getattr(one, "value", None) is made for one in made))
    link = Link()
    link.value = OwnList([link])
    pause()
    return found, next(iter(link.value)).value is link.value


def views_of_classes(x):
    table = Holder.__dict__
    found = [type(table), table["size"], "size" in table, table.get("other", 3), isinstance(table, dict)]
    for action in (lambda: table.__setitem__("a", 1), lambda: table["other"]):
        found.append(outcome(action)[0])
    pause()
    return found, type(table), type(type.__dict__)


def taking(one, two=2, *rest, **named):
    return one, two, rest, named


def calls_that_do_not_fit(x):
    return [
        outcome(lambda: taking(**3))[0],
        outcome(lambda: taking(*3))[0],
        outcome(lambda: {**3}),
        outcome(lambda: max([])),
        outcome(lambda: [0] * "a"),
        outcome(lambda: dict([1])),
        outcome(lambda: super().x),
    ]


class LongNumber(int):
    pass


def numbers_too_long_to_be_shown(x):
    def twice(number):
        return number * 2

    return [twice(LongNumber(2)) == 4, twice(LongNumber(10**6000)) == 2 * 10**6000, twice(10**6000) == 2 * 10**6000]


class Indexed:
    at = 5

    def __index__(self):
        return self.at


def slices_of_objects_with_an_index(x):
    return slice(Indexed(), 9, Indexed()).indices(20), list(range(20))[slice(Indexed(), 9)]


def _numbers():
    yield from (1, 2)


def types_of_methods_that_are_at_hand(x):
    def own():
        pass

    methods = [iter([1]).__next__, iter([1]).__iter__, _numbers().__next__, _numbers().send, own.__get__]
    return [type(method).__name__ for method in methods], type(ValueError(1).with_traceback).__name__


def lengths_too_long_to_be_given(x):
    try:
        return len(range(10**40))
    except OverflowError as error:
        return str(error)


# ---- functions of the standard library that break the graph ----


@functools.singledispatch
def kind(value):
    return 1


@kind.register
def _(value: int):
    return 2


@kind.register(torch.Tensor)
def _(value):
    return value * 2


def dispatched_by_class(x):
    return x * kind(3) + kind("text"), kind(x), kind.dispatch(bool)(True)


def heaps_and_searches(x):
    heap = [5, 1, 4, 9]
    heapq.heapify(heap)
    bisect.insort(heap, 7, key=abs)
    return x * heapq.heappop(heap), heap, bisect.bisect([1, 3], 2, lo=1)


def iterators_of_calls(x):
    left = [1, 2, 3]
    return x * sum(iter(left.pop, 1)), left, collections.Counter("aab"), list(itertools.tee(left)[1])
