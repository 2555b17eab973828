"""`stator.check(model, *inputs)`: does a program run for all sizes of its inputs, and if not, where does it fail?

Runs on fake tensors; `symbolic/` takes the runs. Here their outcome becomes what a user reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils import _pytree as pytree

from stator.base.errors import StatorError, UserPlace
from stator.shapes.conditions import Condition, negate, text_of
from stator.shapes.expr import Expr, Symbol

from .symbolic.mismatch import describe
from .symbolic.paths import Fork, Search, Tree, Untried
from .symbolic.places import source_line
from .symbolic.program import Failure, Program, Run, TensorShape
from .symbolic.solver import Ranges, bound_of, implies, normal
from .symbolic.specs import Dim


class ShapeError(StatorError):
    """A program that was checked fails for its inputs' sizes."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on named sizes, the line that asks for it, and what happens otherwise.

    when: the answers to earlier questions under which the condition is needed; empty if always.
    otherwise: the error of the program if the condition does not hold; None if that side was not tried.
    """

    condition: Condition
    place: UserPlace | None
    when: tuple[Condition, ...] = ()
    otherwise: str | None = None

    @property
    def text(self) -> str:
        return text_of(self.condition) + "".join(f" where {text_of(condition)}" for condition in self.when)

    def __str__(self) -> str:
        lines = [self.text]
        if self.place is not None:
            lines += [f"  {self.place}", f"    {source_line(self.place)}"]
        lines.append(f"  otherwise {self.otherwise}" if self.otherwise else "  otherwise: not tried")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CheckedError:
    """The first error of a program. operation: the torch function with its symbolic shapes, where one failed.

    places: the program's lines on the stack, outermost first; the last one failed. module: the name of the innermost
    module that ran.
    """

    message: str
    operation: str | None
    places: tuple[UserPlace, ...]
    module: str | None
    when: tuple[Condition, ...] = ()

    @property
    def place(self) -> UserPlace | None:
        return self.places[-1] if self.places else None

    def __str__(self) -> str:
        lines = []
        if self.place is not None:
            lines += [str(self.place), f"  {source_line(self.place)}"]
        if self.operation is not None:
            lines.append(self.operation)
        if self.operation is None or not self.operation.endswith(self.message):
            lines.append(self.message)
        if self.module:
            lines.append(f"in the module {self.module}")
        if self.when:
            lines.append("where " + ", ".join(map(text_of, self.when)))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What is known about a program for all sizes of its inputs. Prints as a report.

    ok: True if it runs for all sizes for which the constraints hold; False if it fails for all sizes; None if neither
        could be shown, for the reason `unknown`.
    error: the first error, if no run passed.
    constraints: conditions on the named sizes, each from one line of the program.
    assumptions: conditions on sizes that depend on data, and where the program relies on them.
    outputs: the results, with `TensorShape` in place of tensors.
    runs: how many ways through the program were taken. complete: whether these are all.
    truths: the truths that the program reads from data, by name, and where. A check takes both ways.
    """

    ok: bool | None
    error: CheckedError | None
    unknown: str | None
    constraints: tuple[Constraint, ...]
    assumptions: tuple[Constraint, ...]
    outputs: Any
    runs: int
    complete: bool
    dims: Mapping[str, Dim]
    truths: Mapping[str, UserPlace | None]

    def raise_if_failed(self) -> CheckResult:
        """Raise ShapeError unless the check is ok; return the result."""
        if self.ok is not True:
            raise ShapeError(str(self))
        return self

    def __str__(self) -> str:
        ranges = ", ".join(_range_text(dim) for dim in self.dims.values())
        if self.error is not None:
            head = "fails" if self.ok is False else f"not known ({self.unknown})"
            return "\n".join([f"{head} for {ranges or 'these inputs'}", _indented(str(self.error)), *self._legend()])
        if self.ok is None:
            return f"not known for {ranges or 'these inputs'}\n{_indented(str(self.unknown))}"
        lines = [f"ok for {ranges or 'these inputs'}" + (", if" if self.constraints else "")]
        tried_first = sorted(self.constraints, key=lambda constraint: constraint.otherwise is None)
        lines += [_indented(str(constraint)) for constraint in tried_first]
        if self.assumptions:
            lines.append("if the data make this so")
            lines += [_indented(str(one)) for one in self.assumptions]
        lines += self._legend()
        lines.append(f"outputs: {_output_text(self.outputs)}")
        if not self.complete:
            lines.append(f"({self.runs} ways through the program were taken; there are more)")
        return "\n".join(lines)

    def _legend(self) -> list[str]:
        conditions = [*(one.condition for one in (*self.constraints, *self.assumptions))]
        conditions += [answer for one in self.constraints for answer in one.when]
        conditions += self.error.when if self.error is not None else ()
        named = {symbol.name for condition in conditions for symbol in condition.symbols}  # type: ignore[union-attr]
        return [f"{name} is a truth that depends on data: {self.truths[name]}" for name in self.truths if name in named]


def check(
    model: Callable[..., Any], *inputs: Any, dims: Mapping[Any, Any] | None = None, paths: int = 16, **named: Any
) -> CheckResult:
    """Check that a program fits together for all sizes of its inputs, without data and without compiling.

    model: a module or any callable. It runs, in Python, on tensors without data, under no_grad and in its present mode
        (train or eval).
    inputs, named: its arguments, with a `stator.TensorSpec` in place of each tensor whose sizes have names, and a
        `stator.Dim` in place of an int that stands for all ints of a range. Other values are passed as they are.
    dims: names for the dimensions of tensors among the arguments, by position or parameter: `{"x": ("batch", None)}`.
        Their sizes are the examples to begin with. A name for an int argument makes it a symbol.
    paths: the most runs. Each takes another way through the program's branches on sizes.

    Raises UsageError for names that do not fit the arguments.
    """
    program = Program(model, inputs, named, dims)
    search = Search(program, paths)
    search.explore(program.inputs.examples())
    return _result(search)


def _result(search: Search) -> CheckResult:
    tree = search.tree()
    passing = search.passing
    truths = {symbol.name: place for run in search.runs for symbol, place in run.truths.items()}
    common: dict[str, Any] = {
        "runs": len(search.runs), "complete": _complete(tree), "dims": search.program.inputs.dims, "truths": truths
    }  # fmt: skip
    unknown = next((run for run in search.runs if run.failure is not None and not run.failure.known), None)
    nothing: dict[str, Any] = {"constraints": (), "assumptions": (), "outputs": None}
    if not passing:
        if unknown is not None:
            return CheckResult(None, None, _unknown_text(unknown), **nothing, **common)
        first = _error(search.program, search.runs[0])
        if common["complete"]:
            return CheckResult(False, replace(first, when=()), None, **nothing, **common)
        return CheckResult(None, first, f"none of {len(search.runs)} tried ways passes", **nothing, **common)
    ranges = {symbol: bounds for run in search.runs for symbol, bounds in run.ranges.items()}
    constraints = _without_implied(ranges, _constraints(tree, ranges))
    data = [one for one in constraints if not one.condition.symbols.isdisjoint(map(Symbol, truths))]  # type: ignore[union-attr]
    run = passing[0]
    return CheckResult(
        True,
        None,
        None,
        constraints=tuple(one for one in constraints if one not in data),
        assumptions=(*data, *(Constraint(fact.condition, fact.origin) for fact in run.assumptions)),
        outputs=pytree.tree_map(lambda leaf: _simplified(leaf, run, constraints), run.outputs),
        **common,
    )


def _constraints(tree: Tree, ranges: Ranges) -> list[Constraint]:
    """The conditions under which the runs of a tree pass. Those that one side of a fork needs hold where its answer is
    so; those that both sides need hold always."""
    if not isinstance(tree, Fork):
        return []
    condition, place = normal(tree.fact.condition, ranges), tree.fact.origin
    if isinstance(tree.other, Untried):
        own = [] if tree.other.impossible else [Constraint(condition, place)]
        return own + _constraints(tree.held, ranges)
    if not _passes(tree.other):
        return [Constraint(condition, place, (), _reason(tree.other, place)), *_constraints(tree.held, ranges)]
    if not _passes(tree.held):
        return [Constraint(negate(condition), place, (), _reason(tree.held, place)), *_constraints(tree.other, ranges)]
    held, other = _constraints(tree.held, ranges), _constraints(tree.other, ranges)
    shared = [one for one in held if one in other]
    apart = [
        replace(one, when=(answer, *one.when))
        for side, answer in ((held, condition), (other, negate(condition)))
        for one in side
        if one not in shared
    ]
    return shared + apart


def _ends(tree: Tree) -> Iterator[Run | Untried]:
    if isinstance(tree, Fork):
        yield from _ends(tree.held)
        yield from _ends(tree.other)
    else:
        yield tree


def _passes(tree: Tree) -> bool:
    return any(isinstance(end, Run) and end.failure is None for end in _ends(tree))


def _complete(tree: Tree) -> bool:
    return not any(isinstance(end, Untried) and not end.impossible for end in _ends(tree))


def _reason(tree: Tree, place: UserPlace | None) -> str | None:
    for end in _ends(tree):
        if isinstance(end, Run) and end.failure is not None:
            failed = end.failure.places[-1] if end.failure.places else None
            elsewhere = f"\n    {failed}\n      {source_line(failed)}" if failed not in (None, place) else ""
            unclear = "" if end.failure.known else "not known: "  # what failed are the symbols
            return f"{unclear}{_operation(end.failure, end) or end.failure.text}{elsewhere}"
    return None


def _without_implied(ranges: Ranges, constraints: Sequence[Constraint]) -> list[Constraint]:
    """Drop conditions that follow from ranges or from others, and answers that do not matter for a condition."""
    kept: list[Constraint] = []
    for one in constraints:
        # an answer does not matter if the condition holds anyway where the answer is another
        when = tuple(answer for answer in one.when if not implies(ranges, [negate(answer)], one.condition))
        kept.append(replace(one, when=when))
    kept = _as_bounds(ranges, _merged(ranges, list(dict.fromkeys(kept))))
    for one in reversed(kept[:]):
        others = [other.condition for other in kept if other is not one and set(other.when) <= set(one.when)]
        if implies(ranges, [*one.when, *others], one.condition):
            kept.remove(one)
    return kept


def _as_bounds(ranges: Ranges, constraints: list[Constraint]) -> list[Constraint]:
    """Inequalities next to the end of what the other conditions leave, as bounds: `w // 4 != 1` is `w >= 8` for w >= 4.
    Several of them in a row are one bound."""
    changed = True
    while changed:
        changed = False
        for position, one in enumerate(constraints):
            known = [other.condition for other in constraints if other is not one and not other.when]
            bound = bound_of(ranges, [*one.when, *known], one.condition)
            if bound is not None:
                constraints[position], changed = replace(one, condition=bound), True
    return constraints


def _merged(ranges: Ranges, constraints: list[Constraint]) -> list[Constraint]:
    """Join a condition needed where (not a) with the same one needed where (a, b), if b holds wherever not a does."""
    for position, one in enumerate(constraints):
        for other in constraints:
            if (one.condition, one.place) != (other.condition, other.place) or len(one.when) != 1:
                continue
            opposite = negate(one.when[0])
            rest = tuple(answer for answer in other.when if answer != opposite)
            if len(rest) < len(other.when) and all(implies(ranges, one.when, answer) for answer in rest):
                left = [each for each in constraints if each not in (one, other)]
                left.insert(min(position, len(left)), replace(other, when=rest))
                return _merged(ranges, left)
    return constraints


def _simplified(leaf: Any, run: Run, constraints: Sequence[Constraint]) -> Any:
    """Outputs in as few symbols as the constraints leave. The facts of one branch do not hold on others."""
    always = {constraint.condition for constraint in constraints if not constraint.when}
    environment = run.environment
    equations = [fact.condition for fact in run.facts if getattr(fact.condition, "relation", "") == "=="]
    if not all(normal(condition, run.ranges) in always for condition in equations):
        return leaf
    if isinstance(leaf, TensorShape):
        return TensorShape(tuple(_plain(environment.simplify(size)) for size in leaf.shape), leaf.dtype)
    return _plain(environment.simplify(leaf)) if isinstance(leaf, Expr) else leaf


def _plain(expr: Expr) -> Any:
    return expr if expr.constant is None else expr.constant


def _error(program: Program, run: Run) -> CheckedError:
    failure = run.failure
    assert failure is not None
    name = program.modules.get(failure.module) if failure.module is not None else None
    return CheckedError(
        failure.text,
        _operation(failure, run),
        failure.places,
        name,
        tuple(fact.condition for fact in run.facts),
    )


def _operation(failure: Failure, run: Run) -> str | None:
    """The failed call with its shapes, if they say what does not fit."""
    if failure.call is None:
        return None
    text, explained = describe(failure.call, run.environment)
    return text if explained else f"{text}: {failure.text}"


def _unknown_text(run: Run) -> str:
    failure = run.failure
    assert failure is not None
    place = f"{failure.places[-1]}\n  {source_line(failure.places[-1])}\n" if failure.places else ""
    return f"{place}{failure.text}"


def _range_text(dim: Dim) -> str:
    low = max(dim.low, 2)
    return f"{low} <= {dim.name}" + (f" <= {dim.high}" if dim.high != Dim(dim.name).high else "")


def _output_text(value: Any) -> str:
    leaves = pytree.tree_leaves(value)
    shown = [str(leaf) for leaf in leaves if leaf is not None]
    return ", ".join(shown) if shown else "none"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
