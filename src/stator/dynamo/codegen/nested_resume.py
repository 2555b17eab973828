"""Code for frames that a graph break leaves together: restorers rebuild the inner frames while the operation runs, and
joined functions resume all of them. nested_break.py chooses the frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import CellType, CodeType, FunctionType
from typing import Any

from stator.dynamo.guards.source import LocalSource
from stator.dynamo.host.hook import mark_as_ours
from stator.dynamo.host.native_status import native
from stator.dynamo.ir.capture_result import Break, BreakReason, CapturedFrame, InnerFrame
from stator.dynamo.ir.prepared_code import prepare_code
from stator.dynamo.ir.reconstruct_ir import FrameCell, Load, Recipe
from stator.dynamo.ir.resume import ResumePoint, Slot, closure_of, resume_code, resumption_of

from . import InnerCall, emit, slot_of
from .breaks import Hook, first_of_call

MakeContinuation = Callable[[dict[str, Any], ResumePoint], Any]


@dataclass(frozen=True, slots=True)
class RestorerParts:
    """The functions from which restorers are built; see `emit`. The makers take the frame's globals, too."""

    reason: BreakReason
    make_resume: MakeContinuation
    make_joined: MakeContinuation
    dispatch: Callable[[Any], Any]
    hook: Hook


def frame_restorer(frames: Sequence[InnerFrame], leaving: RestorerParts) -> Callable[..., Any]:
    """A function that takes the values of these frames, the outermost first, and restores each frame inside a call of
    the next; the last runs its instruction natively. Returns the continuation of the frames."""
    frame, rest = frames[0], frames[1:]
    callee = frame_restorer(rest, leaving) if rest else None
    point = _point_in_call(frame, rest) if rest else _point_before(frame)
    resumed = function_without_cells(resume_code(point, native.arrived, never_called), frame.namespace)
    inner = None
    if callee is not None:
        inner = InnerCall(callee, lambda after: leaving.make_joined(frame.namespace, after))
    emitted = emit(
        _stopped_at(resumed, point, frame, leaving.reason),
        None,
        make_resume=lambda after: leaving.make_resume(frame.namespace, after),
        dispatch=leaving.dispatch,
        hook=leaving.hook,
        inner=inner,
    )
    mark_as_ours(emitted)
    return native.Inner(function_without_cells(emitted, frame.namespace), len(point.closure))


def restorer_key(frames: Sequence[InnerFrame]) -> tuple[object, ...]:
    """The cache key of a frame restorer. (By ids, because distinct code objects compare equal.)"""
    return tuple((id(one.code), id(one.namespace), one.index, _point(one, one.index)) for one in frames)


def joined_function(namespace: dict[str, Any], point: ResumePoint, inner: Any) -> FunctionType:
    """A function that resumes a frame at `point`, behind a call. `inner` is the Continuation of the called frame, and
    its result is on top of the stack at `point`. The function takes its own values, then those of `inner`."""
    taken = _taken_by(inner)
    names = _of_function(taken, inner._function.__name__)
    inside = resumption_of(inner._function.__code__)
    varies = () if inside is None else inside.point.varying
    varying = (name for name, own in zip(names, taken, strict=True) if own in varies)
    whole = replace(point, stack=point.stack[:-1], inner=names, varying=(*point.varying, *varying))
    return function_without_cells(resume_code(whole, native.arrived, native.Inner(inner), native.going_on), namespace)


def inner_parameter_names(function: FunctionType, inner: Any) -> dict[str, str]:
    """Parameter of a joined function -> name of that parameter in `inner`, for the parameters passed to `inner`."""
    resumption = resumption_of(function.__code__)
    assert resumption is not None and resumption.point.inner is not None
    return dict(zip(resumption.point.inner, _taken_by(inner), strict=True))


def _taken_by(continuation: Any) -> tuple[str, ...]:
    """The names of a continuation's cells and arguments."""
    code = continuation._function.__code__
    return (*closure_of(code), *code.co_varnames[: code.co_argcount])


_OF = " of "


def _of_function(names: Sequence[str], function: str) -> tuple[str, ...]:
    """Readable parameter names for the variables of an inner function, which messages show; no variable can have such
    a name."""
    found: dict[str, None] = {}
    for name in names:
        wanted = name if _OF in name else f"{name}{_OF}{function}"
        while wanted in found:
            wanted += "'"
        found[wanted] = None
    return tuple(found)


def never_called() -> None:
    """A placeholder for a function that is unknown yet or never called directly."""
    raise AssertionError


def function_without_cells(code: CodeType, namespace: dict[str, Any]) -> FunctionType:
    """A function whose cells each call brings."""
    return FunctionType(code, namespace, code.co_name, None, tuple(CellType() for _ in code.co_freevars))


def _point_before(frame: InnerFrame) -> ResumePoint:
    """The position of the innermost frame: before the instruction that runs natively and its prefixes."""
    instructions = prepare_code(frame.code).instructions
    return _point(frame, first_of_call(instructions, frame.index))


def _point_in_call(frame: InnerFrame, called: Sequence[InnerFrame]) -> ResumePoint:
    count = sum(len(one.values()) for one in called)
    inner = tuple(f"{number}{_OF}those inside" for number in range(count))
    return replace(_point(frame, frame.index + 1), inner=inner)


def _point(frame: InnerFrame, index: int) -> ResumePoint:
    return ResumePoint(
        frame.code,
        index,
        tuple(map(slot_of, frame.stack)),
        tuple(frame.locals),
        tuple(name for name in frame.code.co_cellvars if name in frame.cells),
        private_cells=frame.private_cells,
    )


def _stopped_at(function: FunctionType, point: ResumePoint, frame: InnerFrame, reason: BreakReason) -> CapturedFrame:
    """The capture of resume code for `point` that breaks at its first instruction."""
    code = function.__code__
    resumption = resumption_of(code)
    assert resumption is not None
    stack: list[Recipe | None] = []
    for position, slot in enumerate(point.stack):
        loaded = Load(LocalSource(point.stack_parameter(position))) if slot is Slot.VALUE else None
        stack.append(frame.stack[position] if slot is Slot.LASTI else loaded)
    handed_on = tuple(Load(LocalSource(name)) for name in point.inner or ())
    exit_ = Break(
        resumption.indices.index(frame.index),
        tuple(stack),
        {name: Load(LocalSource(name)) for name in point.locals},
        {name: FrameCell(name) for name in point.closure},
        reason,
        inner=() if point.inner is None else (_called_with(frame, handed_on),),
        private_cells=point.private_cells,
    )
    return CapturedFrame(function, code, None, [], [], exit_, [])


def _called_with(frame: InnerFrame, values: tuple[Recipe, ...]) -> InnerFrame:
    return InnerFrame(frame.code, frame.namespace, 0, values)
