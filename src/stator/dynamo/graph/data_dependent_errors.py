"""Operators that may fail on their data, inside a `try` or `with` of the program. Such an operator fails while the
graph runs, when no handler of the program is active. The frame then starts again eagerly (cache/graph_fallback.py), so
the graph must not have changed older memory. Also the translation of errors on fake tensors into reasons for breaks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from stator.base.errors import Unsupported, UsageError
from stator.dynamo.bytecode import Instruction
from stator.dynamo.host.naming import module_of
from stator.dynamo.ir.capture_assumptions import operation_name
from stator.dynamo.values.base import CaptureContext, Lazy, RunningFrame, unsupported
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.functions import BoundMethodValue

_NAMES = """
    cholesky cholesky_inverse inv inverse solve lstsq eig eigh eigvals eigvalsh svd svdvals pinv pinverse matrix_rank
    cond lu_factor lu ldl_factor tensorinv tensorsolve matrix_power multinomial
    cov gaussian_nll_loss one_hot binary_cross_entropy
"""
_MAY_FAIL = frozenset(_NAMES.split())
_NAMES_WITH_INDICES = """
    getitem setitem index_select index_add index_copy index_fill index_put take embedding embedding_bag nll_loss
    cross_entropy
"""
_MAY_RAISE_INDEX_ERROR = frozenset(_NAMES_WITH_INDICES.split())
# Instructions of a handler that have no effect on the program: they only restore the interpreter's stack.
_TIDYING = frozenset(("COPY", "POP_EXCEPT", "SWAP", "POP_TOP", "STORE_FAST", "CLEANUP_THROW"))
_ENDS = ("RERAISE", "CALL_INTRINSIC_1", "END_SEND", "JUMP_BACKWARD_NO_INTERRUPT")
# Instructions of a handler up to the first clause that fits.
_MATCHING = frozenset(
    ("PUSH_EXC_INFO", "LOAD_GLOBAL", "BUILD_TUPLE", "CHECK_EXC_MATCH", "POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE")
)
_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))
_ONWARDS = frozenset(("PUSH_EXC_INFO", "NOP", "JUMP_FORWARD"))
_TAKEN: dict[str, Callable[[bool | None], bool]] = {
    "NONE": lambda value: value is None,
    "NOT_NONE": lambda value: value is not None,
    "TRUE": bool,
    "FALSE": operator.not_,
}  # by the end of a conditional jump's name


def may_fail(context: CaptureContext, name: str) -> bool:
    """Whether torch's function or method of this name raises for some matrices, weights or indices. Indices count only
    where a handler names IndexError: most handlers around steps of training expect other errors, and should not end
    their graphs at each index."""
    plain = name.removeprefix("linalg_").strip("_")
    return plain in _MAY_FAIL or (plain in _MAY_RAISE_INDEX_ERROR and any(map(_expects_index_error, context.frames)))


def check_not_refused(context: CaptureContext, target: Any) -> None:
    """Raises Unsupported for an operation that the backend of an earlier capture could not trace."""
    refusal = context.refused.get((operation_name(target), context.place())) if context.refused else None
    if refusal is not None:
        raise unsupported(*refusal)


def is_noticed(context: CaptureContext) -> bool:
    """Whether a frame of the program would handle an error of the current operator, or run cleanup code."""
    return any(_handles(context, frame) for frame in context.frames)


def _handles(context: CaptureContext, frame: RunningFrame) -> bool:
    instructions = frame.program.instructions
    region = instructions[frame.now].handler
    while region is not None:
        at = region.target.index
        if instructions[at].opname == "PUSH_EXC_INFO" and instructions[at + 1].opname == "WITH_EXCEPT_START":
            if not _is_of_torch(context, frame, region.depth - 1):
                return True
        else:
            if instructions[at].opname == "PUSH_EXC_INFO":
                at = _without_doing(context, frame, at)
                leaves = instructions[at].opname == "RERAISE"
            else:
                at = _tidied(instructions, at)
                leaves = instructions[at].opname in _ENDS
            if not leaves:
                return True
        region = instructions[at].handler
    return False


def _expects_index_error(frame: RunningFrame) -> bool:
    """Whether an `except` around the current instruction names IndexError or its base class LookupError."""
    instructions = frame.program.instructions
    region = instructions[frame.now].handler
    while region is not None:
        start = at = region.target.index
        while instructions[at].opname in _MATCHING:
            if instructions[at].argval in ("IndexError", "LookupError"):
                return True
            target = instructions[at].target
            at = at + 1 if target is None else target.index
        region = instructions[start].handler
    return False


def _tidied(instructions: list[Instruction], at: int) -> int:
    while instructions[at].opname in _TIDYING:
        at += 1
    return at


def _without_doing(context: CaptureContext, frame: RunningFrame, at: int) -> int:
    """The first instruction with an effect in a `finally` that begins here, given the current variables. Follows
    `if variable:` and `if variable is None:` for variables that hold None, True or False."""
    instructions = frame.program.instructions
    while True:
        instruction = instructions[at]
        if instruction.opname in _ONWARDS:
            at = at + 1 if instruction.target is None else instruction.target.index
            continue
        behind = at + 2 if instructions[at + 1].opname == "TO_BOOL" else at + 1
        jump = instructions[behind]
        if instruction.opname not in _LOADS or not jump.opname.startswith("POP_JUMP_"):
            return at
        assert jump.target is not None
        known, value = _switch(context, frame, instruction)
        if not known or jump.target.index < at:
            return at
        at = jump.target.index if _TAKEN[jump.opname.partition("_IF_")[2]](value) else behind + 1


def _switch(context: CaptureContext, frame: RunningFrame, load: Instruction) -> tuple[bool, bool | None]:
    """Whether the variable is known to hold None, True or False; and its value."""
    value = frame.locals.get(load.argval)
    if type(value) is Lazy and (value.obj is None or type(value.obj) is bool):
        value = frame.locals[load.argval] = value.realize(context)
    if not isinstance(value, ConstantValue):
        return False, None
    # peek, because a guard on a value that changes would fail
    held = value.peek() if isinstance(value, SourcedConstant) else value.value
    return (True, value.value) if held is None or type(held) is bool else (False, None)


def _is_of_torch(context: CaptureContext, frame: RunningFrame, slot: int) -> bool:
    """Whether the context manager whose `__exit__` lies in this slot only switches a mode of torch. A failed graph has
    switched nothing."""
    leave = frame.stack[slot] if 0 <= slot < len(frame.stack) else None
    if not isinstance(leave, BoundMethodValue):
        return False
    kind = leave.owner.python_type(context)
    return kind is nullcontext or module_of(kind).partition(".")[0] == "torch"


def why_it_failed(error: Exception, target: Any) -> Unsupported:
    """The Unsupported error for an operation, or its name, that raised `error`."""
    if isinstance(error, UsageError):
        return unsupported("operator-rule", str(error))
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    if _NO_DATA in str(error):
        return unsupported("data-dependent-value", f"{name} looks at the data of a tensor")
    if refuses_symbols(error):
        return unsupported("data-dependent-value", f"{name} has to know sizes known in the run only")
    return unsupported("torch-error", f"{name} failed on tensors without data: {type(error).__name__}: {error}")


def refuses_symbols(error: Exception) -> bool:
    """Whether the error is one of C++ code that takes no symbolic sizes."""
    return any(text in str(error) for text in _NEEDS_NUMBERS)


_NEEDS_NUMBERS = (
    "expected to contain only concrete integers",
    "on tensor with symbolic sizes/strides",
    "Expected IntList but got GenericList",
)
_NO_DATA = "its data is not allocated yet"  # message of C++ code that reads the data of a tensor
