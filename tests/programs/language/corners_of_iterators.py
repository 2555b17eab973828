"""Corners of iterators and classes that a captured program shares with the interpreter."""

# ruff: noqa: UP006

from __future__ import annotations

import collections
import collections.abc
import itertools
import types
import typing

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


class Pair(tuple):
    def __new__(cls, one, other):
        return super().__new__(cls, (one, other))


class Marked(tuple):
    pass


class Two(set):
    def __init__(self, one, other):
        super().__init__([one, other])
        self.one = one


def instances_of_own_containers_behind_a_break(x):
    made = Pair(1, 2), Marked((1, 2)), Two(3, 4)
    made[1].mark = 5
    pause()
    return [(type(one).__name__, sorted(one), one.__dict__) for one in made]


T = typing.TypeVar("T")


class OwnTuple(tuple[T, T]):
    pass


class OwnDict(dict[str, T]):
    pass


def aliases_are_remembered(x):
    found = [OwnTuple[int]().__orig_class__, OwnDict[int]().__orig_class__, list[int]()]
    return found, outcome(lambda: typing.List[int]()), outcome(lambda: isinstance(3, typing.Any))


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
