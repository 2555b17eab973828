"""The error taxonomy: every error says what kind it is, where in the user's code, what was met, and what to do.

No error here is raised for control flow inside one module; those stay private to the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UserPlace:
    """A position in the user's program."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.filename}", line {self.line}, in {self.function}'


class StatorError(Exception):
    """Base of everything stator raises on purpose.

    origin: the node of the graph that was being traced when it was raised, where there is one.
    """

    origin: object = None


class UsageError(StatorError, ValueError):
    """The caller passed something that does not exist or does not fit (unknown backend, option, mode)."""


class CompileError(StatorError):
    """A stage failed. `stage` is a floor's name (dynamo, aot, inductor, ...); `place` the user's code, if known."""

    def __init__(self, stage: str, reason: str, *, place: UserPlace | None = None, hint: str | None = None) -> None:
        self.stage, self.reason, self.place, self.hint = stage, reason, place, hint
        super().__init__(_message(f"{stage} could not compile this", reason, place, hint))


class Unsupported(StatorError):
    """Something that capture cannot follow: the graph breaks here (or, under fullgraph=True, this is raised).

    `kind` is a stable identifier from the taxonomy in docs, such as "call-builtin" or "data-dependent-jump". `until`: a
    guard of dynamo's; once it does not hold any more, capturing is worth another try.
    """

    def __init__(
        self, kind: str, reason: str, *, place: UserPlace | None = None, hint: str | None = None, until: object = None
    ) -> None:
        self.kind, self.reason, self.place, self.hint, self.until = kind, reason, place, hint, until
        super().__init__(_message(f"cannot capture ({kind})", reason, place, hint))

    def at(self, place: UserPlace) -> Unsupported:
        """The same error with a place, unless it has one already."""
        if self.place:
            return self
        return Unsupported(self.kind, self.reason, place=place, hint=self.hint, until=self.until)


class RecompileError(StatorError, RuntimeError):
    """A frame would have to be compiled (again) where the program said that this must not happen.

    `frame` names it; `reasons` says for each compiled version which guard failed, with the old and the new value.
    """

    def __init__(self, frame: str, reasons: Sequence[str], asked_by: str) -> None:
        self.frame, self.reasons = frame, tuple(reasons)
        lines = [f"{frame} would have to be compiled{' again' if reasons else ''} under {asked_by}", *reasons]
        super().__init__("\n  ".join(lines))


class MissingToolchain(StatorError):
    """No working C/C++ compiler, or the C extension was not built."""


class VerificationError(StatorError):
    """An intermediate representation broke its own rules; a defect of stator."""


class WrongAssumption(StatorError):
    """What a graph relies on about a number that only the run can tell is not so in this call."""


class ChangedMeanwhile(StatorError):
    """Whenever a frame was compiled, other values had changed by the end of that: another thread works on them."""

    kind = "values that change meanwhile"


def _message(head: str, reason: str, place: UserPlace | None, hint: str | None) -> str:
    lines = [f"{head}: {reason}"]
    if place:
        lines.append(f"  {place}")
    if hint:
        lines.append(f"  Hint: {hint}")
    return "\n".join(lines)
