"""How a frame enters another one: at which kind of instruction, and what that makes of what the function gives. A frame
that is left there goes on by finishing the instruction. How frames are left is said in joining.py and emit/inner.py."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .arithmetic import ARITHMETIC
from .bytecode import VERSION, Builder, Instruction
from .native_status import native

if TYPE_CHECKING:
    from .values.base import Value


@enum.unique
class Finish(enum.Enum):
    """What an instruction does with the result of the function that it entered. Its operands are gone from the stack
    then, but for what is named here, which lies below the result."""

    RESULT = "the result is pushed"
    METHOD = "it is pushed, to be called: with a NULL"
    READ = "it is pushed; what is below is the object that it was read of, as an AttributeError is told"
    READ_METHOD = "the same, to be called: with a NULL"
    NOTHING = "it is dropped"
    NONE = "it is dropped, and None is pushed"
    INSTANCE = "it has to be None; the object below, which was made, stays"
    ANSWER = "it is what an operator gives of the operands below, but for NotImplemented; nothing else would be asked"
    LEFT_ANSWER = "the same, of the left operand's method; the right one's reflected method would be asked then"
    RIGHT_ANSWER = "the same, of the right operand's, which is of a subclass; the left one's method would be asked then"
    IN_PLACE_ANSWER = "the same, of the left operand's method in place; the plain operator would be asked then"
    LENGTH = "it has to be a length, which is pushed"
    LENGTH_TRUTH = "it has to be a length, and whether it is more than zero is pushed"
    TRUTH = "it has to be a bool, which is pushed"
    LENGTH_AGAIN = "it has to be a length, and the instruction is done on that"
    TRUTH_AGAIN = "it has to be a bool, and the instruction is done on that"
    MEMBER = "its truth is pushed, or for `not in` the opposite"
    ITERATOR = "it has to be an iterator, which is pushed"
    ITEM = "it is pushed as an item of the iterator below, or that has ended, and the loop"
    FOUND = "it is pushed; or that of `__getattr__` of the object below, as it raised AttributeError"
    FOUND_METHOD = "the same, to be called"
    HAS = "whether it did not raise AttributeError is pushed"
    DEFAULTED = "it is pushed; or what is below, as it raised AttributeError"
    COLLECTED = "it is an item; the instruction is done again, on it behind those below it, and the iterator below it"
    REDUCED = "it is what was reduced so far; the instruction is done again, on it before the iterator below it"
    REDUCED_FROM = "the same, where that is an argument of its own"
    MADE = "it is pushed; below are a class that was called and its arguments, with which it may be initialized"


AGAIN = frozenset((Finish.LENGTH_AGAIN, Finish.TRUTH_AGAIN, Finish.COLLECTED, Finish.REDUCED, Finish.REDUCED_FROM))
METHODS = {
    Finish.METHOD: Finish.RESULT,
    Finish.READ_METHOD: Finish.READ,
    Finish.FOUND_METHOD: Finish.FOUND,
}  # with a NULL -> without
BELOW = {  # so many of its operands lie below the result, and are gone when the instruction is finished
    Finish.ANSWER: 2,
    Finish.LEFT_ANSWER: 2,
    Finish.RIGHT_ANSWER: 2,
    Finish.IN_PLACE_ANSWER: 2,
    Finish.READ: 1,
    Finish.READ_METHOD: 1,
    Finish.FOUND: 1,
    Finish.FOUND_METHOD: 1,
    Finish.MADE: 3,
    Finish.DEFAULTED: 1,
    Finish.COLLECTED: 2,
    Finish.REDUCED: 1,
}
CAUGHT: dict[Finish, type[Exception]] = {  # what the instruction makes something else of than an exception
    Finish.ITEM: StopIteration,
    Finish.COLLECTED: StopIteration,
    Finish.FOUND: AttributeError,
    Finish.FOUND_METHOD: AttributeError,
    Finish.HAS: AttributeError,
    Finish.DEFAULTED: AttributeError,
}
TOLD = frozenset((Finish.READ, Finish.READ_METHOD))  # an AttributeError that leaves the function gets name and object


class Role(enum.Enum):
    """As what an instruction uses the object by way of which it enters a function."""

    CALL = "it is called"
    ATTRIBUTE = "an attribute of it is read, written or deleted"
    OPERAND = "it is subscripted, or an operator's operand, or asked for its length, truth, items and the like"


@dataclass(frozen=True, slots=True)
class Way:
    """How a frame was entered. below: what waits on the stack of the frame around until the instruction is finished."""

    finish: Finish = Finish.RESULT
    below: tuple[Value, ...] = ()
    by: Role = Role.CALL


DIRECTLY = Way()
WRITING = Way(Finish.NOTHING, by=Role.ATTRIBUTE)
OPERATING = Way(by=Role.OPERAND)
STORING = Way(Finish.NOTHING, by=Role.OPERAND)
DECIDING = Way(Finish.TRUTH_AGAIN, by=Role.OPERAND)
TAKING_ITERATOR = Way(Finish.ITERATOR, by=Role.OPERAND)
TAKING_ITEM = Way(Finish.ITEM, by=Role.OPERAND)
CONTAINING = Way(Finish.MEMBER, by=Role.OPERAND)
# built-in functions, by their id, which with one argument do no more than ask its class
ASKING: dict[int, Way] = {
    id(len): Way(Finish.LENGTH, by=Role.OPERAND),
    id(bool): Way(Finish.TRUTH, by=Role.OPERAND),
    id(iter): TAKING_ITERATOR,
    id(next): OPERATING,
    id(abs): OPERATING,
}
# the same of those that are given the name of an attribute, by how many arguments they are called with; not getattr()
# of two, which notes name and object in an AttributeError that leaves it
_BY_NAME: dict[tuple[int, int], Way] = {
    (id(getattr), 3): Way(Finish.DEFAULTED, by=Role.ATTRIBUTE),
    (id(hasattr), 2): Way(Finish.HAS, by=Role.ATTRIBUTE),
    (id(setattr), 3): Way(Finish.NONE, by=Role.ATTRIBUTE),
    (id(delattr), 2): Way(Finish.NONE, by=Role.ATTRIBUTE),
}
BY_LENGTH = {Finish.TRUTH: Finish.LENGTH_TRUTH, Finish.TRUTH_AGAIN: Finish.LENGTH_AGAIN}


@dataclass(slots=True)
class Collecting:
    """An instruction that takes items as long as there are some, before it does anything with them.

    source: whose items; then, if that is another object, the iterator of it. below: what lies on the stack below the
    operand, of what the instruction takes. step: at which of the capture it began. source None: it is left no more.
    plainly: it looks at each item when it has it, which it is to do again only where nobody notices."""

    source: Value | None
    below: tuple[Any, ...]
    step: int
    plainly: bool = False
    taken: list[Value] = field(default_factory=list)


def takes_all(function: Any) -> bool | None:
    """Of a built-in function that takes all items of its argument: whether it looks at each at once; None for others"""
    return _TAKING_ALL.get(id(function))


_TAKING_ALL = dict.fromkeys(map(id, (list, tuple, sum, sorted)), False)
_TAKING_ALL |= dict.fromkeys(map(id, (set, frozenset, dict, any, all, max, min)), True)


def called(callee: Value) -> tuple[Any, ...]:
    """A callable as it lies on the stack below its arguments."""
    return (callee, None) if VERSION.callee_first else (None, callee)


def asked(function: Any, args: list[Value]) -> Way | None:
    """How a call of this built-in function enters a method of its first argument, or an attribute's function."""
    if len(args) == 1:
        return ASKING.get(id(function))
    way = _BY_NAME.get((id(function), len(args)))
    return replace(way, below=(args[2],)) if way is not None and way.finish is Finish.DEFAULTED else way


def reading(owner: Value, *, as_method: bool, by_generator: bool) -> Way:
    """Reading an attribute. by_generator: by the code of one, which takes the result as it is."""
    if by_generator:
        return Way(Finish.METHOD if as_method else Finish.RESULT, by=Role.ATTRIBUTE)
    return Way(Finish.READ_METHOD if as_method else Finish.READ, (owner,), Role.ATTRIBUTE)


def or_found(way: Way, owner: Value) -> Way | None:
    """Reading an attribute of an object whose class has `__getattr__`, too. None: a function was called for it."""
    finish = _OR_FOUND.get(way.finish)
    return None if finish is None or way.by is not Role.ATTRIBUTE else Way(finish, (owner,), Role.ATTRIBUTE)


_OR_FOUND = {
    Finish.RESULT: Finish.FOUND,
    Finish.READ: Finish.FOUND,
    Finish.METHOD: Finish.FOUND_METHOD,
    Finish.READ_METHOD: Finish.FOUND_METHOD,
}


def write_finish(builder: Builder, finish: Finish, instruction: Instruction, ended: Instruction | None = None) -> None:
    """what lies below, the result of the function -> what the instruction leaves

    ended: where it goes on, with all of that on the stack, if it was for an item and there was none."""
    if finish in _FURTHER:
        builder.const(_how_it_goes_on(finish, instruction))
        builder.tuple(4)
        _call_on_top(builder, native.answered)
    elif finish is Finish.ITEM:
        assert ended is not None
        builder.duplicate()
        _call_on_top(builder, native.was_missed)
        builder.jump_if_true(ended)
    elif finish in (Finish.FOUND, Finish.FOUND_METHOD):
        builder.const(instruction.argval)
        builder.tuple(3)
        _call_on_top(builder, native.found)
        if finish is Finish.FOUND_METHOD:
            _write_method(builder)
    elif finish is Finish.MEMBER:
        _call_on_top(builder, native.no_member if instruction.arg else native.member)
    else:
        _WRITERS[finish](builder)


def _how_it_goes_on(finish: Finish, instruction: Instruction) -> tuple[Any, ...]:
    """For `native.answered`: the operator, the method that is asked next, whether of the left operand (None: none is
    asked; a function: the operator that is tried next), whether the truth of the answer is wanted."""
    symbol = instruction.argval
    plain, reflected = _SPECIAL_METHODS[symbol]
    following: dict[Finish, tuple[Any, bool]] = {
        Finish.ANSWER: (None, False),
        Finish.LEFT_ANSWER: (reflected, False),
        Finish.RIGHT_ANSWER: (plain, True),
        Finish.IN_PLACE_ANSWER: (_PLAIN.get(symbol), False),
    }
    wants_truth = instruction.opname == "COMPARE_OP" and bool(instruction.flags & 16)  # 3.13
    return (symbol, *following[finish], wants_truth)


_FURTHER = frozenset((Finish.ANSWER, Finish.LEFT_ANSWER, Finish.RIGHT_ANSWER, Finish.IN_PLACE_ANSWER))
_PLAIN = {f"{symbol}=": function for symbol, function in ARITHMETIC.items()}
_COMPARISONS = {"<": ("lt", "gt"), "<=": ("le", "ge"), "==": ("eq", "eq"), "!=": ("ne", "ne")}
_SPECIAL_METHODS: dict[str, tuple[str, str]] = {}
for _symbol, _function in ARITHMETIC.items():
    _name = _function.__name__.strip("_")
    _SPECIAL_METHODS[_symbol] = _SPECIAL_METHODS[f"{_symbol}="] = f"__{_name}__", f"__r{_name}__"
for _symbol, (_name, _other) in _COMPARISONS.items():
    _SPECIAL_METHODS[_symbol] = f"__{_name}__", f"__{_other}__"
    _SPECIAL_METHODS[_symbol.replace("<", ">")] = f"__{_other}__", f"__{_name}__"


def _write_method(builder: Builder) -> None:
    builder.null()
    if not VERSION.callee_first:
        builder.swap(2)


def _write_instance(builder: Builder) -> None:
    _call_on_top(builder, native.initialized)
    builder.pop()


def _write_read(builder: Builder) -> None:
    """object, result -> result"""
    builder.swap(2)
    builder.pop()


def _write_read_method(builder: Builder) -> None:
    _write_read(builder)
    _write_method(builder)


def _write_none(builder: Builder) -> None:
    builder.pop()
    builder.const(None)


def _write_has(builder: Builder) -> None:
    _call_on_top(builder, native.was_missed)
    builder.add("UNARY_NOT")


def _write_defaulted(builder: Builder) -> None:
    """default, result ->"""
    builder.tuple(2)
    _call_on_top(builder, native.otherwise)


def _write_made(builder: Builder) -> None:
    builder.tuple(4)
    _call_on_top(builder, native.made)


def _write_collected(builder: Builder) -> None:
    builder.tuple(3)
    _call_on_top(builder, native.resumed)


def _write_reduced(builder: Builder) -> None:
    """iterator, result -> an iterator that gives the result first"""
    builder.tuple(1)
    builder.swap(2)
    builder.tuple(2)
    _call_on_top(builder, native.resumed)


def _call_on_top(builder: Builder, function: Callable[..., Any]) -> None:
    """x -> function(x)"""
    builder.const_callee(function)
    builder.swap(2)
    builder.swap(3)
    builder.call(1)


def _calling(name: str) -> Callable[[Builder], None]:
    return lambda builder: _call_on_top(builder, getattr(native, name))


_WRITERS: dict[Finish, Callable[[Builder], None]] = {
    Finish.RESULT: lambda builder: None,
    Finish.METHOD: _write_method,
    Finish.READ: _write_read,
    Finish.READ_METHOD: _write_read_method,
    Finish.NOTHING: Builder.pop,
    Finish.NONE: _write_none,
    Finish.HAS: _write_has,
    Finish.DEFAULTED: _write_defaulted,
    Finish.INSTANCE: _write_instance,
    Finish.LENGTH: _calling("a_length"),
    Finish.LENGTH_AGAIN: _calling("a_length"),
    Finish.LENGTH_TRUTH: _calling("is_filled"),
    Finish.TRUTH: _calling("a_truth"),
    Finish.TRUTH_AGAIN: _calling("a_truth"),
    Finish.ITERATOR: _calling("an_iterator"),
    Finish.MADE: _write_made,
    Finish.COLLECTED: _write_collected,
    Finish.REDUCED: _write_reduced,
    Finish.REDUCED_FROM: lambda builder: None,
}
