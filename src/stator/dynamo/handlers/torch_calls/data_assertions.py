"""Checks of tensor data that raise on failure, such as `if not ok.all(): raise`: the graph makes the check itself.

If the check fails, the frame begins anew as the program's own code (cache/graph_fallback.py), which raises the error.
"""

from __future__ import annotations

from typing import cast

import torch

from stator.dynamo.bytecode import Instruction
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.interpreter.frame import Frame
from stator.dynamo.interpreter.short_circuits import either_way
from stator.dynamo.ir.prepared_code import PreparedCode
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.number_arithmetic import may_be_checked
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue

_MOST_INSTRUCTIONS = 200  # of code that makes an exception
_IF_FALSE = frozenset(("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE"))
_IF_TRUE = frozenset(("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE"))
_ONWARDS = frozenset(("JUMP_FORWARD", "JUMP_NO_INTERRUPT"))
_NEVER_RAISES = ("JUMP_BACKWARD", "RETURN", "YIELD", "SEND", "RERAISE", "INTERPRETER_EXIT", "END_ASYNC_FOR")


def decide(frame: Frame, value: Value, jump: Instruction) -> bool:
    """The truth of a jump's condition. Where one of the two paths only raises, the graph checks that the program takes
    the other path. Where both meet with equal stacks, either truth is right."""
    context = frame.context
    context.loops.meet_test(frame, value, jump)
    if isinstance(value, ConstantValue):
        return context.truth(value)
    wanted = _truth_to_go_on(frame.program, jump)
    # examine the jump first: asking for a tensor's known value adds a guard on the contents that it was read from
    if wanted is None:
        free = either_way(frame, value, jump) if type(value) is SymbolicNumber else None
        return context.truth(value) if free is None else free
    if not may_be_checked(context, value):
        return context.truth(value)
    context.recorder.numbers.rely_on(value, wanted)
    return wanted


def jump_behind(frame: Frame, index: int) -> Instruction | None:
    """The conditional jump that consumes the result of the instruction at `index`, perhaps behind a TO_BOOL."""
    instructions = frame.program.instructions
    index += 1
    if instructions[index].opname == "TO_BOOL":
        index += 1
    found = instructions[index]
    return found if found.opname in _IF_TRUE or found.opname in _IF_FALSE else None


def _truth_to_go_on(program: PreparedCode, jump: Instruction) -> bool | None:
    """The truth with which the program goes on, if it raises with the other one; else None. Cached for each jump,
    because a program may be captured many times."""
    if jump.index not in program.truths_to_go_on:
        program.truths_to_go_on[jump.index] = _find_truth_to_go_on(program, jump)
    return program.truths_to_go_on[jump.index]


def _find_truth_to_go_on(program: PreparedCode, jump: Instruction) -> bool | None:
    if jump.opname not in _IF_TRUE and jump.opname not in _IF_FALSE:
        return None
    assert jump.target is not None
    jumps_on, around = jump.opname in _IF_TRUE, _handlers_around(program, jump)
    behind, there = (_raises(program, index, around) for index in (jump.index + 1, jump.target.index))
    if behind is there:
        return None
    return jumps_on if behind else not jumps_on


def _handlers_around(program: PreparedCode, instruction: Instruction) -> set[int]:
    """Indices of the handlers in this frame that an exception raised at the instruction may reach."""
    found: set[int] = set()
    while instruction.handler is not None and instruction.handler.target.index not in found:
        instruction = program.instructions[instruction.handler.target.index]
        found.add(instruction.index)
    return found


def _raises(program: PreparedCode, index: int, around: set[int]) -> bool:
    """Whether all paths from `index` end in a `raise` whose exception reaches the handlers `around` or leaves the
    frame. Handlers inside of the paths count as parts of these."""
    paths, seen = [(index, False)], {index}  # (next instruction, whether it is in a handler inside of the path)
    while paths:
        index, handling = paths.pop()
        instruction = program.instructions[index]
        following = [] if instruction.target is None else [instruction.target.index]
        if instruction.opname == "RAISE_VARARGS" or (handling and instruction.opname == "RERAISE"):
            handling, region = True, instruction.handler
            following = [region.target.index] if region is not None and region.target.index not in around else []
        elif instruction.opname.startswith(_NEVER_RAISES) or len(seen) > _MOST_INSTRUCTIONS:
            return False
        elif instruction.opname not in _ONWARDS:
            following.append(index + 1)
        paths += [(one, handling) for one in following if one not in seen]
        seen.update(following)
    return True


@calls(torch._check_tensor_all_with)
def _check_all(context: CaptureContext, error_type: Value, cond: Value, message: Value | None = None) -> Value:
    known = isinstance(cond, TensorValue) and context.recorder.known_value(cond.fake) is not None
    if isinstance(cond, TensorValue) and cond.fake.dtype is torch.bool and not known:
        every = context.record_function(torch.all, [cond], {})
        if may_be_checked(context, every):
            context.recorder.numbers.rely_on(every)
            return ConstantValue(None)
    function = cast(FunctionValue, context.known(torch._check_tensor_all_with))
    return context.inline(function, [error_type, cond, *([message] if message else [])], {})


_aten = torch.ops.aten


@calls(torch._assert_async, _aten._assert_async, _aten._assert_async.default, _aten._assert_async.msg)
def _assert_async(context: CaptureContext, condition: Value, message: Value | None = None) -> None:
    known = context.recorder.known_number(condition.fake) if isinstance(condition, TensorValue) else None
    if known is None and may_be_checked(context, condition):
        context.recorder.numbers.rely_on(condition)
    elif not known:
        raise unsupported("torch-error", "torch._assert_async of what does not hold")
