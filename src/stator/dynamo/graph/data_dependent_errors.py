"""Operators that may fail on their data, inside a `try` or `with` of the program. Such an operator fails while the
graph runs, when no handler of the program is active. The frame then starts again eagerly (cache/graph_fallback.py), so
the graph must not have changed older memory. Also the translation of errors on fake tensors into reasons for breaks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import _GeneratorContextManager, nullcontext
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any

import torch

from stator.base.errors import Unsupported, UsageError
from stator.dynamo.bytecode import Instruction, decode
from stator.dynamo.host.naming import module_of
from stator.dynamo.ir.capture_assumptions import operation_name
from stator.dynamo.values.base import CaptureContext, Lazy, RunningFrame, Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.functions import BoundMethodValue
from stator.dynamo.values.modules import PythonModuleValue
from stator.dynamo.values.tensors.tensor import TensorValue

_NAMES = """
    cholesky cholesky_inverse inv inverse solve lstsq eig eigh eigvals eigvalsh svd svdvals pinv pinverse matrix_rank
    cond lu_factor lu ldl_factor tensorinv tensorsolve matrix_power multinomial
    cov gaussian_nll_loss one_hot binary_cross_entropy
"""
_MAY_FAIL = frozenset(_NAMES.split())
_NAMES_OF_INDEX_ERRORS = """
    getitem setitem index_select index_copy index_fill index_put index_reduce take put embedding nll_loss cross_entropy
"""
_NAMES_OF_RUNTIME_ERRORS = """
    index_add gather scatter scatter_add scatter_reduce masked_scatter embedding_bag multi_margin_loss
    multilabel_margin_loss max_unpool1d max_unpool2d max_unpool3d bincount repeat_interleave searchsorted histc
    histogram quantile nanquantile bernoulli normal poisson segment_reduce assert_async
    floordiv floor_divide div divide mod remainder fmod
"""
_ERRORS: dict[str, type[Exception]] = dict.fromkeys(_NAMES_OF_INDEX_ERRORS.split(), IndexError)
_ERRORS |= dict.fromkeys(_NAMES_OF_RUNTIME_ERRORS.split(), RuntimeError)
_SUBSCRIPTS = frozenset(("getitem", "setitem"))
_DIVISIONS = frozenset(("floordiv", "floor_divide", "div", "divide", "mod", "remainder", "fmod"))
# Instructions of a handler that have no effect on the program: they only restore the interpreter's stack.
_TIDYING = frozenset(("COPY", "POP_EXCEPT", "SWAP", "POP_TOP", "STORE_FAST", "CLEANUP_THROW"))
_ENDS = ("RERAISE", "CALL_INTRINSIC_1", "END_SEND", "JUMP_BACKWARD_NO_INTERRUPT")
# Instructions that compute the classes of an `except` clause, by the beginnings of their names.
_COMPUTING = ("LOAD_", "BUILD_", "CALL", "PRECALL", "PUSH_NULL", "KW_NAMES", "BINARY_", "COPY", "SWAP", "CACHE")
_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))
_CALL_OF_MODULE = torch.nn.Module._call_impl.__code__
_ONWARDS = frozenset(("PUSH_EXC_INFO", "NOP", "JUMP_FORWARD"))
_TAKEN: dict[str, Callable[[bool | None], bool]] = {
    "NONE": lambda value: value is None,
    "NOT_NONE": lambda value: value is not None,
    "TRUE": bool,
    "FALSE": operator.not_,
}  # by the end of a conditional jump's name


def may_fail(context: CaptureContext, target: Any, args: list[Value]) -> bool:
    """Whether torch's function or method raises for some matrices, weights or indices. Indices, divisors and operators
    of the program count only where a handler would end their error: most handlers around steps of training expect other
    errors, and should not end their graphs at each index."""
    name = operation_name(target)
    plain = name.removeprefix("linalg_").strip("_")
    if plain in _MAY_FAIL:
        return True
    if plain in _SUBSCRIPTS and not any(_is_index(one) for one in (args[1], *getattr(args[1], "items", ()))):
        return False
    if plain in _DIVISIONS and not (isinstance(args[-1], TensorValue) and all(map(_is_integral, args))):
        return False
    error = Exception if _is_of_program(target) else _ERRORS.get(plain)
    return error is not None and any(_ends(context, frame, error) for frame in context.frames)


def _is_index(value: Value) -> bool:
    return isinstance(value, TensorValue) and value.fake.dtype not in (torch.bool, torch.uint8)


def _is_integral(value: Value) -> bool:
    return not isinstance(value, TensorValue) or not (value.fake.is_floating_point() or value.fake.is_complex())


def _is_of_program(target: Any) -> bool:
    return getattr(target, "namespace", "aten") not in ("aten", "prim", "prims", "quantized", "mkldnn")


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


def _ends(context: CaptureContext, frame: RunningFrame, error: type[Exception]) -> bool:
    """Whether an `except`, or a context manager, around the current instruction may end the error. An `error` of class
    Exception may be of any class. A module's call in torch catches errors for hooks only, and raises them again."""
    instructions = frame.program.instructions
    if frame.program.code is _CALL_OF_MODULE:
        return False
    region = instructions[frame.now].handler
    while region is not None:
        at = region.target.index
        if instructions[at + 1].opname == "WITH_EXCEPT_START":
            ends = _suppresses(context, frame, region.depth - 1, error)
        else:
            ends = instructions[at].opname == "PUSH_EXC_INFO" and _catches(context, frame, at + 1, error)
        if ends:
            return True
        region = instructions[at].handler
    return False


def _catches(context: CaptureContext, frame: RunningFrame, at: int, error: type[Exception]) -> bool:
    """Whether an `except` clause from here on may catch the error."""
    instructions = frame.program.instructions
    while instructions[at].opname != "POP_TOP":  # with which `except:` begins
        found: list[Value | None] = []  # None: not known
        while (instruction := instructions[at]).opname.startswith(_COMPUTING):
            if instruction.opname == "LOAD_GLOBAL":
                found.append(frame.globals.load(context, instruction.argval))
            elif instruction.opname == "LOAD_ATTR" and found and isinstance(found[-1], PythonModuleValue):
                found[-1] = context.get_attr(found[-1], instruction.argval)
            elif not instruction.opname.startswith("BUILD_"):
                found.append(None)
            at += 1
        if instruction.opname != "CHECK_EXC_MATCH":
            return instruction.opname == "CHECK_EG_MATCH"  # otherwise a `finally`, or the end of the clauses
        classes = [one for value in found for one in (value.items if isinstance(value, TupleValue) else (value,))]
        if any(not isinstance(one, ClassValue) or issubclass(error, one.cls) for one in classes) or error is Exception:
            return True
        target = instructions[at + 1].target
        assert target is not None
        at = target.index
    return True


def _suppresses(context: CaptureContext, frame: RunningFrame, slot: int, error: type[Exception]) -> bool:
    """Whether the context manager whose `__exit__` lies in this slot may end the error. The frame of a generator that
    is a context manager tells, otherwise what `__exit__` returns."""
    leave = frame.stack[slot] if 0 <= slot < len(frame.stack) else None
    if not isinstance(leave, BoundMethodValue) or _is_of_torch(context, frame, slot):
        return False
    if leave.owner.python_type(context) is _GeneratorContextManager:
        generator = context.get_attr(leave.owner, "gen")
        waiting = getattr(generator, "frame", None)
        return waiting is None or _ends(context, waiting, error)
    code = getattr(leave.function, "code", None)
    return code is None or not _returns_nothing_true(code)


@lru_cache(maxsize=256)
def _returns_nothing_true(code: CodeType) -> bool:
    instructions = decode(code)
    targets = {id(one.target) for one in instructions}
    for before, instruction in pairwise(instructions):
        if instruction.opname == "RETURN_CONST" and instruction.argval:
            return False
        constant = before.opname == "LOAD_CONST" and not before.argval and id(instruction) not in targets
        if instruction.opname == "RETURN_VALUE" and not constant:
            return False
    return True


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
