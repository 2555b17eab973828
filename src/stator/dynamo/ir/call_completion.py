"""How a frame enters another one: at which kind of instruction, and what that makes of what the function gives. A frame
that is left there goes on by finishing the instruction. How frames are left is said in joining.py and
codegen/nested_exit.py."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stator.dynamo.bytecode import VERSION, CodeBuilder, Instruction
from stator.dynamo.bytecode.arithmetic import ARITHMETIC
from stator.dynamo.host.native_status import native

if TYPE_CHECKING:
    from stator.dynamo.values.base import Value


@enum.unique
class CallCompletion(enum.Enum):
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


AGAIN = frozenset(
    (
        CallCompletion.LENGTH_AGAIN,
        CallCompletion.TRUTH_AGAIN,
        CallCompletion.COLLECTED,
        CallCompletion.REDUCED,
        CallCompletion.REDUCED_FROM,
    )
)
METHODS = {
    CallCompletion.METHOD: CallCompletion.RESULT,
    CallCompletion.READ_METHOD: CallCompletion.READ,
    CallCompletion.FOUND_METHOD: CallCompletion.FOUND,
}  # with a NULL -> without
BELOW = {  # so many of its operands lie below the result, and are gone when the instruction is finished
    CallCompletion.ANSWER: 2,
    CallCompletion.LEFT_ANSWER: 2,
    CallCompletion.RIGHT_ANSWER: 2,
    CallCompletion.IN_PLACE_ANSWER: 2,
    CallCompletion.READ: 1,
    CallCompletion.READ_METHOD: 1,
    CallCompletion.FOUND: 1,
    CallCompletion.FOUND_METHOD: 1,
    CallCompletion.MADE: 3,
    CallCompletion.DEFAULTED: 1,
    CallCompletion.COLLECTED: 2,
    CallCompletion.REDUCED: 1,
}
CAUGHT: dict[CallCompletion, type[Exception]] = {  # what the instruction makes something else of than an exception
    CallCompletion.ITEM: StopIteration,
    CallCompletion.COLLECTED: StopIteration,
    CallCompletion.FOUND: AttributeError,
    CallCompletion.FOUND_METHOD: AttributeError,
    CallCompletion.HAS: AttributeError,
    CallCompletion.DEFAULTED: AttributeError,
}
TOLD = frozenset(
    (CallCompletion.READ, CallCompletion.READ_METHOD)
)  # an AttributeError that leaves the function gets name and object


class Role(enum.Enum):
    """As what an instruction uses the object by way of which it enters a function."""

    CALL = "it is called"
    ATTRIBUTE = "an attribute of it is read, written or deleted"
    OPERAND = "it is subscripted, or an operator's operand, or asked for its length, truth, items and the like"


@dataclass(frozen=True, slots=True)
class CallSite:
    """How a frame was entered. below: what waits on the stack of the frame around until the instruction is finished."""

    finish: CallCompletion = CallCompletion.RESULT
    below: tuple[Value, ...] = ()
    by: Role = Role.CALL


DIRECTLY = CallSite()
WRITING = CallSite(CallCompletion.NOTHING, by=Role.ATTRIBUTE)
OPERATING = CallSite(by=Role.OPERAND)
STORING = CallSite(CallCompletion.NOTHING, by=Role.OPERAND)
DECIDING = CallSite(CallCompletion.TRUTH_AGAIN, by=Role.OPERAND)
TAKING_ITERATOR = CallSite(CallCompletion.ITERATOR, by=Role.OPERAND)
TAKING_ITEM = CallSite(CallCompletion.ITEM, by=Role.OPERAND)
CONTAINING = CallSite(CallCompletion.MEMBER, by=Role.OPERAND)
# built-in functions, by their id, which with one argument do no more than ask its class
ASKING: dict[int, CallSite] = {
    id(len): CallSite(CallCompletion.LENGTH, by=Role.OPERAND),
    id(bool): CallSite(CallCompletion.TRUTH, by=Role.OPERAND),
    id(iter): TAKING_ITERATOR,
    id(next): OPERATING,
    id(abs): OPERATING,
}
# the same of those that are given the name of an attribute, by how many arguments they are called with; not getattr()
# of two, which notes name and object in an AttributeError that leaves it
_BY_NAME: dict[tuple[int, int], CallSite] = {
    (id(getattr), 3): CallSite(CallCompletion.DEFAULTED, by=Role.ATTRIBUTE),
    (id(hasattr), 2): CallSite(CallCompletion.HAS, by=Role.ATTRIBUTE),
    (id(setattr), 3): CallSite(CallCompletion.NONE, by=Role.ATTRIBUTE),
    (id(delattr), 2): CallSite(CallCompletion.NONE, by=Role.ATTRIBUTE),
}
BY_LENGTH = {CallCompletion.TRUTH: CallCompletion.LENGTH_TRUTH, CallCompletion.TRUTH_AGAIN: CallCompletion.LENGTH_AGAIN}


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


def asked(function: Any, args: list[Value]) -> CallSite | None:
    """How a call of this built-in function enters a method of its first argument, or an attribute's function."""
    if len(args) == 1:
        return ASKING.get(id(function))
    way = _BY_NAME.get((id(function), len(args)))
    return replace(way, below=(args[2],)) if way is not None and way.finish is CallCompletion.DEFAULTED else way


def reading(owner: Value, *, as_method: bool, by_generator: bool) -> CallSite:
    """Reading an attribute. by_generator: by the code of one, which takes the result as it is."""
    if by_generator:
        return CallSite(CallCompletion.METHOD if as_method else CallCompletion.RESULT, by=Role.ATTRIBUTE)
    return CallSite(CallCompletion.READ_METHOD if as_method else CallCompletion.READ, (owner,), Role.ATTRIBUTE)


def or_found(way: CallSite, owner: Value) -> CallSite | None:
    """Reading an attribute of an object whose class has `__getattr__`, too. None: a function was called for it."""
    finish = _OR_FOUND.get(way.finish)
    return None if finish is None or way.by is not Role.ATTRIBUTE else CallSite(finish, (owner,), Role.ATTRIBUTE)


_OR_FOUND = {
    CallCompletion.RESULT: CallCompletion.FOUND,
    CallCompletion.READ: CallCompletion.FOUND,
    CallCompletion.METHOD: CallCompletion.FOUND_METHOD,
    CallCompletion.READ_METHOD: CallCompletion.FOUND_METHOD,
}


def write_finish(
    builder: CodeBuilder, finish: CallCompletion, instruction: Instruction, ended: Instruction | None = None
) -> None:
    """what lies below, the result of the function -> what the instruction leaves

    ended: where it goes on, with all of that on the stack, if it was for an item and there was none."""
    if finish in _FURTHER:
        builder.const(_how_it_goes_on(finish, instruction))
        builder.tuple(4)
        _call_on_top(builder, native.answered)
    elif finish is CallCompletion.ITEM:
        assert ended is not None
        builder.duplicate()
        _call_on_top(builder, native.was_missed)
        builder.jump_if_true(ended)
    elif finish in (CallCompletion.FOUND, CallCompletion.FOUND_METHOD):
        builder.const(instruction.argval)
        builder.tuple(3)
        _call_on_top(builder, native.found)
        if finish is CallCompletion.FOUND_METHOD:
            _write_method(builder)
    elif finish is CallCompletion.MEMBER:
        _call_on_top(builder, native.no_member if instruction.arg else native.member)
    else:
        _WRITERS[finish](builder)


def _how_it_goes_on(finish: CallCompletion, instruction: Instruction) -> tuple[Any, ...]:
    """For `native.answered`: the operator, the method that is asked next, whether of the left operand (None: none is
    asked; a function: the operator that is tried next), whether the truth of the answer is wanted."""
    symbol = instruction.argval
    plain, reflected = _SPECIAL_METHODS[symbol]
    following: dict[CallCompletion, tuple[Any, bool]] = {
        CallCompletion.ANSWER: (None, False),
        CallCompletion.LEFT_ANSWER: (reflected, False),
        CallCompletion.RIGHT_ANSWER: (plain, True),
        CallCompletion.IN_PLACE_ANSWER: (_PLAIN.get(symbol), False),
    }
    wants_truth = instruction.opname == "COMPARE_OP" and bool(instruction.flags & 16)  # 3.13
    return (symbol, *following[finish], wants_truth)


_FURTHER = frozenset(
    (CallCompletion.ANSWER, CallCompletion.LEFT_ANSWER, CallCompletion.RIGHT_ANSWER, CallCompletion.IN_PLACE_ANSWER)
)
_PLAIN = {f"{symbol}=": function for symbol, function in ARITHMETIC.items()}
_COMPARISONS = {"<": ("lt", "gt"), "<=": ("le", "ge"), "==": ("eq", "eq"), "!=": ("ne", "ne")}
_SPECIAL_METHODS: dict[str, tuple[str, str]] = {}
for _symbol, _function in ARITHMETIC.items():
    _name = _function.__name__.strip("_")
    _SPECIAL_METHODS[_symbol] = _SPECIAL_METHODS[f"{_symbol}="] = f"__{_name}__", f"__r{_name}__"
for _symbol, (_name, _other) in _COMPARISONS.items():
    _SPECIAL_METHODS[_symbol] = f"__{_name}__", f"__{_other}__"
    _SPECIAL_METHODS[_symbol.replace("<", ">")] = f"__{_other}__", f"__{_name}__"


def _write_method(builder: CodeBuilder) -> None:
    builder.null()
    if not VERSION.callee_first:
        builder.swap(2)


def _write_instance(builder: CodeBuilder) -> None:
    _call_on_top(builder, native.initialized)
    builder.pop()


def _write_read(builder: CodeBuilder) -> None:
    """object, result -> result"""
    builder.swap(2)
    builder.pop()


def _write_read_method(builder: CodeBuilder) -> None:
    _write_read(builder)
    _write_method(builder)


def _write_none(builder: CodeBuilder) -> None:
    builder.pop()
    builder.const(None)


def _write_has(builder: CodeBuilder) -> None:
    _call_on_top(builder, native.was_missed)
    builder.add("UNARY_NOT")


def _write_defaulted(builder: CodeBuilder) -> None:
    """default, result ->"""
    builder.tuple(2)
    _call_on_top(builder, native.otherwise)


def _write_made(builder: CodeBuilder) -> None:
    builder.tuple(4)
    _call_on_top(builder, native.made)


def _write_collected(builder: CodeBuilder) -> None:
    builder.tuple(3)
    _call_on_top(builder, native.resumed)


def _write_reduced(builder: CodeBuilder) -> None:
    """iterator, result -> an iterator that gives the result first"""
    builder.tuple(1)
    builder.swap(2)
    builder.tuple(2)
    _call_on_top(builder, native.resumed)


def _call_on_top(builder: CodeBuilder, function: Callable[..., Any]) -> None:
    """x -> function(x)"""
    builder.const_callee(function)
    builder.swap(2)
    builder.swap(3)
    builder.call(1)


def _calling(name: str) -> Callable[[CodeBuilder], None]:
    return lambda builder: _call_on_top(builder, getattr(native, name))


_WRITERS: dict[CallCompletion, Callable[[CodeBuilder], None]] = {
    CallCompletion.RESULT: lambda builder: None,
    CallCompletion.METHOD: _write_method,
    CallCompletion.READ: _write_read,
    CallCompletion.READ_METHOD: _write_read_method,
    CallCompletion.NOTHING: CodeBuilder.pop,
    CallCompletion.NONE: _write_none,
    CallCompletion.HAS: _write_has,
    CallCompletion.DEFAULTED: _write_defaulted,
    CallCompletion.INSTANCE: _write_instance,
    CallCompletion.LENGTH: _calling("a_length"),
    CallCompletion.LENGTH_AGAIN: _calling("a_length"),
    CallCompletion.LENGTH_TRUTH: _calling("is_filled"),
    CallCompletion.TRUTH: _calling("a_truth"),
    CallCompletion.TRUTH_AGAIN: _calling("a_truth"),
    CallCompletion.ITERATOR: _calling("an_iterator"),
    CallCompletion.MADE: _write_made,
    CallCompletion.COLLECTED: _write_collected,
    CallCompletion.REDUCED: _write_reduced,
    CallCompletion.REDUCED_FROM: lambda builder: None,
}
