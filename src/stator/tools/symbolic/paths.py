"""The ways that a program can take, by its questions about sizes: each run answers them by its example values, and
further runs take the other side of an answer.

`paths` of a search form a tree: a `Fork` for each question, and a run at each end. Never here: what a user reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stator.shapes.conditions import Condition, negate
from stator.shapes.environment import SizeFact

from .program import Observer, Program, Run
from .solver import contradict, solve


@dataclass(frozen=True, slots=True)
class Untried:
    """The other side of an answer that no run took. impossible: no sizes lead there."""

    impossible: bool


@dataclass(frozen=True, slots=True)
class Fork:
    """A question about sizes: what follows if its condition holds, and if not."""

    fact: SizeFact
    held: Fork | Run | Untried
    other: Fork | Run | Untried


Tree = Fork | Run | Untried


@dataclass(slots=True)
class Search:
    """The runs of one program, at most `most`."""

    program: Program
    most: int
    observer: Observer | None = None
    gradients: bool = False
    runs: list[Run] = field(default_factory=list)
    _impossible: set[tuple[Condition, ...]] = field(default_factory=set)

    @property
    def passing(self) -> list[Run]:
        return [run for run in self.runs if run.failure is None]

    def explore(self, values: Mapping[str, int], *, until_passing: bool = False) -> None:
        """Run with these values, then take the other side of each answer, last ones first.

        until_passing: stop at the first run without an error.
        """
        waiting = deque([(self._run(values), 0)])
        while waiting:
            run, start = waiting.popleft()
            if until_passing and run.failure is None:
                return
            for position in range(len(run.facts) - 1, start - 1, -1):
                if len(self.runs) >= self.most:
                    return
                turned = self.turn(run, position)
                if turned is not None:
                    waiting.append((turned, position + 1))
                    if until_passing and turned.failure is None:
                        return

    def turn(self, run: Run, position: int) -> Run | None:
        """Run on the other side of one answer; None if no values lead there."""
        conditions = [fact.condition for fact in run.facts[:position]]
        path = (*conditions, negate(run.facts[position].condition))
        if run.facts[position].condition in run.fixed:
            return None
        if contradict(run.ranges, path):
            self._impossible.add(path)
            return None
        values = solve(run.ranges, path, run.values)
        return None if values is None else self._run(values)

    def _run(self, values: Mapping[str, int]) -> Run:
        run = self.program.run(values, observer=self.observer, gradients=self.gradients)
        if run.failure is not None and run.failure.known:
            run.failure = replace(run.failure, known=self._fails_with_numbers(run, values))
        self.runs.append(run)
        return run

    def _fails_with_numbers(self, run: Run, values: Mapping[str, int]) -> bool:
        """Whether the program fails alike with numbers for sizes. If not, the error tells about symbols only."""
        assert run.failure is not None
        again = self.program.run(values, observer=self.observer, gradients=self.gradients, fixed=True).failure
        return again is not None and type(again.error) is type(run.failure.error)

    def tree(self) -> Tree:
        return self._grow(self.runs, 0, ())

    def _grow(self, runs: Sequence[Run], depth: int, path: tuple[Condition, ...]) -> Tree:
        first = runs[0]
        if depth == len(first.facts):
            return first
        fact = first.facts[depth]
        alike: list[Run] = []
        others: list[Run] = []
        for run in runs:
            same = depth < len(run.facts) and run.facts[depth].condition == fact.condition
            (alike if same else others).append(run)
        held, turned = (*path, fact.condition), (*path, negate(fact.condition))
        other: Any = Untried(turned in self._impossible)
        if others:
            other = self._grow_other(others, depth, turned)
        return Fork(fact, self._grow(alike, depth + 1, held), other)

    def _grow_other(self, runs: Sequence[Run], depth: int, path: tuple[Condition, ...]) -> Tree:
        """The side whose runs answered otherwise. A run whose ranges implied the answer did not record it."""
        recorded = [run for run in runs if depth < len(run.facts) and run.facts[depth].condition == path[-1]]
        return self._grow(recorded or runs, depth + 1 if recorded else depth, path)
