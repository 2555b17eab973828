"""How a frame enters another one: at which kind of instruction, and what that makes of what the function gives. A frame
that is left there goes on by finishing the instruction. How frames are left is said in joining.py and emit/inner.py."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .bytecode import VERSION, Builder, Instruction
from .native_status import native

if TYPE_CHECKING:
    from .values.base import Value


class Finish(enum.Enum):
    """What an instruction does with the result of the function that it entered. Its operands are gone from the stack
    then, but for what is named here, which lies below the result."""

    RESULT = "the result is pushed"
    METHOD = "it is pushed, to be called: with a NULL"
    NOTHING = "it is dropped"
    INSTANCE = "it has to be None; the object below, which was made, stays"
    ANSWER = "it is what an operator gives of the operands below, but for NotImplemented; nothing else would be asked"


class Role(enum.Enum):
    """As what an instruction uses the object by way of which it enters a function."""

    CALL = "it is called"
    ATTRIBUTE = "an attribute of it is read, written or deleted"
    OPERAND = "it is subscripted, or an operator's operand"


@dataclass(frozen=True, slots=True)
class Way:
    """How a frame was entered. below: what waits on the stack of the frame around until the instruction is finished."""

    finish: Finish = Finish.RESULT
    below: tuple[Value, ...] = ()
    by: Role = Role.CALL


DIRECTLY = Way()
READING = Way(by=Role.ATTRIBUTE)
READING_METHOD = Way(Finish.METHOD, by=Role.ATTRIBUTE)
WRITING = Way(Finish.NOTHING, by=Role.ATTRIBUTE)
OPERATING = Way(by=Role.OPERAND)
STORING = Way(Finish.NOTHING, by=Role.OPERAND)


def write_finish(builder: Builder, finish: Finish, instruction: Instruction) -> None:
    """what lies below, the result of the function -> what the instruction leaves"""
    if finish is Finish.ANSWER:
        builder.const(instruction.argval)
        builder.tuple(4)
        _call_on_top(builder, native.answered)
    else:
        _WRITERS[finish](builder)


def _write_method(builder: Builder) -> None:
    builder.null()
    if not VERSION.callee_first:
        builder.swap(2)


def _write_instance(builder: Builder) -> None:
    _call_on_top(builder, native.initialized)
    builder.pop()


def _call_on_top(builder: Builder, function: Callable[..., Any]) -> None:
    """x -> function(x)"""
    builder.const_callee(function)
    builder.swap(2)
    builder.swap(3)
    builder.call(1)


_WRITERS: dict[Finish, Callable[[Builder], None]] = {
    Finish.RESULT: lambda builder: None,
    Finish.METHOD: _write_method,
    Finish.NOTHING: Builder.pop,
    Finish.INSTANCE: _write_instance,
}
