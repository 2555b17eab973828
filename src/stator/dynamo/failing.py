"""Operators that may fail on the data they are given, and whether the program would notice: inside `try` or `with`.

Such an error comes while a graph runs, where no handler of the program is active. The frame then begins anew, by itself
(failed_graphs.py), which needs a graph that changes nothing that was there before.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from .naming import module_of
from .values.functions import BoundMethodValue

if TYPE_CHECKING:
    from .frame import Frame
    from .tracer import Tracer

_NAMES = """
    cholesky cholesky_inverse inv inverse solve lstsq eig eigh eigvals eigvalsh svd svdvals pinv pinverse matrix_rank
    cond lu_factor lu ldl_factor tensorinv tensorsolve matrix_power multinomial
    cov gaussian_nll_loss
"""
_MAY_FAIL = frozenset(_NAMES.split())
# What a handler may consist of without the program noticing: the interpreter puts its own stack in order and goes on.
_TIDYING = frozenset(("COPY", "POP_EXCEPT", "SWAP", "POP_TOP", "STORE_FAST", "CLEANUP_THROW"))


def may_fail(name: str) -> bool:
    """Whether a function or method of torch of this name raises for some matrices or weights."""
    return name.removeprefix("linalg_").strip("_") in _MAY_FAIL


def is_noticed(tracer: Tracer) -> bool:
    """Whether a frame of the program would catch an error of the operator under way, or do something as it passes."""
    return any(_handles(tracer, frame) for frame in tracer.frames)


def _handles(tracer: Tracer, frame: Frame) -> bool:
    instructions = frame.program.instructions
    region = instructions[frame.now].handler
    while region is not None:
        at = region.target.index
        if instructions[at].opname == "PUSH_EXC_INFO" and instructions[at + 1].opname == "WITH_EXCEPT_START":
            if not _is_of_torch(tracer, frame, region.depth - 1):
                return True
        else:
            while instructions[at].opname in _TIDYING:
                at += 1
            if instructions[at].opname not in ("RERAISE", "CALL_INTRINSIC_1", "END_SEND", "JUMP_BACKWARD_NO_INTERRUPT"):
                return True
        region = instructions[at].handler
    return False


def _is_of_torch(tracer: Tracer, frame: Frame, slot: int) -> bool:
    """Whether the context manager whose `__exit__` lies in this slot only switches something of torch: a graph that
    fails has switched nothing."""
    leave = frame.stack[slot] if 0 <= slot < len(frame.stack) else None
    if not isinstance(leave, BoundMethodValue):
        return False
    kind = leave.owner.python_type(tracer)
    return kind is nullcontext or module_of(kind).partition(".")[0] == "torch"
