"""Which of the frames that are being followed a graph can end in together: the outermost, and each that a call of the
one before entered, so that it can go on behind that. codegen/nested_exit.py leaves them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from stator.dynamo.ir.prepared_code import must_stay_one_frame, prepare_code
from stator.dynamo.ir.resume import resumption_of

if TYPE_CHECKING:
    from .frame import Frame

MOST_FRAMES = 24  # that are left together; each of them is a call when the native operation runs


def left_together(frames: Sequence[Frame]) -> list[Frame]:
    """The outermost of these frames, and those inside that can be left with it."""
    found = [frames[0]]
    for frame in frames[1:MOST_FRAMES]:
        if not frame.called or frame.handlers or not _can_be_left(frame):
            break
        found.append(frame)
    # the operands of such an instruction are no part of the user's code
    while len(found) > 1 and _goes_on_with_another(found[-1]):
        found.pop()
    return found


def _goes_on_with_another(frame: Frame) -> bool:
    """Whether it is about to call what goes on with a function that it had called."""
    return frame.now == frame.program.finishes_call or frame.is_added()


def _can_be_left(frame: Frame) -> bool:
    program = frame.program
    code = user_code(program.code)
    if program.resumption is not None and not set(code.co_varnames).issuperset(frame.locals):
        return False  # there are values that belong on the stack, before it goes on
    if must_stay_one_frame(code, frame.globals.names) or has_shadowed_cell(program.code, frame.cells):
        return False
    if not _may_ask_for_super(code):
        return True
    return receiver_of(code) in frame.locals  # in the frame's first slot, where super() looks for it


def receiver_of(code: CodeType) -> str | None:
    """The variable for which a super() without arguments may ask its frame, in the user's code of this code."""
    code = user_code(code)
    return code.co_varnames[0] if code.co_argcount and _may_ask_for_super(code) else None


def _may_ask_for_super(code: CodeType) -> bool:
    return "super" in code.co_names or "__class__" in code.co_freevars


def has_shadowed_cell(code: CodeType, cells: Container[str]) -> bool:
    """Whether the frame, which has `cells`, is in an inlined comprehension (3.12) whose variable has the name of a free
    one: the two are told apart by their slots, which code behind a break would not have."""
    return any(name not in cells for name in code.co_freevars if name in code.co_varnames)


def user_code(code: CodeType) -> CodeType:
    """The code that the user wrote, of which this may be the rest behind a break."""
    resumption = resumption_of(code)
    return code if resumption is None else resumption.point.code


@cache
def calls_of_a_module() -> tuple[tuple[CodeType, int], ...]:
    """The frames between the call of a module without hooks and its forward, which capture leaves out: their code, and
    the instruction with which each calls the next."""
    found = []
    for function, callee in ((nn.Module._wrapped_call_impl, "_call_impl"), (nn.Module._call_impl, "forward_call")):
        assert isinstance(function, FunctionType)
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
