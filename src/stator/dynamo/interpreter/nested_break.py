"""Finds the frames in which a graph can end together: the outermost frame, and the frames of nested calls inside of it
that code can resume. codegen/nested_exit.py emits the exit."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from stator.dynamo.ir.prepared_code import must_stay_one_frame, prepare_code
from stator.dynamo.ir.resume import resumption_of

from .frame import Frame

MOST_FRAMES = 24  # each frame costs a native call when the operation at the break runs


def left_together(frames: Sequence[Frame]) -> list[Frame]:
    """The outermost frame, and the inner frames that can be left with it."""
    found = [frames[0]]
    for frame in frames[1:MOST_FRAMES]:
        if not frame.called or frame.handlers or not _can_be_left(frame):
            break
        found.append(frame)
    # the operands of an added instruction are no part of the user's code
    while len(found) > 1 and _goes_on_with_another(found[-1]):
        found.pop()
    return found


def _goes_on_with_another(frame: Frame) -> bool:
    """Whether the frame is about to call the continuation of a function that it had called."""
    return frame.now == frame.program.finishes_call or frame.is_added()


def _can_be_left(frame: Frame) -> bool:
    program = frame.program
    code = user_code(program.code)
    if program.resumption is not None and not set(code.co_varnames).issuperset(frame.locals):
        return False  # values that resume code has yet to put on the stack
    if must_stay_one_frame(code, frame.globals.names) or has_shadowed_cell(program.code, frame.cells):
        return False
    if not _may_ask_for_super(code):
        return True
    return receiver_of(code) in frame.locals  # super() looks in the frame's first slot


def receiver_of(code: CodeType) -> str | None:
    """The variable that super() without arguments may read from its frame, in the user's code behind this code."""
    code = user_code(code)
    return code.co_varnames[0] if code.co_argcount and _may_ask_for_super(code) else None


def _may_ask_for_super(code: CodeType) -> bool:
    return "super" in code.co_names or "__class__" in code.co_freevars


def has_shadowed_cell(code: CodeType, cells: Container[str]) -> bool:
    """Whether the frame, which has `cells`, is in an inlined comprehension (3.12) whose variable shares its name with a
    free variable. Only their slots distinguish the two, and resume code has other slots."""
    return any(name not in cells for name in code.co_freevars if name in code.co_varnames)


def user_code(code: CodeType) -> CodeType:
    """The user's code, of which `code` may be resume code."""
    resumption = resumption_of(code)
    return code if resumption is None else resumption.point.code


@cache
def calls_of_a_module() -> tuple[tuple[CodeType, int], ...]:
    """The frames between the call of a module without hooks and its forward, which capture skips: their code, and the
    instruction with which each frame calls the next."""
    found = []
    for function, callee in ((nn.Module._wrapped_call_impl, "_call_impl"), (nn.Module._call_impl, "forward_call")):
        assert type(function) is FunctionType
        instructions = prepare_code(function.__code__).instructions
        loads = [one for one in instructions if one.argval == callee and "LOAD" in one.opname]
        load = loads[0] if callee == "forward_call" else loads[-1]
        at = load.index
        while instructions[at].opname != "CALL_FUNCTION_EX":
            at += 1
        found.append((function.__code__, at))
    return tuple(found)


def namespace_of_modules() -> dict[str, Any]:
    return vars(nn.modules.module)
