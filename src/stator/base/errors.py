"""The error taxonomy: every error gives its kind, the user's file and line, the cause and the remedy.

Errors for control flow inside of one module are private to that module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UserPlace:
    """A position in the user's program. `why` it is of interest, if the line itself does not show it."""

    filename: str
    line: int
    function: str
    why: str = ""

    def __str__(self) -> str:
        text = f'File "{self.filename}", line {self.line}, in {self.function}'
        return f"{text}: {self.why}" if self.why else text


class StatorError(RuntimeError):
    """Base of all errors that stator raises on purpose, a RuntimeError like the errors of torch.compile.

    origin: the node that was being traced, if there is one.
    """

    origin: object = None


class UsageError(StatorError, ValueError):
    """The caller passed an unknown or unfit argument (backend, option, mode)."""


class CompileError(StatorError):
    """A stage failed. `stage` is a floor's name (dynamo, aot, inductor, ...); `place` the user's code, if known."""

    def __init__(self, stage: str, reason: str, *, place: UserPlace | None = None, hint: str | None = None) -> None:
        self.stage, self.reason, self.place, self.hint = stage, reason, place, hint
        super().__init__(_message(f"{stage} could not compile this", reason, place, hint))


class Unsupported(StatorError):
    """Capture cannot follow the program: the graph breaks here (or, under fullgraph=True, this is raised).

    `kind` is a stable identifier from the taxonomy in docs, such as "call-builtin" or "data-dependent-jump".
    """

    def __init__(self, kind: str, reason: str, *, place: UserPlace | None = None, hint: str | None = None) -> None:
        self.kind, self.reason, self.place, self.hint = kind, reason, place, hint
        super().__init__(_message(f"cannot capture ({kind})", reason, place, hint))

    def at(self, place: UserPlace) -> Unsupported:
        """Return the error with a place, unless it has one already."""
        if self.place:
            return self
        return Unsupported(self.kind, self.reason, place=place, hint=self.hint)


class RecompileError(StatorError):
    """A frame would have to be compiled (again) although the program forbids it.

    `frame` names it; `reasons` gives, for each compiled version, the failed guard with its old and new value.
    """

    def __init__(self, frame: str, reasons: Sequence[str], asked_by: str) -> None:
        self.frame, self.reasons = frame, tuple(reasons)
        lines = [f"{frame} would have to be compiled{' again' if reasons else ''} under {asked_by}", *reasons]
        super().__init__("\n  ".join(lines))


class ConstraintViolation(StatorError):
    """A promise of the program about a size (`stator.mark_dynamic`) is broken. `place`: the user's line that broke it,
    if known."""

    kind = "constraint-violation"

    def __init__(self, reason: str, *, place: UserPlace | None = None, hint: str | None = None) -> None:
        self.reason, self.place, self.hint = reason, place, hint
        super().__init__(_message("a size is less free than the program promised", reason, place, hint))


class MissingToolchain(StatorError):
    """No working C/C++ compiler, or the C extension was not built."""


class VerificationError(StatorError):
    """An intermediate representation violates its invariants; a defect of stator."""


class WrongAssumption(StatorError):
    """A graph's assumption about a number that is known only at run time is false in this call."""


class ConcurrentModification(StatorError):
    """Guarded values changed during each compilation of a frame: another thread modifies them."""

    kind = "values that change meanwhile"


def _message(head: str, reason: str, place: UserPlace | None, hint: str | None) -> str:
    lines = [f"{head}: {reason}"]
    if place:
        lines.append(f"  {place}")
    if hint:
        lines.append(f"  Hint: {hint}")
    return "\n".join(lines)
