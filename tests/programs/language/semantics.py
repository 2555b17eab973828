"""Python's operators, attributes, patterns and errors, against eager: results, order of calls, texts.

Each program takes a tensor and returns what can be compared; it is run as it is and through stator.compile.
"""

from __future__ import annotations

import functools
import itertools
import typing
from collections import OrderedDict, defaultdict, deque

WHOLE = False  # some may break the graph


class Counted:
    """Notes which of its methods were asked."""

    def __init__(self, name, log, answers=()):
        self.name, self.log, self.answers = name, log, answers

    def __eq__(self, other):
        self.log.append(f"{self.name}.eq")
        return True if "eq" in self.answers else NotImplemented

    __hash__ = None

    def __add__(self, other):
        self.log.append(f"{self.name}.add")
        return f"{self.name}+" if "add" in self.answers else NotImplemented

    def __radd__(self, other):
        self.log.append(f"{self.name}.radd")
        return f"+{self.name}" if "radd" in self.answers else NotImplemented

    def __iadd__(self, other):
        self.log.append(f"{self.name}.iadd")
        return NotImplemented


class Derived(Counted):
    def __radd__(self, other):
        self.log.append(f"{self.name}.derived")
        return "derived"


class Blocked:
    __eq__ = None
    __hash__ = None


class Inverted:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


class OwnText(Exception):
    def __str__(self):
        return "own"


class Formatted:
    def __format__(self, spec):
        return f"<{spec}>"


class Meta(type):
    def __len__(cls):
        return 3

    def __getitem__(cls, key):
        return ("item", key)

    def __contains__(cls, item):
        return item == 1

    def __add__(cls, other):
        return ("added", other)

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return f"made {name}"

    @property
    def size(cls):
        return "of the metaclass"


class WithMeta(metaclass=Meta):
    size = "of the class"


class Slotted:
    __slots__ = ("a",)
    b = 1


class OnlySet:
    def __set__(self, owner, value):
        owner.__dict__["field"] = value * 2


class HasOnlySet:
    field = OnlySet()


class Deleter:
    @property
    def it(self):
        return 1

    @it.deleter
    def it(self):
        self.gone = True


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


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


def operators_ask_in_order(x):
    log = []
    left, right = Counted("l", log), Counted("r", log, ("eq", "radd"))
    derived = Derived("d", log)
    out = [left == right, left != right, left + derived, left == left]
    try:
        out.append(left + Counted("m", log))
    except TypeError as error:
        out.append(str(error))
    left += derived
    out.append(left)
    return x + 1, out, log


def inequality_inverts_equality(x):
    return x + 1, [Inverted(1) != Inverted(1), Inverted(1) != Inverted(2)]


def a_blocked_comparison(x):
    try:
        return x + 1, Blocked() == Blocked()
    except TypeError as error:
        return x + 2, str(error)


def methods_are_equal(x):
    items = [1]
    return x + 1, [items.append == items.append, items.append == [1].append, items.append == items.pop]


def texts_of_exceptions(x):
    errors = [ValueError(), ValueError("a"), ValueError("a", 1), KeyError("k"), OwnText("given")]
    return x + 1, [(str(error), repr(error), f"{error!r:>20}") for error in errors]


def texts_of_objects(x):
    return x + 1, [f"{Formatted():.3}", f"{Formatted()}", format(Formatted(), "x")]


def metaclasses_answer(x):
    return x + 1, [
        len(WithMeta),
        WithMeta[2],
        1 in WithMeta,
        WithMeta + 1,
        WithMeta.other,
        WithMeta.size,
        bool(WithMeta),
    ]


def slots_and_descriptors(x):
    out = []
    made = Slotted()
    made.a = 1
    for name in ("a", "a", "b", "c"):
        try:
            delattr(made, name)
            out.append("deleted")
        except AttributeError as error:
            out.append(str(error))
    try:
        made.c = 1
    except AttributeError as error:
        out.append(str(error))
    field = HasOnlySet()
    out.append(field.field is HasOnlySet.__dict__["field"])
    field.field = 4
    out.append(field.field)
    deleter = Deleter()
    del deleter.it
    out.append(deleter.gone)
    out.append(hasattr(object(), "__dict__"))
    return x + 1, out


def changes_while_iterating(x):
    out = []
    ordered = OrderedDict(a=1, b=2)
    try:
        for key in ordered:
            ordered.move_to_end(key)
    except RuntimeError as error:
        out.append(str(error))
    plain = {1: 1}
    try:
        for key in plain:
            del plain[key]
            plain[key + 1] = 1
    except RuntimeError as error:
        out.append(str(error))
    members = {1, 2}
    try:
        for member in members:
            members.add(member + 10)
    except RuntimeError as error:
        out.append(str(error))
    return x + 1, out, type(OwnSet([1]) | {2}), OwnSet([1]).copy()


class OwnSet(set):
    pass


def changes_in_place(x):
    items = same = [1]
    items *= 3
    members = alike = {1, 2, 3}
    members &= {2, 3}
    members -= {3}
    members ^= {5}
    return x + 1, items, same is items, members, alike is members


def functions_keep_what_they_carry(x):
    def decorate(function):
        function.__dict__["author"] = "me"

        @functools.wraps(function)
        def wrapper(a: int, b: str = "b") -> float:
            return function(a)

        return wrapper

    @decorate
    def named(a: int) -> str:
        "Its text."
        return a

    return x + 1, [named.author, named.__name__, named.__doc__, named.__annotations__, named.__wrapped__.author]


def errors_of_calls(x):
    def function(a, /, b, *, c=1):
        return a, b, c

    out = []
    for args, kwargs in (((), {}), ((1,), {}), ((1, 2, 3), {}), ((1, 2), {"d": 1}), ((1,), {"a": 1, "b": 2})):
        try:
            out.append(function(*args, **kwargs))
        except TypeError as error:
            out.append(str(error))
    for values in ((1,), (1, 2, 3)):
        try:
            _first, _second = values
        except ValueError as error:
            out.append(str(error))
    try:
        _first, _second, *_rest = (1,)
    except ValueError as error:
        out.append(str(error))
    return x + 1, out


def builtins_refuse_what_they_refuse(x):
    out = []
    for act in (lambda: sorted([2, 1], None), lambda: next([1]), lambda: max(1, 2, default=3), lambda: sum("ab", "")):
        try:
            out.append(act())
        except TypeError as error:
            out.append(str(error))
    return x + 1, out


def patterns(x):
    out = []
    for subject in (deque([1, 2]), range(3), "ab", {"k": 1, "l": 2}, Point(1, [2, 3]), 3, (1,), [], defaultdict(int)):
        match subject:
            case {"k": first, **rest}:
                out.append(("mapping", first, rest))
            case Point(1, [_, last]):
                out.append(("point", last))
            case int(number):
                out.append(("int", number))
            case [first, *rest]:
                out.append(("sequence", first, rest))
            case []:
                out.append("empty")
            case _:
                out.append("other")
    return x + 1, out


def cells_are_objects(x):
    def make():
        inside = 42

        def inner():
            return inside

        return inner

    cell = make().__closure__[0]
    return x + 1, cell.cell_contents


def a_value_of_a_generator(x):
    def generator():
        yield 1
        return "end"

    steps = generator()
    out = [next(steps)]
    for _ in range(2):
        try:
            next(steps)
        except StopIteration as stop:
            out.append(stop.value)
    return x + 1, out


def flattened(parts):
    for part in parts:
        yield from part


def a_generator_left_waiting_in_another(x):
    """There is nothing to clean up in either of them."""
    return x + 1, next(flattened([[1], [2]])), next(itertools.chain([3], [4]))


class Indexed:
    def __class_getitem__(cls, key):
        return cls.__name__, key

    def __getitem__(self, at):
        if at > 2:
            raise IndexError
        return at * 10


class Counting:
    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return self.at


def old_protocols_of_containers(x):
    return x + 1, list(Indexed()), 20 in Indexed(), Indexed[3], 4 in Counting()


class Scaled:
    def scaled(self, x, by, more=0):
        return x * by + more

    doubled = functools.partialmethod(scaled, by=2)


def partial_methods(x):
    return Scaled().doubled(x), Scaled().doubled(x, more=3)


class Aliased(typing.Generic[typing.AnyStr]):
    pass


def called_aliases(x):
    return x + 1, Aliased[str]().__orig_class__


def twice(value):
    return value * 2


WRAPPED = functools.update_wrapper(functools.partial(twice), twice)


def attributes_of_partials(x):
    return WRAPPED(x), WRAPPED.__name__, hasattr(WRAPPED, "__wrapped__"), getattr(WRAPPED, "other", 5)
