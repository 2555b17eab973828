"""Corners of Python that a captured program shares with the interpreter: iterators, formatting, copies, keys with code
of their own, patterns, protocols. Each program is run as it is and twice through stator.compile; what it returns is
compared.
"""

# ruff: noqa: F821, F841, UP006, UP032

from __future__ import annotations

import collections
import collections.abc
import copy
import itertools
import sys
import types
import typing
import warnings
import weakref

import pytest
import torch

import stator
from stator.base import config, counters
from stator.dynamo import capture
from stator.dynamo.interpreter import long_loops

programs = []


def program(function):
    programs.append(function)
    return function


def pause():
    """A break of the graph: what is alive here is made outside of it."""
    print("", end="", file=None)


def outcome(function):
    try:
        return function()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("function", programs, ids=lambda function: function.__name__)
def test_as_in_eager(function, monkeypatch):
    # most programs here compute no tensors; lines are told by code that runs as it is
    monkeypatch.setattr(config, "keep_empty_graphs", function is not lines_told_to_a_trace_function)
    expected = function(torch.ones(2))
    stator.reset()
    compiled = stator.compile(function, backend="eager")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*an internal error.*")
        for _ in range(2):
            found = compiled(torch.ones(2))
            assert repr(found) == repr(expected)


# ---- iterators and generators ----


def noting(log, name, count):
    for at in range(count):
        log.append((name, at))
        yield at


@program
def zip_longest_takes_turns(x):
    log = []
    rows = []
    for row in itertools.zip_longest(noting(log, "a", 2), noting(log, "b", 4), fillvalue=-1):
        rows.append(row)
        log.append("turn")
    return rows, log


@program
def tee_asks_when_it_is_asked(x):
    log = []
    one, other = itertools.tee(noting(log, "g", 3))
    log.append("made")
    return [next(one), next(one), next(other), list(one), list(other)], log


@program
def islice_leaves_the_rest(x):
    found = []
    for bounds in ((2,), (1, 4), (0, 5, 3), (5, 3), (0, None, 2), (3, None)):
        source = iter(range(10))
        found.append((list(itertools.islice(source, *bounds)), list(source)))
    return found


@program
def pools_are_taken_at_once(x):
    items = [1, 2, 3]
    made = itertools.combinations(items, 2), itertools.product(items), itertools.permutations(items, 2)
    items.append(4)
    return [list(one) for one in made]


@program
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


@program
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


@program
def yield_from_gives_the_value_of_any_iterator(x):
    found = []

    def generator():
        found.append((yield from Ends()))

    list(generator())
    return found


@program
def what_is_sent_reaches_any_iterator(x):
    receiver = Receives()

    def generator():
        yield from receiver

    made = generator()
    return next(made), made.send((1, 2)), receiver.got


@program
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


@program
def an_iterator_that_asks_itself(x):
    def step(value):
        if value == 1:
            return next(mapped)
        return value

    mapped = map(step, [1, 2, 3])
    return list(mapped)


@program
def a_dictionary_that_shrinks_below_its_iterator(x):
    table = dict.fromkeys("abc")
    keys = iter(table)
    del table[next(keys)]
    pause()
    return outcome(lambda: next(keys))


@program
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


@program
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


@program
def aliases_are_remembered(x):
    found = [OwnTuple[int]().__orig_class__, OwnDict[int]().__orig_class__, list[int]()]
    return found, outcome(lambda: typing.List[int]()), outcome(lambda: isinstance(3, typing.Any))


@typing.runtime_checkable
class HasSize(typing.Protocol):
    size: int


class Sized:
    def __init__(self):
        self.size = 3


@program
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


@program
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


@program
def misused_new_and_super(x):
    return [
        outcome(lambda: object.__new__("a")),
        outcome(lambda: tuple.__new__(list)),
        outcome(lambda: object.__new__(int)),
        outcome(lambda: super(Other, Base()).name()),
    ]


@program
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


# ---- keys ----


class Counting:
    asked = 0

    def __hash__(self):
        Counting.asked += 1
        return 5

    def __init__(self, value):
        self.value = value


@program
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


@program
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


@program
def templates_with_objects(x):
    one = Spoken()
    found = ["{} {!r} {!s:>5} {:x>4} {a.size}".format(one, one, one, one, a=Holder()), "{0[1]:{1}}".format([1, one], 7)]
    found += [outcome(lambda: text.format(one, 7)) for text in ("{0} {}", "{z}", "{!x}", "{", "{0.q}", "{:{}}")]
    return found, type(repr(Shown("a"))).__name__


@program
def joining(x):
    return [
        outcome(join) for join in (lambda: "".join(), lambda: "".join([1]), lambda: "".join(3), lambda: "".join(*"ab"))
    ]


@program
def a_number_too_long_for_text(x):
    return outcome(lambda: str(10**5000)), outcome(lambda: f"{10**5000}")


# ---- names ----


@program
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


@program
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


@program
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


@program
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


@program
def what_cannot_be_copied(x):
    return outcome(lambda: copy.copy(noting([], "a", 2)))[0]


# ---- what changes meanwhile ----


@program
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


@program
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


@program
def what_is_not_equal_to_itself(x):
    number = Nothing("nan")
    return number == number, number != number, [number] == [number]


class First:
    pass


class Second(First):
    pass


@program
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


@program
def an_object_that_raises_when_looked_at(x):
    return outcome(lambda: isinstance(3, Angry(1))), Angry(5).calm


@program
def misused_constructors(x):
    return [outcome(lambda: dict({}, {})), outcome(lambda: len([1] * 2_000_000)), outcome(lambda: __import__())]


class Described:
    @property
    def __dict__(self):
        return {"a": 1}

    @property
    def __doc__(self):
        return "text"


@program
def properties_named_like_parts_of_classes(x):
    return vars(Described()), Described().__doc__


@program
def a_proxy_outlives_nothing(x):
    number = Nothing(2.0)
    proxy = weakref.proxy(number)
    pause()
    return proxy + 1.0


@program
def text_in_plain_letters(x):
    class Letters:
        def __repr__(self):
            return "\xe9"

        def __str__(self):
            return "no"

    return f"{Letters()!a} {Letters()!r} {Letters()}"


def counted_down(count):
    while count:
        count -= 1
    return "done"


@program
def lines_told_to_a_trace_function(x):
    lines = []

    def trace(frame, event, argument):
        if event == "line" and frame.f_code is counted_down.__code__:
            lines.append(frame.f_lineno - frame.f_code.co_firstlineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        counted_down(2)
    finally:
        sys.settrace(before)
    return lines


def test_what_a_long_loop_makes_is_not_followed_back_turn_by_turn(monkeypatch):
    """Behind too many turns the graph has to end before the first of the iterators, none of which can be handed on."""
    begun = []

    class Followed(capture.Tracer):
        def __init__(self, function, *rest):
            begun.append(function)
            super().__init__(function, *rest)

    monkeypatch.setattr(capture, "Tracer", Followed)
    monkeypatch.setattr(long_loops, "_MOST_TURNS", 300)

    def nested(x):
        made = filter(bool, range(3))
        for _ in range(600):
            made = filter(bool, made)
        return x + 1, list(made)

    stator.reset()
    assert repr(stator.compile(nested, backend="eager")(torch.ones(2))) == repr(nested(torch.ones(2)))
    assert 1 < len(begun) < 40


def test_many_instructions_without_a_tensor_are_not_followed(monkeypatch):
    monkeypatch.setattr(config, "keep_empty_graphs", True)
    monkeypatch.setattr(long_loops, "_MOST_INSTRUCTIONS", 2000)

    def busy(x):
        total = 0
        for at in range(20):
            total += sum([other * at for other in range(20)])
        return total

    stator.reset()
    counters.clear()
    assert stator.compile(busy, backend="eager")(torch.ones(2)) == busy(torch.ones(2))
    assert counters.counts["graph_breaks"] == 1


def test_many_instructions_in_calls_without_a_tensor_are_not_followed(monkeypatch):
    """A function in C calls one of the program's for each of many items."""
    monkeypatch.setattr(config, "keep_empty_graphs", True)
    monkeypatch.setattr(long_loops, "_MOST_INSTRUCTIONS", 2000)

    def busy(x):
        return sum(list(map(lambda number: number * 2 + 1, range(2000))))  # noqa: C417 - calls, no turns

    stator.reset()
    counters.clear()
    assert stator.compile(busy, backend="eager")(torch.ones(2)) == busy(torch.ones(2))
    assert counters.counts["graph_breaks"] == 1


def test_very_many_items_are_taken_by_the_interpreter(monkeypatch):
    monkeypatch.setattr(long_loops, "_MOST_ITEMS", 100)

    def program(x):
        x = x + 1
        made = list(range(200))
        return x * len(made)

    stator.reset()
    counters.clear()
    assert torch.equal(stator.compile(program, backend="eager")(torch.ones(2)), program(torch.ones(2)))
    assert counters.counts["graph_breaks"] == 1
    assert counters.counts["frames"] == 2


def test_a_whole_number_that_no_float_can_hold(monkeypatch):
    """float() of a number that changes is computed in each call, at its place: where it fails, the program sees it."""
    monkeypatch.setattr(config, "keep_empty_graphs", True)

    def convert(number):
        try:
            found = float(number)
        except OverflowError:
            found = "too large"
        pause()
        return found

    stator.reset()
    compiled = stator.compile(convert, backend="eager")
    for number in (1, 2, 3, 10**300, 10**400, 5, 10**500):
        assert compiled(number) == convert(number)


class OwnList(frozenset):
    pass


class Link:
    pass


@program
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


@program
def views_of_classes(x):
    table = Holder.__dict__
    found = [type(table), table["size"], "size" in table, table.get("other", 3), isinstance(table, dict)]
    for action in (lambda: table.__setitem__("a", 1), lambda: table["other"]):
        found.append(outcome(action)[0])
    pause()
    return found, type(table), type(type.__dict__)


def taking(one, two=2, *rest, **named):
    return one, two, rest, named


@program
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


@program
def numbers_too_long_to_be_shown(x):
    def twice(number):
        return number * 2

    return [twice(LongNumber(2)) == 4, twice(LongNumber(10**6000)) == 2 * 10**6000, twice(10**6000) == 2 * 10**6000]


class Indexed:
    at = 5

    def __index__(self):
        return self.at


@program
def slices_of_objects_with_an_index(x):
    return slice(Indexed(), 9, Indexed()).indices(20), list(range(20))[slice(Indexed(), 9)]


def _numbers():
    yield from (1, 2)


@program
def types_of_methods_that_are_at_hand(x):
    def own():
        pass

    methods = [iter([1]).__next__, iter([1]).__iter__, _numbers().__next__, _numbers().send, own.__get__]
    return [type(method).__name__ for method in methods], type(ValueError(1).with_traceback).__name__


@program
def lengths_too_long_to_be_given(x):
    try:
        return len(range(10**40))
    except OverflowError as error:
        return str(error)


def test_python_types_as_dtypes() -> None:
    def made(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ones(2, dtype=kind) + x for kind in (bool, int, float, complex))

    x = torch.arange(2, dtype=torch.int32)
    counters.clear()
    for got, wanted in zip(stator.compile(made, backend="eager")(x), made(x), strict=True):
        assert got.dtype is wanted.dtype and torch.equal(got, wanted)
    assert counters.counts["graphs"] == 1
