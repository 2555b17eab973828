"""raise, except, finally, with."""

from __future__ import annotations

from stator.dynamo.bytecode import Instruction
from stator.dynamo.interpreter.frame import Frame
from stator.dynamo.ir.prepared_code import opcode
from stator.dynamo.values.base import Raised, Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.exceptions import ExceptionValue


@opcode("RAISE_VARARGS")
def raise_varargs(frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(instruction.arg)  # type: ignore[arg-type]
    if not parts:
        if not frame.context.handled:
            frame.context.rely_on_nothing_handled()
            raise frame.context.raised(RuntimeError, "No active exception to reraise")
        raise Raised(frame.context.handled[-1])
    error = parts[0]
    if isinstance(error, ClassValue):
        error = frame.context.call(error, [], {})
    if not isinstance(error, ExceptionValue):
        raise unsupported("exception", f"raising {error.describe(frame.context)}")
    if error.source is not None:
        raise unsupported("exception", "raising an exception object that was there before")
    if len(parts) == 2:
        _check_cause(frame, parts[1])
    error.place = error.place or frame.place()
    raise Raised(error)


def _check_cause(frame: Frame, given: Value) -> None:
    """`raise ... from given`. The cause is never read: that breaks the graph ahead of the raise."""
    cause = frame.context.call(given, [], {}) if isinstance(given, ClassValue) else given
    if not isinstance(cause, ExceptionValue) and not frame.context.is_none(cause):
        raise unsupported("exception", f"raising an exception from {cause.describe(frame.context)}")


@opcode("PUSH_EXC_INFO")
def push_exc_info(frame: Frame, instruction: Instruction) -> None:
    error = frame.stack.pop()
    frame.begin_handler()
    frame.stack.append(frame.context.handled[-1] if frame.context.handled else frame.context.constant(None))
    frame.stack.append(error)
    frame.context.handled.append(error)


@opcode("POP_EXCEPT")
def pop_except(frame: Frame, instruction: Instruction) -> None:
    frame.stack.pop()
    frame.end_handler()
    frame.context.handled.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(frame: Frame, instruction: Instruction) -> None:
    wanted = frame.stack.pop()
    error = frame.stack[-1]
    options = list(frame.context.iterate(wanted)) if isinstance(wanted, TupleValue) else [wanted]
    if not all(isinstance(option, ClassValue) and issubclass(option.cls, BaseException) for option in options):
        raise unsupported("raise", "`except` with something that is no exception class")
    order = error.python_type(frame.context).__mro__  # `except` asks no __subclasscheck__
    frame.stack.append(frame.context.constant(any(option.real() in order for option in options)))


@opcode("RERAISE")
def reraise(frame: Frame, instruction: Instruction) -> None:
    error = frame.stack.pop()
    if not isinstance(error, ExceptionValue):
        raise unsupported("raise", "re-raising something that is not a known exception")
    raise Raised(error)


@opcode("BEFORE_WITH")
def before_with(frame: Frame, instruction: Instruction) -> None:
    manager = frame.stack.pop()
    exit_method = frame.context.get_attr(manager, "__exit__")
    enter_method = frame.context.get_attr(manager, "__enter__")
    entered = frame.context.call(enter_method, [], {})
    frame.stack += (exit_method, entered)


@opcode("WITH_EXCEPT_START")
def with_except_start(frame: Frame, instruction: Instruction) -> None:
    error = frame.stack[-1]
    exit_method = frame.stack[-4]
    cls = frame.context.known(error.python_type(frame.context))
    traceback = frame.context.get_attr(error, "__traceback__")
    frame.stack.append(frame.context.call(exit_method, [cls, error, traceback], {}))
