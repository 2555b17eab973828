"""A quantity of a program as a function of its sizes: one expression where a run's facts hold, a further run elsewhere.

Never here: what the quantity is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stator.base.errors import StatorError, UsageError, UserPlace
from stator.shapes.conditions import Condition
from stator.shapes.expr import Expr, Symbol

from .paths import Search
from .program import Observer, Program, Run


class ProgramError(StatorError):
    """A program fails, or cannot be followed, at the sizes that were asked for."""


@dataclass(slots=True)
class Pieces:
    """The runs of a program that one observer has watched.

    most: how many runs may look for sizes that the program accepts. fixed: each run has numbers in place of symbols.
    """

    program: Program
    observer: Observer
    gradients: bool
    most: int = 16
    fixed: bool = False
    _runs: list[Run] = field(default_factory=list)

    def first(self) -> Run:
        """A run for sizes that the program accepts. Raises ProgramError if none is found."""
        if not self._runs:
            search = Search(self.program, self.most, self.observer, self.gradients)
            search.explore(self.program.inputs.examples(), until_passing=True)
            if not search.passing:
                raise ProgramError(_report(search.runs[0]))
            self._runs.append(_widened(search, search.passing[0]))
        return self._runs[0]

    def at(self, values: Mapping[str, int]) -> Run:
        """The run that tells about these sizes. Raises UsageError for names that are missing, and ProgramError."""
        missing = self.program.inputs.dims.keys() - values.keys()
        if missing:
            raise UsageError(f"no value for {', '.join(sorted(missing))}")
        if not self.fixed:
            self.first()
        for run in self._runs:
            if _holds(run, values):
                return run
        run = self.program.run(values, observer=self.observer, gradients=self.gradients, fixed=self.fixed)
        if run.failure is not None:
            raise ProgramError(_report(run))
        self._runs.append(run)
        return run


def _widened(search: Search, run: Run) -> Run:
    """A passing run on the other side of an equation that the examples happen to meet: it holds for more sizes."""
    for position, fact in enumerate(run.facts):
        if getattr(fact.condition, "relation", "") == "==" and len(search.runs) < search.most:
            turned = search.turn(run, position)
            if turned is not None and turned.failure is None:
                return _widened(search, turned)
    return run


def evaluated(value: Any, run: Run, values: Mapping[str, int]) -> int:
    """An expression of a run at these sizes. Raises UsageError for sizes that depend on data without a value."""
    if not isinstance(value, Expr):
        return int(value)
    missing = {symbol.name for symbol in value.symbols} - values.keys()
    if missing:
        places = "; ".join(f"{fact} ({fact.origin})" for fact in run.assumptions)
        raise UsageError(f"no value for {', '.join(sorted(missing))}, which depends on data {places}".rstrip())
    return value.evaluate({Symbol(name): number for name, number in values.items()})


def _holds(run: Run, values: Mapping[str, int]) -> bool:
    """Whether the facts of a run hold; truths of data without a value count as false."""
    points = {symbol: values.get(symbol.name, 0) for symbol in run.ranges}
    fixed = all(values[name] == number for name, number in run.values.items() if Symbol(name) not in run.ranges)
    return (
        fixed
        and all(run.ranges[symbol][0] <= number <= run.ranges[symbol][1] for symbol, number in points.items())
        and all(fact.condition.holds(points) for fact in run.facts)
    )


def conditions_of(run: Run) -> list[tuple[Condition, UserPlace | None]]:
    """The answers about named sizes on which a run relies, and where they were asked for."""
    return [(fact.condition, fact.origin) for fact in run.facts]


def _report(run: Run) -> str:
    failure = run.failure
    assert failure is not None
    sizes = ", ".join(f"{name}={value}" for name, value in run.values.items())
    place = f"\n  {failure.places[-1]}" if failure.places else ""
    what = "fails" if failure.known else "cannot be followed"
    return f"the program {what} with {sizes or 'these inputs'}: {failure.text}{place}"
