"""Checks of the data of tensors that raise where they fail: part of the graph, which fails then.

The frame begins anew by itself after that (graph_fallback.py), and raises what the program raises, at its line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from stator.dynamo.bytecode import Instruction
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.ir.prepared_code import PreparedCode
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.number_arithmetic import may_be_checked
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.interpreter.frame import Frame
    from stator.dynamo.values.base import CaptureContext

_MOST_INSTRUCTIONS = 200  # of code that makes an exception
_IF_FALSE = frozenset(("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE"))
_IF_TRUE = frozenset(("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE"))
_ONWARDS = frozenset(("JUMP_FORWARD", "JUMP_NO_INTERRUPT"))
_NEVER_RAISES = ("JUMP_BACKWARD", "RETURN", "YIELD", "SEND", "RERAISE", "INTERPRETER_EXIT", "END_ASYNC_FOR")


def decide(frame: Frame, value: Value, jump: Instruction) -> bool:
    """The truth of what a jump asks for. Where one way only raises, the graph checks that it is the other."""
    context = frame.context
    if isinstance(value, ConstantValue):
        return context.truth(value)
    wanted = _way_on(frame.program, jump)
    # the jump is looked at first: asking what is known of a tensor relies on the contents that it is known from
    if wanted is None or not may_be_checked(context, value):
        return context.truth(value)
    context.recorder.numbers.rely_on(value, wanted)
    return wanted


def jump_behind(frame: Frame, index: int) -> Instruction | None:
    """The conditional jump that takes what the instruction at `index` leaves, perhaps made a bool before."""
    instructions = frame.program.instructions
    index += 1
    if instructions[index].opname == "TO_BOOL":
        index += 1
    found = instructions[index]
    return found if found.opname in _IF_TRUE or found.opname in _IF_FALSE else None


def _way_on(program: PreparedCode, jump: Instruction) -> bool | None:
    """The truth with which the program goes on, where with the other one it raises; None where it is not so. That is
    found out once for each jump: a program may be followed many times."""
    if jump.index not in program.ways_on:
        program.ways_on[jump.index] = _found_way_on(program, jump)
    return program.ways_on[jump.index]


def _found_way_on(program: PreparedCode, jump: Instruction) -> bool | None:
    if jump.opname not in _IF_TRUE and jump.opname not in _IF_FALSE:
        return None
    assert jump.target is not None
    jumps_on, around = jump.opname in _IF_TRUE, _handlers_around(program, jump)
    behind, there = (_raises(program, index, around) for index in (jump.index + 1, jump.target.index))
    if behind is there:
        return None
    return jumps_on if behind else not jumps_on


def _handlers_around(program: PreparedCode, instruction: Instruction) -> set[int]:
    """Where an exception may go on in this frame that is raised at the instruction."""
    found: set[int] = set()
    while instruction.handler is not None and instruction.handler.target.index not in found:
        instruction = program.instructions[instruction.handler.target.index]
        found.add(instruction.index)
    return found


def _raises(program: PreparedCode, index: int, around: set[int]) -> bool:
    """Whether the instructions from here on end in `raise`, whichever way they take, if no exception comes before; and
    the exception gets to the handlers `around`, or out: those on the way to it may take it."""
    ways, seen = [(index, False)], {index}  # and whether that is in a handler on the way
    while ways:
        index, handling = ways.pop()
        instruction = program.instructions[index]
        following = [] if instruction.target is None else [instruction.target.index]
        if instruction.opname == "RAISE_VARARGS" or (handling and instruction.opname == "RERAISE"):
            handling, region = True, instruction.handler
            following = [region.target.index] if region is not None and region.target.index not in around else []
        elif instruction.opname.startswith(_NEVER_RAISES) or len(seen) > _MOST_INSTRUCTIONS:
            return False
        elif instruction.opname not in _ONWARDS:
            following.append(index + 1)
        ways += [(way, handling) for way in following if way not in seen]
        seen.update(following)
    return True


@calls(torch._check_tensor_all_with)
def _check_all(context: CaptureContext, error_type: Value, cond: Value, message: Value | None = None) -> Value:
    if isinstance(cond, TensorValue) and cond.fake.dtype is torch.bool and cond.fake.tracked_value() is None:  # type: ignore[attr-defined]
        every = context.record_function(torch.all, [cond], {})
        if may_be_checked(context, every):
            context.recorder.numbers.rely_on(every)
            return ConstantValue(None)
    function = cast(FunctionValue, context.known(torch._check_tensor_all_with))
    return context.inline(function, [error_type, cond, *([message] if message else [])], {})


@calls(torch._assert)
def _assert(context: CaptureContext, condition: Value, message: Value) -> Value:
    if isinstance(condition, TensorValue) and context.recorder.known_number(condition.fake) is None:
        if not may_be_checked(context, condition):
            raise unsupported("data-dependent-jump", "torch._assert on the data of a tensor")
        context.recorder.numbers.rely_on(condition)
    elif not context.truth(condition):
        raise context.raised_with(AssertionError, [message])
    return ConstantValue(None)


_aten = torch.ops.aten


@calls(torch._assert_async, _aten._assert_async, _aten._assert_async.default, _aten._assert_async.msg)
def _assert_async(context: CaptureContext, condition: Value, message: Value | None = None) -> Value:
    known = context.recorder.known_number(condition.fake) if isinstance(condition, TensorValue) else None
    if known is None and may_be_checked(context, condition):
        context.recorder.numbers.rely_on(condition)
    elif not known:
        raise unsupported("torch-error", "torch._assert_async of what does not hold")
    return ConstantValue(None)
