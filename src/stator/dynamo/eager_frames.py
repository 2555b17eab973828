"""Decides which frames run eagerly: frames that are not captured, and frames that gain nothing from emitted code."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import CodeType, FunctionType

from stator.base import counters, logs
from stator.base.errors import UserPlace

from .bytecode import Instruction, decode, reachable
from .cache.entry import CompiledFrame
from .guards.global_state import read_global_state
from .guards.guard import Guard, GuardKind
from .guards.source import FunctionSource
from .host.break_kinds import break_hint
from .host.compile_directives import made_by_torch_compile
from .interpreter.nested_break import has_shadowed_cell, receiver_of, user_code
from .ir.capture_result import Break, BreakReason, CapturedFrame
from .ir.prepared_code import RENAME, TWO_OF_A_NAME, has_two_of_a_name, must_stay_one_frame
from .ir.resume import resumption_of
from .ir.torch_state import forward_ad_guard, in_forward_ad, in_function_transform

_OF_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SUSPENDABLE = _OF_ASYNC | inspect.CO_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def uncaptured_frame(function: FunctionType, *, fullgraph: bool) -> CompiledFrame | None:
    """The CompiledFrame of a frame that is not captured; None if the frame is captured. Raises Unsupported for
    generators and coroutines, and under fullgraph."""
    code = function.__code__
    if code.co_flags & _SUSPENDABLE:
        kind = "async" if code.co_flags & _OF_ASYNC else "generator"
        what = f"{code.co_qualname} is suspended and resumed by its callers"
        raise BreakReason(kind, what, _place(code), break_hint(kind, None)).as_error()
    reason = _reason_to_leave(function)
    if reason is not None:
        if fullgraph:
            raise reason.as_error()
        logs.log("graph_breaks", "%s", reason)
        counters.count("graph_breaks")
        return CompiledFrame((), None, followed=True)
    now = read_global_state()
    if now.observed or in_function_transform() or in_forward_ad():
        # Under vmap, grad and the like tensors are wrapped, and a mode that counts or traces operators has to see the
        # program's own operators. In this state only, the frame's callees run eagerly, too.
        state = Guard(FunctionSource(), GuardKind.GLOBAL_STATE, now)
        return CompiledFrame((state, forward_ad_guard()), None)
    return None


def _reason_to_leave(function: FunctionType) -> BreakReason | None:
    code = function.__code__
    # torch.compile sets its own frame hook and removes it; a break in between would leave the hook set
    if made_by_torch_compile(function):
        what = f"{code.co_qualname} belongs to torch's own compiler"
        return BreakReason("disabled", what, _place(code), break_hint("disabled", None))
    if has_two_of_a_name(code):
        return BreakReason("call", f"{code.co_qualname}, {TWO_OF_A_NAME}", _place(code), RENAME)
    return None


def _place(code: CodeType) -> UserPlace:
    return UserPlace(code.co_filename, code.co_firstlineno, code.co_qualname)


# ---- captures ----


def worth_emitting(captured: CapturedFrame) -> bool:
    """Whether emitted code gains something over the frame's own code, and can replace it."""
    exit_ = captured.exit
    if not isinstance(exit_, Break):
        return captured.graph is not None or not captured.runs_original
    if exit_.reason.kind == "long-loop" or is_watched(captured):
        return False  # a long loop would be captured again and again; or something reads the frame's variables
    code = user_code(captured.code)
    if not set(code.co_varnames).issuperset(exit_.locals):
        return False  # a value on the stack at the previous break cannot even be represented
    if _asks_in_vain_for_super(captured, exit_) or _is_within_an_instruction(captured, exit_):
        return False
    return not has_shadowed_cell(captured.code, exit_.cells) and not must_stay_one_frame(
        code, captured.function.__globals__
    )


def is_watched(captured: CapturedFrame) -> bool:
    """Whether a debugger or a function is about to inspect this frame and its callees."""
    return isinstance(captured.exit, Break) and captured.exit.reason.kind == "debugger"


def _asks_in_vain_for_super(captured: CapturedFrame, exit_: Break) -> bool:
    """Whether a super() behind the break would look for its receiver in the frame's first slot, which resume code
    lacks: the receiver lives in a cell, was deleted, or never existed."""
    code = user_code(captured.code)
    if "super" not in code.co_names:
        return False
    receiver = receiver_of(code)
    if receiver in exit_.locals and receiver not in exit_.cells:
        return False
    instructions = decode(captured.code)
    return any(
        one.argval == "super" and not _is_given_its_receiver(instructions, one.index)
        for one in reachable(instructions, instructions[exit_.index])
    )


def _is_given_its_receiver(instructions: Sequence[Instruction], at: int) -> bool:
    """Whether `super` is loaded for an attribute, as in `super().name`, where code pushes class and receiver (3.12)."""
    return any(one.opname == "LOAD_SUPER_ATTR" for one in instructions[at + 1 : at + 4])


def _is_within_an_instruction(captured: CapturedFrame, exit_: Break) -> bool:
    """Whether, in resume code, the break is inside of the added instructions that replace one user instruction."""
    resumption = resumption_of(captured.code)
    if resumption is None or exit_.inner or resumption.indices[exit_.index] is not None:
        return False
    return resumption.indices[exit_.index + 1] is None  # behind the last added instruction nothing is left to do
