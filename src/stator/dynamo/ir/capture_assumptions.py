"""The knowledge that earlier attempts to capture a frame collected, as an immutable value. An attempt that cannot
finish raises Retry with assumptions that say strictly more, so the number of attempts is finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

from stator.base.errors import ConcurrentModification, Unsupported, UserPlace, VerificationError
from stator.dynamo.guards.guard import Guard
from stator.dynamo.guards.source import Source

from .capture_result import BreakReason

Loop = tuple[CodeType, int]
"""The user's code, and the index of the loop's FOR_ITER."""
Operation = tuple[str, UserPlace]
"""The name of a function or method of torch, and the line that calls it."""

_MOST_FAILED_GUARDS = 3
_STEPS_BACK = 8


@dataclass(frozen=True, slots=True)
class GraphEnd:
    """The graph has to end before this step of the capture, counted over all frames. `half_way` is a step of the
    outermost frame, half as far; captures use it when each such end leads to an earlier one. `guards`: what an error
    of torch in the next instruction relied on, so that calls without the error do not end there."""

    step: int
    reason: BreakReason
    half_way: int
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class CaptureAssumptions:
    """The assumptions of one capture attempt.

    changes: sources whose numbers, sizes, contents or tensors differ from call to call, with the number of changes
        seen: 0 if the capture expects a change.
    met: sources of the tensors that earlier versions relied on.
    unsteady: lines that relied on contents of tensors that changed often.
    fixed_sizes: why sizes are constants in this capture, however often they changed; empty if they may be symbols.
    known_sizes: the graph ends ahead of operators that make sizes or numbers depend on data.
    constants: sources of sizes that are constants, however often they changed, with the line that needs it.
    unrolled: loops whose number of turns changes between calls: whether capture unrolls the loop.
    turn_by_turn: graphs of loops whose number of turns changes have one turn, because the frame has many versions.
    relies_on_changes: the graph must not end, so it specializes on those numbers however often they changed.
    refused: operations that the backend cannot trace, with the kind and the reason: the graph ends ahead of them.
    called_apart: code of functions at whose call a graph without operators ends, rather than inside of the function;
        also code that resumes several frames, whose outermost frame is left at its call.
    leaves_small: a graph of this capture was found too small to gain, so that the frame's own code is to run.
    nested: the graph may end inside of functions that the frame called.
    says_compiling: the answer to a program that asks whether it is being compiled.
    error_when_compiling: the point where the program fails if the answer is yes.
    end: the point where the graph ends.
    moved_back: number of times an end turned out to be too late.
    failed_guards: guards that failed on the values they had been made from.
    """

    changes: Mapping[Source, int] = field(default_factory=dict)
    met: frozenset[Source] = frozenset()
    unsteady: frozenset[UserPlace] = frozenset()
    fixed_sizes: str = ""
    known_sizes: bool = False
    constants: Mapping[Source, UserPlace | None] = field(default_factory=dict)
    unrolled: Mapping[Loop, bool] = field(default_factory=dict)
    turn_by_turn: bool = False
    relies_on_changes: bool = False
    refused: Mapping[Operation, tuple[str, str]] = field(default_factory=dict)
    called_apart: frozenset[CodeType] = frozenset()
    leaves_small: bool = False
    nested: bool = True
    says_compiling: bool = True
    error_when_compiling: GraphEnd | None = None
    end: GraphEnd | None = None
    moved_back: int = 0
    failed_guards: tuple[str, ...] = ()

    def adds_to(self, earlier: CaptureAssumptions) -> bool:
        """Whether these assumptions say strictly more than `earlier`. Chains of such steps are finite."""
        return self._knowledge() > earlier._knowledge()

    def seen_changes(self) -> Mapping[Source, int]:
        """The number of changes of each source, as far as the capture takes changes into account."""
        return dict.fromkeys(self.changes, 1) if self.relies_on_changes else self.changes

    def _knowledge(self) -> tuple[int, ...]:
        end = (0, 0) if self.end is None else (1, -self.end.step)
        answered = self.error_when_compiling is not None
        fixed = bool(self.fixed_sizes)
        known = (
            len(self.failed_guards),
            self.leaves_small,
            self.known_sizes,
            fixed,
            len(self.constants),
            len(self.unrolled),
            len(self.refused),
            len(self.changes),
        )
        return *known, self.relies_on_changes, not self.nested, answered, *end

    def ending(self, end: GraphEnd) -> CaptureAssumptions:
        """The assumptions with this graph end. After many moves back, the next end is searched by halves."""
        moved = self.moved_back + (self.end is not None and end.step < self.end.step)
        if moved >= _STEPS_BACK:
            end = replace(end, step=end.half_way)
        return replace(self, end=end, moved_back=moved)

    def with_fixed_sizes(self, reason: str) -> CaptureAssumptions:
        return replace(self, fixed_sizes=reason, end=None, moved_back=0)

    def with_known_sizes(self) -> CaptureAssumptions:
        return replace(self, known_sizes=True, end=None, moved_back=0)

    def expecting_changes(self, sources: Iterable[Source]) -> CaptureAssumptions:
        return replace(self, changes={**dict.fromkeys(sources, 0), **self.changes}, end=None, moved_back=0)

    def with_constants(self, sizes: Mapping[Source, UserPlace | None]) -> CaptureAssumptions:
        return replace(self, constants={**self.constants, **sizes}, end=None, moved_back=0)

    def with_loop(self, loop: Loop, *, unrolled: bool) -> CaptureAssumptions:
        return replace(self, unrolled={**self.unrolled, loop: unrolled}, end=None, moved_back=0)

    def refusing(self, operation: Operation, kind: str, reason: str) -> CaptureAssumptions:
        return replace(self, refused={**self.refused, operation: (kind, reason)}, end=None, moved_back=0)

    def not_saying_compiling(self, end: GraphEnd) -> CaptureAssumptions:
        return replace(self, says_compiling=False, error_when_compiling=end)

    def not_nested(self) -> CaptureAssumptions:
        return replace(self, nested=False, end=None, moved_back=0)

    def leaving_small(self) -> CaptureAssumptions:
        return replace(self, leaves_small=True, end=None, moved_back=0)

    def relying_on_changes(self) -> CaptureAssumptions:
        return replace(self, relies_on_changes=True, says_compiling=True, error_when_compiling=None)

    def after_failed_guard(self, failure: str) -> CaptureAssumptions:
        """Another thread may change a value between capture and installation, so the frame is captured again. A guard
        that fails in the same way each time is a defect of stator. Raises after too many failures."""
        failures = (*self.failed_guards, failure)
        if len(failures) == _MOST_FAILED_GUARDS:
            kind = VerificationError if len(set(failures)) == 1 else ConcurrentModification
            raise kind(f"a guard does not hold for the values it was made from: {failure}")
        return replace(self, end=None, moved_back=0, failed_guards=failures)


def operation_name(target: Any) -> str:
    """The name of the function or method that a node calls."""
    return target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)


NO_ASSUMPTIONS = CaptureAssumptions()


class Retry(Exception):
    """The capture has to start again. `error` is the reason, if the program is the reason."""

    def __init__(self, assumptions: CaptureAssumptions, error: Unsupported | None = None) -> None:
        self.assumptions, self.error = assumptions, error
        super().__init__()

    def after(self, earlier: CaptureAssumptions) -> CaptureAssumptions:
        if not self.assumptions.adds_to(earlier):
            raise VerificationError("a retry of the capture adds no assumption, so the capture would not terminate")
        return self.assumptions
