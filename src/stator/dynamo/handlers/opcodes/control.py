"""Jumps, loops, returns and generators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stator.dynamo.bytecode import VERSION, Instruction
from stator.dynamo.graph.finalizers import check_iterator
from stator.dynamo.handlers.torch_calls.data_assertions import decide
from stator.dynamo.interpreter.chosen_numbers import chooses_number
from stator.dynamo.interpreter.frame import RETURNED, YIELDED, Frame
from stator.dynamo.interpreter.generators import GeneratorValue
from stator.dynamo.ir.prepared_code import opcode, pushes
from stator.dynamo.values.base import CaptureContext, Raised, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import ObjectValue


def _decide(frame: Frame, jump: Instruction) -> bool:
    value = frame.stack.pop()
    if chooses_number(frame, value, jump):
        return "_IF_TRUE" not in jump.opname  # does not jump
    return decide(frame, value, jump)


def _is_none(value: object) -> bool:
    return isinstance(value, ConstantValue) and value.value is None


@opcode("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if not decide(frame, value, instruction):
        frame.stack.append(value)
        frame.pc = instruction.target.index  # type: ignore[union-attr]


@opcode("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if decide(frame, value, instruction):
        frame.stack.append(value)
        frame.pc = instruction.target.index  # type: ignore[union-attr]


@opcode("FOR_ITER")
def for_iter(frame: Frame, instruction: Instruction) -> None:
    item = frame.context.loops.next_item(frame, frame.stack[-1])
    if item is not None:
        frame.stack.append(item)
        return
    target = instruction.target
    frame.pc = target.index  # type: ignore[union-attr]
    following = target.opname  # type: ignore[union-attr]
    if following == "END_FOR":  # 3.12 pops the iterator and a placeholder there; 3.13 has a POP_TOP behind it
        frame.pc += 1
        if VERSION.number >= (3, 13):
            frame.pc += 1
    check_iterator(frame, frame.stack.pop())


@opcode("END_FOR")
def end_for(frame: Frame, instruction: Instruction) -> None:
    raise unsupported("opcode", "END_FOR outside of a loop")


@opcode("RETURN_VALUE")
def return_value(frame: Frame, instruction: Instruction) -> object:
    frame.result = frame.stack.pop()
    return RETURNED


@opcode("RETURN_CONST")
def return_const(frame: Frame, instruction: Instruction) -> object:
    frame.result = frame.context.code_constant(instruction.argval)
    return RETURNED


# ---- generators ----


@opcode("RETURN_GENERATOR")
def return_generator(frame: Frame, instruction: Instruction) -> None:
    # A call makes the generator object. When it first resumes, its frame continues here, with a value on the stack that
    # the POP_TOP behind this instruction drops.
    if frame.context.frames[0] is frame:
        raise unsupported("generator", "compiling a generator function itself", "compile the code that consumes it")
    frame.stack.append(None)


@opcode("YIELD_VALUE")
def yield_value(frame: Frame, instruction: Instruction) -> object:
    frame.result = frame.stack.pop()
    return YIELDED


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(frame: Frame, instruction: Instruction) -> None:
    if not isinstance(frame.stack[-1], GeneratorValue):
        frame.stack.append(frame.context.iterator(frame.stack.pop()))


@opcode("SEND")
def send(frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    receiver = frame.stack[-1]
    if isinstance(receiver, GeneratorValue):
        item = receiver.resume(frame.context, value)
        result = receiver.returned
    else:
        item, result = _sent(frame.context, receiver, value)
    if item is not None:
        frame.stack.append(item)
        return
    done = result if result is not None else frame.context.constant(None)
    target = instruction.target
    frame.pc = target.index  # type: ignore[union-attr]
    if target.opname == "END_SEND":  # type: ignore[union-attr]
        frame.stack.append(done)
    else:
        frame.stack[-1] = done


def _sent(context: CaptureContext, receiver: Value, value: Value) -> tuple[Value | None, Value | None]:
    """The next item of an iterator that is no generator, or the value of its StopIteration."""
    if isinstance(receiver, ObjectValue) or not context.is_none(value):
        raise unsupported("generator", f"`yield from` {receiver.describe(context)}, which is no generator")
    context.ended_by = None
    item = context.next_item(receiver)
    if item is not None or context.ended_by is None:
        return item, None
    return None, context.get_attr(context.end_of_items().value, "value")


@opcode("END_SEND")
def end_send(frame: Frame, instruction: Instruction) -> None:
    done = frame.stack.pop()
    frame.stack[-1] = done


@opcode("CLEANUP_THROW")
def cleanup_throw(frame: Frame, instruction: Instruction) -> None:
    """An exception left the delegate of `yield from`; a StopIteration carries the delegate's result."""
    error = frame.stack[-1]
    if not issubclass(error.python_type(frame.context), StopIteration):
        raise Raised(error)
    del frame.stack[-3:]
    frame.stack.append(frame.context.constant(None))
    frame.stack.append(frame.context.get_attr(error, "value"))


@opcode("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "END_ASYNC_FOR", "BEFORE_ASYNC_WITH")
def asynchronous(frame: Frame, instruction: Instruction) -> None:
    raise unsupported("async", "asynchronous code")


def _jump(condition: Callable[[Frame, Instruction], bool], frame: Frame, instruction: Instruction) -> None:
    if condition(frame, instruction):
        frame.pc = instruction.target.index  # type: ignore[union-attr]


_JUMPS: dict[str, Callable[[Frame, Instruction], bool]] = {
    "JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_NO_INTERRUPT": lambda frame, at: True,
    "POP_JUMP_IF_FALSE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_BACKWARD_IF_FALSE": lambda frame, at: not _decide(frame, at),
    "POP_JUMP_IF_TRUE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_BACKWARD_IF_TRUE": _decide,
    "POP_JUMP_IF_NONE POP_JUMP_FORWARD_IF_NONE POP_JUMP_BACKWARD_IF_NONE": (
        lambda frame, at: _is_none(frame.stack.pop())
    ),
    "POP_JUMP_IF_NOT_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_NOT_NONE": (
        lambda frame, at: not _is_none(frame.stack.pop())
    ),
}
for _names, _condition in _JUMPS.items():
    opcode(*_names.split())(partial(_jump, _condition))
pushes({"GET_ITER": lambda frame, at: frame.context.iterator(frame.stack.pop())})
