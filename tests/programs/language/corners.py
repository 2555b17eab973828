"""Corners of Python that a captured program shares with the interpreter: keys with code of their own, text, names,
containers that change meanwhile, iterators, classes."""

# ruff: noqa: F821, F841, UP032

from __future__ import annotations

import bisect
import collections
import collections.abc
import functools
import heapq
import itertools
import types
import typing

import torch

INPUT = torch.ones(2)
WHOLE = False  # most of them compute no tensors


def pause():
    """A break of the graph: living objects are rebuilt outside of it."""
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


# ---- changes during an operation ----


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


# ---- iterators and generators ----


def noting(log, name, count):
    for at in range(count):
        log.append((name, at))
        yield at


def zip_longest_takes_turns(x):
    log = []
    rows = []
    for row in itertools.zip_longest(noting(log, "a", 2), noting(log, "b", 4), fillvalue=-1):
        rows.append(row)
        log.append("turn")
    return rows, log


def tee_asks_when_it_is_asked(x):
    log = []
    one, other = itertools.tee(noting(log, "g", 3))
    log.append("made")
    return [next(one), next(one), next(other), list(one), list(other)], log


def tee_of_tee_goes_on_from_its_place(x):
    one, other = itertools.tee([1, 2, 3])
    again, later = itertools.tee(one)
    next(one)
    return x + 1, again is one, list(again), list(later), list(other)


def islice_leaves_the_rest(x):
    found = []
    for bounds in ((2,), (1, 4), (0, 5, 3), (5, 3), (0, None, 2), (3, None)):
        source = iter(range(10))
        found.append((list(itertools.islice(source, *bounds)), list(source)))
    return found


def pools_are_taken_at_once(x):
    items = [1, 2, 3]
    made = itertools.combinations(items, 2), itertools.product(items), itertools.permutations(items, 2)
    items.append(4)
    return [list(one) for one in made]


def what_is_no_iterable_fails_at_once(x):
    return [
        outcome(make)
        for make in (
            lambda: itertools.chain.from_iterable(3),
            lambda: itertools.pairwise(None),
            lambda: itertools.pairwise("a", 3),
            lambda: itertools.cycle(3),
            lambda: itertools.takewhile(bool, 3),
            lambda: itertools.groupby(4),
            lambda: itertools.zip_longest(3),
            lambda: itertools.combinations([1], -1),
            lambda: list(itertools.repeat(object=3, times=2)),
            lambda: itertools.starmap(3, 4),
            lambda: itertools.accumulate(3),
        )
    ]


def iterators_are_no_generators(x):
    made = [
        itertools.chain([1]),
        itertools.chain.from_iterable([[1]]),
        itertools.islice([1], 1),
        itertools.tee(iter([1]))[0],
        itertools.count(),
        (one for one in [1]),
    ]
    return [(type(one).__name__, isinstance(one, types.GeneratorType), hasattr(one, "send"), next(one)) for one in made]


class Ends:
    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(42)


class Receives:
    def __init__(self):
        self.got = []

    def __iter__(self):
        return self

    def __next__(self):
        return 42

    def send(self, what):
        self.got.append(what)


def yield_from_gives_the_value_of_any_iterator(x):
    found = []

    def generator():
        found.append((yield from Ends()))

    list(generator())
    return found


def what_is_sent_reaches_any_iterator(x):
    receiver = Receives()

    def generator():
        yield from receiver

    made = generator()
    return next(made), made.send((1, 2)), receiver.got


def a_generator_that_ignores_its_end(x):
    def inner():
        try:
            yield
        except GeneratorExit:
            yield

    def outer():
        yield from inner()

    made = outer()
    next(made)
    return outcome(lambda: made.throw(GeneratorExit))


def an_iterator_that_asks_itself(x):
    def step(value):
        if value == 1:
            return next(mapped)
        return value

    mapped = map(step, [1, 2, 3])
    return list(mapped)


def a_dictionary_that_shrinks_below_its_iterator(x):
    table = dict.fromkeys("abc")
    keys = iter(table)
    del table[next(keys)]
    pause()
    return outcome(lambda: next(keys))


def a_key_taken_out_and_put_in_below_an_iterator(x):
    table = {0: 0}

    def turn():
        for key in table:
            del table[key]
            table[key] = 0
            pause()

    return outcome(turn)


# ---- classes ----


T = typing.TypeVar("T")


class OwnTuple(tuple[T, T]):
    pass


class OwnDict(dict[str, T]):
    pass


def aliases_are_remembered(x):
    found = [OwnTuple[int]().__orig_class__, OwnDict[int]().__orig_class__, list[int]()]
    return found, outcome(lambda: list[int]()), outcome(lambda: isinstance(3, typing.Any))


@typing.runtime_checkable
class HasSize(typing.Protocol):
    size: int


class Sized:
    def __init__(self):
        self.size = 3


def protocols_look_at_the_instance(x):
    found = []
    for made in (Sized(), Ends()):
        try:
            found.append(isinstance(made, HasSize))
        except TypeError as error:
            found.append(str(error))
    return found


class Refusing(type):
    def __subclasscheck__(cls, other):
        raise ValueError


class Odd(Exception, metaclass=Refusing):
    pass


def except_asks_no_metaclass(x):
    try:
        raise KeyError(1)
    except Odd:
        return "odd"
    except KeyError:
        return "key", isinstance(3, Odd)


class Base:
    def name(self):
        return "base"


class Other(Base):
    pass


def misused_new_and_super(x):
    return [
        outcome(lambda: object.__new__("a")),
        outcome(lambda: tuple.__new__(list)),
        outcome(lambda: object.__new__(int)),
        outcome(lambda: super(Other, Base()).name()),
    ]


def a_class_registered_between_two_matches(x):
    class Plain:
        def __len__(self):
            return 0

    def kind(subject):
        match subject:
            case {}:
                return "mapping"
            case []:
                return "sequence"
        return None

    before = kind(Plain())
    collections.abc.Sequence.register(Plain)
    return before, kind(Plain()), kind(Plain())
