"""Peak memory of compiled graphs, forward and backward apart: as planned, and as torch's allocator measures it.

For `stator.explain(..., memory=True)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd import profiler

_MOST_NAMED = 5  # operators in a report

Run = Callable[..., Sequence[Any]]


@dataclass(slots=True)
class PartMemory:
    """One compiled graph: bytes at its peak, beside the memory that its caller holds anyway.

    predicted: by the plan, without scratch memory inside of libraries; None for a graph that runs operator by operator,
    which has no plan. measured: the most of all its calls; None if it did not run, or ran under a profiler of the
    caller's.
    """

    predicted: int | None = None
    measured: int | None = None


@dataclass(slots=True)
class StepMemory:
    """One captured graph. graph: its number among the captured ones.

    parts: "forward" and "backward", or "whole" where no gradients are needed or they are taken inside. Backwards for
    several sets of outputs count as one part, with the largest figures. saved: bytes that the backward received and
    that nothing else keeps alive (None: no backward ran). again: forward operators that a backward computes again
    instead of receiving their results.
    """

    graph: int
    saved: int | None = None
    again: tuple[str, ...] = ()
    parts: dict[str, PartMemory] = field(default_factory=dict)

    def observe(self, gm: fx.GraphModule, run: Run) -> Run:
        """Wrap a compiled graph so that its calls are measured."""
        part, peak = gm.meta.get("part", "whole"), gm.meta.get("peak")
        found = self.parts.setdefault(part, PartMemory())
        if peak is not None:
            found.predicted = max(found.predicted or 0, peak.bytes)
        arena = 0 if peak is None else peak.arena
        self.again = max(self.again, tuple(gm.meta.get("again", ())), key=len)
        others = frozenset(gm.meta.get("held", ()))
        boxed = bool(getattr(run, "boxed", False))

        def measured(*arguments: Any) -> Sequence[Any]:
            # a boxed graph frees its inputs after reading them; other inputs stay until the end
            given = _bytes(arguments[0] if boxed else arguments, others) if boxed or part == "backward" else 0
            if part == "backward":
                self.saved = max(self.saved or 0, given)
            if profiler._is_profiler_enabled:
                return run(*arguments)
            with _allocations() as events:
                results = run(*arguments)
            most = given + arena + _highest(events)
            found.measured = max(found.measured or 0, most)
            return results

        measured.boxed = boxed  # type: ignore[attr-defined]
        return measured

    def __str__(self) -> str:
        kept = "" if self.saved is None else f", which keeps {_megabytes(self.saved)} for its backward"
        lines = [f"graph {self.graph}{kept}"]
        if self.again:
            counts = Counter(self.again).most_common(_MOST_NAMED)
            rest = len(self.again) - sum(count for _, count in counts)
            named = [f"{count} {name}" for name, count in counts] + ([f"{rest} others"] if rest else [])
            lines.append(f"  computed again in the backward: {', '.join(named)}")
        for name, part in self.parts.items():
            measured = "not measured" if part.measured is None else f"{_megabytes(part.measured)} measured"
            predicted = "not predicted" if part.predicted is None else f"{_megabytes(part.predicted)} predicted"
            lines.append(f"  {name}: {predicted}, {measured}")
        if "forward" in self.parts and "backward" not in self.parts:
            lines.append("  backward: did not run")
        return "\n".join(lines)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB"


def _bytes(tensors: Sequence[torch.Tensor], others: frozenset[int]) -> int:
    """Bytes of the memory behind the tensors, each storage once, except at the positions `others`."""
    pieces = {}
    for position, tensor in enumerate(tensors):
        if position not in others:
            storage = tensor.untyped_storage()
            pieces[storage.data_ptr()] = storage.nbytes()
    return sum(pieces.values())


@contextmanager
def _allocations() -> Iterator[list[int]]:
    """Yields a list that receives, at the end, the bytes that torch's allocators gave (positive) and took back."""
    changes: list[int] = []
    with profiler.profile(use_kineto=True, profile_memory=True, use_cpu=True) as found:
        yield changes
    events = [event for event in found.kineto_results.events() if event.name() == "[memory]"]
    changes += [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def _highest(changes: Sequence[int]) -> int:
    alive = most = 0
    for change in changes:
        alive += change
        most = max(most, alive)
    return most
