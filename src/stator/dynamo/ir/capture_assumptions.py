"""What earlier attempts to capture a frame taught: an immutable value that the next attempt goes by. An attempt that
cannot come to its end raises Retry with assumptions that say strictly more, so that the attempts end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import CodeType

from stator.base.errors import ChangedMeanwhile, Unsupported, VerificationError
from stator.dynamo.guards.guard import Guard
from stator.dynamo.guards.source import Source

from .capture_result import BreakReason

_MOST_FAILED_GUARDS = 3
_STEPS_BACK = 8


@dataclass(frozen=True, slots=True)
class GraphEnd:
    """The graph has to end before this step of the capture, counted over all frames. `half_way`: a step of the
    outermost frame, half as far; for captures in which one such end leads to an earlier one again and again."""

    step: int
    reason: BreakReason
    half_way: int


@dataclass(frozen=True, slots=True)
class CaptureAssumptions:
    """What a capture goes by.

    changes: places whose numbers, contents or tensors are others from call to call, and how often each changed.
    relies_on_changes: the graph relies on numbers there, however often they changed, because it must not end.
    called_apart: code of functions at whose call a graph without operators ends, rather than inside of them; and code
        that goes on in several frames, of which the outermost is left at its call.
    nested: the graph may end inside of functions that the frame called.
    says_compiling: the answer to a program that asks whether it is compiled.
    error_when_compiling: where the program fails when the answer is yes.
    end: where the graph ends.
    moved_back: how often an end turned out to be too late.
    until: guards that the end depends on. Once one fails, the graph may not have to end there.
    failed_guards: guards that did not hold for the very values they were made from.
    """

    changes: Mapping[Source, int] = field(default_factory=dict)
    relies_on_changes: bool = False
    called_apart: frozenset[CodeType] = frozenset()
    nested: bool = True
    says_compiling: bool = True
    error_when_compiling: GraphEnd | None = None
    end: GraphEnd | None = None
    moved_back: int = 0
    until: tuple[Guard, ...] = ()
    failed_guards: tuple[str, ...] = ()

    def adds_to(self, earlier: CaptureAssumptions) -> bool:
        """Whether these assumptions say strictly more. A sequence of such steps is finite."""
        return self._knowledge() > earlier._knowledge()

    def seen_changes(self) -> Mapping[Source, int]:
        """How often places changed, as far as the capture goes by that."""
        return dict.fromkeys(self.changes, 1) if self.relies_on_changes else self.changes

    def _knowledge(self) -> tuple[int, ...]:
        end = (0, 0) if self.end is None else (1, -self.end.step)
        answered = self.error_when_compiling is not None
        return len(self.failed_guards), self.relies_on_changes, not self.nested, answered, *end

    def ending(self, end: GraphEnd, until: Guard | None = None) -> CaptureAssumptions:
        """The graph ends there. An end that moved back often is looked for by halves."""
        moved = self.moved_back + (self.end is not None and end.step < self.end.step)
        if moved >= _STEPS_BACK:
            end = replace(end, step=end.half_way)
        found = self.until if until is None else (*self.until, until)
        return replace(self, end=end, moved_back=moved, until=found)

    def not_saying_compiling(self, end: GraphEnd) -> CaptureAssumptions:
        return replace(self, says_compiling=False, error_when_compiling=end)

    def not_nested(self) -> CaptureAssumptions:
        return replace(self, nested=False, end=None, moved_back=0, until=())

    def relying_on_changes(self) -> CaptureAssumptions:
        return replace(self, relies_on_changes=True, says_compiling=True, error_when_compiling=None)

    def after_failed_guard(self, failure: str) -> CaptureAssumptions:
        """Another thread may change a value between capture and installation, so the frame is captured anew. A guard
        that fails in one way each time is a defect of stator. Raises for too many failures."""
        failures = (*self.failed_guards, failure)
        if len(failures) == _MOST_FAILED_GUARDS:
            kind = VerificationError if len(set(failures)) == 1 else ChangedMeanwhile
            raise kind(f"a guard does not hold for the very values it was made from: {failure}")
        return replace(self, end=None, moved_back=0, until=(), failed_guards=failures)


NO_ASSUMPTIONS = CaptureAssumptions()


class Retry(Exception):
    """A capture has to begin anew. `error` says why, where the program is the reason."""

    def __init__(self, assumptions: CaptureAssumptions, error: Unsupported | None = None) -> None:
        self.assumptions, self.error = assumptions, error
        super().__init__()

    def after(self, earlier: CaptureAssumptions) -> CaptureAssumptions:
        if not self.assumptions.adds_to(earlier):
            raise VerificationError("a frame would be captured anew, and nothing was learnt")
        return self.assumptions
