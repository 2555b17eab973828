"""The knowledge about symbolic integers: an example value and a range for each, and facts that were relied on.

Ranges and facts answer a question about sizes where they can. Otherwise the example values answer it, and the answer is
recorded as a fact; users of a result made under this environment must check the facts. Never here: tensors, or guards.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stator.base.errors import Unsupported

from .conditions import Comparison, Condition, Conjunction, Disjunction, compare, conjunction, disjunction, negate
from .expr import Expr, ExprLike, Ranges, Symbol, as_expr
from .floats import FloatExpr, IntCall, exactly_rounded, to_single
from .intervals import Bound
from .lower_bounds import above_corner, below_extrema, by_bounds, without_quotients
from .simplify import simplify

UNBOUNDED: tuple[Bound, Bound] = (-math.inf, math.inf)
# A size of zero makes a tensor empty, so it is never a symbol.
SMALLEST_SIZE = 1
# Larger sizes of inputs are no symbols. Floats hold products of smaller ones with short factors exactly.
LARGEST_SIZE = 1 << 40
_MOST_OF_SINGLES = (LARGEST_SIZE, 1 << 21, 1 << 16)  # high ends of sizes to try, where floats of 32 bits are rounded
# The least size that neither broadcasts nor makes the stride of its dimension meaningless
_SEVERAL = 2
# The stand-in for a number without a hint where nothing but strides depends on the answer. Likely divisors of sizes
# divide this number.
_LARGE = 2**20 * 3**5 * 5**3 * 7**2 * 11 * 13 * 17


# this thread's answers: `unknown` by `assume_large_sizes`, `several` by `assume_several`, `general` by `prefer_general`
asking = threading.local()


@contextmanager
def assume_large_sizes() -> Iterator[None]:
    """Answer questions about numbers without a hint as for large numbers, and record no fact. For the strides of
    results: users of these strides ask for them when the program runs."""
    with _answering("unknown", True):
        yield


@contextmanager
def assume_several(sizes: Sequence[ExprLike] | None = None, numbers: bool = False) -> Iterator[None]:
    """As `assume_large_sizes`. And questions to which all numbers above 1 have one answer get this answer, and no fact:
    for results that a size of 1 changes in nothing but the stride of its dimension. Given `sizes`, only these are taken
    to be above 1, as other numbers, such as strides, change more; and all, too, if `numbers`."""
    known = tuple(map(as_expr, sizes or ())), numbers or sizes is None
    with _answering("unknown", True), _answering("several", known):
        yield


@contextmanager
def prefer_general() -> Iterator[None]:
    """Answer torch's C++, where it names an answer that is right for every size, with this answer also where the
    example has another one, and record no fact. For code that compares sizes afterwards, and raises where the answer is
    wrong for the example."""
    with _answering("general", True):
        yield


@contextmanager
def _answering(way: str, on: bool | tuple[tuple[Expr, ...], bool]) -> Iterator[None]:
    before = getattr(asking, way, False)
    setattr(asking, way, on)
    try:
        yield
    finally:
        setattr(asking, way, before)


@dataclass(frozen=True, slots=True)
class SizeFact:
    """A condition that was relied on, and its origin (the result of `Environment.locate`)."""

    condition: Comparison | Conjunction | Disjunction
    origin: Any = None

    def __str__(self) -> str:
        return str(self.condition)


class Environment:
    """Symbols with example values (`hints`), inclusive `ranges`, and the `facts` that were relied on, in order.

    A symbol without a hint stands for a number that is known only when the program runs. A question about it that its
    range does not answer raises Unsupported. If `assumes`, and if all numbers larger than 1 have one answer, that
    answer is relied on instead. `locate` is called for the origin of each new fact. `fix` gives the value of a number
    that no size depends on, and relies on it; None where nothing can hold it.
    """

    def __init__(self, locate: Callable[[], Any] | None = None, assumes: bool = False) -> None:
        self.hints: dict[Symbol, int] = {}
        self.ranges: dict[Symbol, tuple[Bound, Bound]] = {}
        self.facts: list[SizeFact] = []
        self.replacements: dict[Symbol, Expr] = {}
        self.limits: dict[Symbol, int] = {}  # high ends that hold, and become those of ranges where this helps
        self.locate = locate
        self.fix: Callable[[Any], Any] | None = None
        self.assumes = assumes
        self.narrowed: dict[tuple[Symbol, str], SizeFact] = {}  # the fact that moved the "low" or "high" end last
        self._remembered: dict[Any, Any] = {}
        self._answers: dict[Any, bool] = {}
        self._simplified: dict[Expr, Expr] = {}
        self._lower: dict[Expr, Bound] = {}
        self._sizes: set[Expr] = set()
        self._about: dict[frozenset[Symbol], list[Expr]] = {}

    @contextmanager
    def located(self, locate: Callable[[], Any]) -> Iterator[None]:
        """Take the origins of facts from `locate`."""
        before, self.locate = self.locate, locate
        try:
            yield
        finally:
            self.locate = before

    @contextmanager
    def without_assumptions(self) -> Iterator[None]:
        """Rely on no more answers to questions about symbols without a hint: these raise Unsupported."""
        before, self.assumes = self.assumes, False
        try:
            yield
        finally:
            self.assumes = before

    # -- symbols --------------------------------------------------------------------------------------------------

    def symbol(
        self, name: str, hint: int | None, low: Bound = -math.inf, high: Bound = math.inf
    ) -> Symbol:  # fmt: skip
        """A new symbol. Raises ValueError for a name in use, or for a hint outside of the range."""
        symbol = Symbol(name)
        if symbol in self.ranges:
            raise ValueError(f"there is a symbol {name} already")
        if hint is not None:
            if hint < low or hint > high:
                raise ValueError(f"the hint {hint} of {name} is not between {low} and {high}")
            self.hints[symbol] = hint
        self.ranges[symbol] = (low, high)
        return symbol

    def size(self, name: str, hint: int | None) -> ExprLike:
        """A new symbol for a size; a hint of 0 is returned as a constant."""
        if hint is not None and hint < SMALLEST_SIZE:
            return hint
        return self.symbol(name, hint, SMALLEST_SIZE)

    # -- values ---------------------------------------------------------------------------------------------------

    def simplify(self, expr: ExprLike) -> Expr:
        """An equal expression under the facts, without the symbols that facts have replaced."""
        expr = as_expr(expr)
        if not expr.symbols:
            return expr
        found = self._simplified.get(expr)
        if found is None:
            found = self._simplified[expr] = simplify(expr.substitute(self.replacements), self.ranges)
        return found

    def without_floats(self, value: Any) -> Any:
        """An equal expression of ints for a float that is rounded to an int, where floats are exact for all numbers in
        the ranges: `floor(n * 0.5)` is `n // 2`. Floats of 32 bits may need smaller ranges of sizes."""
        if not isinstance(value, IntCall):
            return value
        for most in _MOST_OF_SINGLES if to_single in value.functions else (LARGEST_SIZE,):
            ranges = {symbol: self.limited_range(symbol, most) for symbol in value.symbols}
            found = exactly_rounded(value, ranges)
            if found is not None:
                self.ranges.update(ranges)
                return found
        return value

    def limited_range(self, symbol: Symbol, most: int = LARGEST_SIZE) -> tuple[Bound, Bound]:
        """The range of a symbol, up to the limit that holds, and up to `most` if it is a size whose example allows
        this."""
        low, high = self._range(symbol)
        if symbol not in self.limits:
            return low, high
        high = min(high, self.limits[symbol])
        return low, min(high, most) if self.hints.get(symbol, most) <= most else high

    def has_hint(self, value: Any) -> bool:
        return value.symbols <= self.hints.keys() if isinstance(value, (Expr, FloatExpr)) else True

    def hint(self, value: Any) -> Any:
        """The example value of an int or float expression. Raises Unsupported when the value depends on data."""
        if not isinstance(value, (Expr, FloatExpr)):
            return value
        if not self.has_hint(value):
            raise Unsupported("data-dependent", f"the value of {value} is known only when the program runs")
        return value.evaluate(self.hints)

    def specialize(self, value: Any) -> Any:
        """The example value; records the fact that the value is this one."""
        number = self.hint(value)
        if isinstance(value, (Expr, FloatExpr)):
            self.decide(compare("==", value, number))
        return number

    # -- conditions -----------------------------------------------------------------------------------------------

    def evaluate_static(self, condition: Condition) -> bool | None:
        """True or False if ranges and facts decide the condition, else None."""
        if isinstance(condition, bool):
            return condition
        answer = self._answers.get(condition)
        if answer is not None:
            return answer
        if isinstance(condition, Comparison):
            answer = self._evaluate_comparison(condition)
        else:
            short = isinstance(condition, Disjunction)  # the answer that a single part decides
            answers = [self.evaluate_static(part) for part in condition.parts]
            answer = short if short in answers else self._answer_together(condition) if None in answers else not short
        if answer is not None:
            self._answers[condition] = answer
        return answer

    def truth(self, condition: Condition) -> bool | None:
        """The truth of a comparison when it is made; None leaves the question to whoever needs the answer."""
        return self.evaluate_static(condition)

    def _answer_together(self, condition: Conjunction | Disjunction) -> bool | None:
        """The answer of parts that contradict, or complete, each other under the facts."""
        parts = [
            compare(part.relation, self.simplify(part.expr), 0) if isinstance(part, Comparison) else part
            for part in condition.parts
        ]
        joined = (conjunction if isinstance(condition, Conjunction) else disjunction)(*parts)
        return joined if isinstance(joined, bool) else None

    def decide(self, condition: Condition) -> bool:
        """The truth of a condition, recorded as a fact if needed. Raises Unsupported when it depends on data."""
        answer = self.evaluate_static(condition)
        if answer is not None:
            return answer
        if isinstance(condition, (Conjunction, Disjunction)):
            return self._decide_parts(condition)
        several: Any = getattr(asking, "several", False)
        if several:
            answer = self._answer_above_one(condition, *several)  # type: ignore[arg-type]
            if answer is not None:
                return answer
        condition = self._without_common_sizes(condition)  # type: ignore[arg-type]
        if not condition.symbols <= self.hints.keys():
            return self._decide_unknown(condition)
        answer = condition.holds(self.hints)
        self.assume(condition if answer else negate(condition))
        return answer

    def extremum(self, condition: Condition, one: ExprLike, other: ExprLike) -> Callable[..., Any] | None:
        """`min` or `max`, if `one if condition else other` is that of the two for all values; else None."""
        gap = as_expr(other) - one
        for function, above in ((min, gap), (max, -gap)):
            if self._implies(condition, above) and self._implies(negate(condition), -above):
                return function
        return None

    def _implies(self, condition: Condition, expr: ExprLike) -> bool:
        """Whether expr >= 0 is known to follow from a condition."""
        if isinstance(condition, (Conjunction, Disjunction)):
            follows = [self._implies(part, expr) for part in condition.parts]
            return any(follows) if isinstance(condition, Conjunction) else all(follows)
        if isinstance(condition, bool) or condition.relation != ">=":
            return False
        return self._lower_bound(self.simplify(expr), self.ranges, (self.simplify(condition.expr),)) >= 0

    def decide_or(self, condition: Condition, otherwise: bool) -> bool:
        """The truth of a condition for whose users `otherwise` is right for every size: no fact is recorded for it."""
        known = self.evaluate_static(condition)
        if known is not None or isinstance(condition, bool):
            return bool(known)
        hinted = condition.symbols <= self.hints.keys() and condition.holds(self.hints) is not otherwise
        return self.decide(condition) if hinted else otherwise

    def _decide_unknown(self, condition: Comparison) -> bool:
        if getattr(asking, "unknown", False):
            return self._answer_in_general(condition.substitute(self.replacements))
        exact = any(self.hints.get(symbol) == 1 for symbol in condition.symbols)
        answer = self._answer_above_one(condition) if self.assumes and not exact else None
        if answer is None:
            raise Unsupported("data-dependent", f"the truth of {condition} is known only when the program runs")
        self.assume(condition if answer else negate(condition))
        return answer

    def _answer_in_general(self, condition: Comparison) -> bool:
        """The answer for most values of numbers without a hint: two expressions differ unless they are always equal."""
        if any(isinstance(atom, IntCall) for atom in condition.expr.atoms):
            return condition.holds(_LargeSizes(self.hints))
        if condition.relation in ("==", "!="):
            return condition.relation == "!="
        return self._typical(condition.expr) >= 0

    def _typical(self, expr: Expr) -> int:
        """A value for large numbers without a hint; terms below a bound are in the middle between it and zero."""
        ranges = {one: (self.hints[one],) * 2 if one in self.hints else self._range(one) for one in expr.symbols}
        total = 0
        for monomial, value in expr.terms().items():
            for atom in monomial:
                low, high = atom.bounds(ranges)
                bounded = 0 < high < _LARGE
                value *= int(max(low, 0) + high + 1) // 2 if bounded else atom.evaluate(_LargeSizes(self.hints))
            total += value
        return total

    def _answer_above_one(
        self, condition: Comparison, sizes: tuple[Expr, ...] = (), numbers: bool = True
    ) -> bool | None:
        """The answer if each of `sizes`, or every number, is larger than 1; None if it differs between such numbers."""
        condition = self._without_common_sizes(condition) if sizes else condition
        sizes = tuple(one for one in sizes if not one.symbols or self._may_be_several(one))
        whole = {one for size in sizes for one in (size, self.simplify(size)) if one.symbols}
        least: dict[Expr, int] = {}
        for one in (compare(">=", size, _SEVERAL) for size in whole):
            if isinstance(one, Comparison):
                number = one.expr - one.expr.offset
                least[number] = max(least.get(number, _SEVERAL), -one.expr.offset)
        for expr in (self.simplify(condition.expr), condition.expr):  # a number that a fact replaced is larger, too
            ranges = {symbol: self._range(symbol) for symbol in expr.symbols}
            for symbol, (low, high) in ranges.items():
                if low < _SEVERAL <= high and (
                    numbers or any(self._is_one_with(symbol, one) for one in sizes) or self._reaches(symbol, sizes)
                ):
                    low = _SEVERAL
                ranges[symbol] = max(low, least.get(symbol, low)), high
            expr, above = simplify(expr, ranges), tuple(one - _SEVERAL for one in whole)
            low, high = self._lower_bound(expr, ranges, above), -self._lower_bound(-expr, ranges, above)
            answer = by_bounds(condition.relation, low, high)
            if answer is not None:
                return answer
        return None

    def _may_be_several(self, size: Expr) -> bool:
        """Not if the size is zero in the example, which is a fact of every graph that has a tensor of this size."""
        is_empty = self.has_hint(size) and self.hint(size) == 0
        return not is_empty and self.evaluate_static(compare(">=", size, _SEVERAL)) is not False

    def _reaches(self, symbol: Symbol, sizes: tuple[Expr, ...]) -> bool:
        """Whether a fact says that a symbol is not smaller than one of these sizes."""
        return any(symbol - one in self._about.get(one.symbols | {symbol}, ()) for one in sizes)

    def _is_one_with(self, symbol: Symbol, size: Expr) -> bool:
        """Whether a size has no more than one element if `symbol` is 1, or does not exist: a division by zero."""
        both = (size, self.simplify(size))
        try:
            return any(one.substitute({symbol: as_expr(1)}).bounds(self.ranges)[1] < _SEVERAL for one in both)
        except ZeroDivisionError:
            return True

    def rely_on_elements(self, size: Expr) -> None:
        """Rely on whether the size of a tensor is zero, so that nothing else has to ask. A size without a hint may be
        zero."""
        if size not in self._sizes and size.symbols <= self.hints.keys():
            with _answering("several", False):
                self.decide(compare("!=", size, 0))
            self._sizes.add(size)

    def expect(self, condition: Condition) -> bool:
        """The truth of a condition without which the program would fail. For numbers without a hint, the condition is
        recorded as a fact, unless ranges and facts refute it."""
        answer = self.evaluate_static(condition)
        if answer is not None or isinstance(condition, bool):
            return bool(answer)
        if not self.assumes or condition.symbols <= self.hints.keys():
            return self.decide(condition)
        self.assume(condition)
        return True

    def _decide_parts(self, condition: Conjunction | Disjunction) -> bool:
        """Record no more facts than the parts that decide the answer."""
        short = isinstance(condition, Disjunction)
        open_parts = [part for part in condition.parts if self.evaluate_static(part) is None]
        for part in open_parts:
            if part.symbols <= self.hints.keys() and part.holds(self.hints) is short:
                return self.decide(part)
        for part in open_parts:
            if self.decide(part) is short:
                return short
        return not short

    def assume(self, condition: Condition) -> None:
        """Record a condition as a fact. Raises ValueError when it contradicts ranges or facts."""
        answer = self.evaluate_static(condition)
        if answer is True:
            return
        if answer is False or isinstance(condition, bool):
            raise ValueError(f"{condition} contradicts the known ranges and facts")
        self.facts.append(SizeFact(condition, self.locate() if self.locate is not None else None))
        self._remembered.clear()
        for part in condition.parts if isinstance(condition, Conjunction) else (condition,):
            self._learn(part)

    # -- consequences of facts ------------------------------------------------------------------------------------

    def _evaluate_comparison(self, condition: Comparison) -> bool | None:
        expr = self.simplify(condition.expr)
        if expr is not condition.expr:
            simpler = compare(condition.relation, expr, 0)
            if simpler != condition:
                return self.evaluate_static(simpler)
        return by_bounds(condition.relation, self._at_least(expr), -self._at_least(-expr))

    def _without_common_sizes(self, condition: Comparison) -> Comparison:
        """A comparison divided by positive factors of all terms: a*c == b*c relies on a == b, and a*b > b on a > 1."""
        strict = condition.relation == ">=" and condition.expr.offset == -1  # "> 0"
        expr = condition.expr + 1 if strict else condition.expr
        first, *others = [monomial for monomial, _ in expr._terms] or [()]
        for atom in set(first):
            if all(atom in other for other in others) and atom.bounds(self.ranges)[0] > 0:
                divided = compare(">" if strict else condition.relation, expr // atom, 0)
                if isinstance(divided, Comparison):
                    return self._without_common_sizes(divided)
        return condition

    def _at_least(self, expr: Expr) -> Bound:
        found = self._lower.get(expr)
        if found is None:
            found = self._lower[expr] = self._lower_bound(expr, self.ranges)
        return found

    def _lower_bound(self, expr: Expr, ranges: Ranges, above: tuple[Expr, ...] = ()) -> Bound:
        """A lower bound: from intervals, from the low ends of all ranges, from parts of extrema, or from a fact or one
        of `above`, each at least 0."""
        low = expr.bounds(ranges)[0]
        if low < 0:
            low = max(low, above_corner(expr, ranges))
        if low < 0:
            whole, scale = without_quotients(expr, self.ranges)
            if scale > 1:
                bound = max(whole.bounds(ranges)[0], above_corner(whole, ranges))
                low = max(low, bound if bound == -math.inf else -(-int(bound) // scale))
        if low < 0:
            low = max((low, *(smaller.bounds(ranges)[0] for smaller in below_extrema(expr))))
        for known in (*self._about.get(expr.symbols, ()), *above):  # known >= 0
            gap = expr - known
            if gap.constant is not None:
                low = max(low, gap.constant)
        return low

    def _range(self, symbol: Symbol) -> tuple[Bound, Bound]:
        return self.ranges.get(symbol, UNBOUNDED)

    def _learn(self, condition: Condition) -> None:
        """Draw conclusions from a fact for later questions. Earlier answers stay right."""
        if not isinstance(condition, bool):
            self._answers[condition] = True
            self._answers[negate(condition)] = False
        if not isinstance(condition, Comparison):
            return
        expr = self.simplify(condition.expr)
        if condition.relation == "==":
            for one in (expr, -expr):
                self._about.setdefault(one.symbols, []).append(one)
            self._replace(expr)
        elif condition.relation == ">=":
            self._about.setdefault(expr.symbols, []).append(expr)
            self._narrow(expr)
        else:
            self._exclude(expr)
        self._simplified.clear()
        self._lower.clear()

    def _replace(self, expr: Expr) -> None:
        """expr == 0 expresses one symbol, the newest possible, by the others. Symbols without a hint go first, because
        their values are known last."""
        order = list(self.ranges)
        for symbol in sorted(expr.symbols, key=lambda one: (one not in self.hints, order.index(one)), reverse=True):
            factor = expr.coefficient(symbol)
            if factor in (1, -1):
                value = (symbol * factor - expr) * factor  # symbol == value
                if not self._is_told_before(symbol, value):
                    return
                self._inherit(symbol, value)
                self.replacements = {
                    other: replaced.substitute({symbol: value}) for other, replaced in self.replacements.items()
                }
                self.replacements[symbol] = value
                self._restate(symbol)
                return

    def _restate(self, replaced: Symbol) -> None:
        """Draw conclusions from earlier facts without the symbol that has been replaced."""
        for fact in [fact for fact in self.facts if replaced in fact.condition.symbols]:
            condition = fact.condition
            if not isinstance(condition, Comparison):
                continue
            expr = condition.expr.substitute(self.replacements)
            if condition.relation == ">=":
                self._about.setdefault(expr.symbols, []).append(expr)
                self._narrow(expr, fact)
            else:
                again = compare(condition.relation, expr, 0)
                self._answers.update({again: True, negate(again): False})

    def _is_told_before(self, symbol: Symbol, value: Expr) -> bool:
        """Whether a program knows the value when it learns the symbol: sizes that depend on data become known late, in
        order."""
        unknown = [one for one in self.ranges if one not in self.hints and (one is symbol or one in value.symbols)]
        return not unknown or unknown[-1] is symbol

    def _inherit(self, symbol: Symbol, value: Expr) -> None:
        """Carry the range of a replaced symbol over to its replacement."""
        low, high = self._range(symbol)
        if low > -math.inf:
            self._narrow(value - int(low))
        if high < math.inf:
            self._narrow(value * -1 + int(high))

    def _narrow(self, expr: Expr, fact: SizeFact | None = None) -> None:
        """c*s + k >= 0 bounds the symbol s. `fact`: the reason, if it is not the newest fact."""
        if len(expr.symbols) != 1:
            return
        (symbol,) = expr.symbols
        factor = expr.coefficient(symbol)
        if not factor or not isinstance(factor, int) or symbol in self.replacements:
            return
        low, high = self._range(symbol)
        if factor > 0:
            low = max(low, -(expr.offset // factor))
        else:
            high = min(high, expr.offset // -factor)
        self._set_range(symbol, low, high, fact or self.facts[-1])

    def _exclude(self, expr: Expr) -> None:
        """expr != 0 at an end of its bounds is an inequality."""
        for one in (expr, -expr):
            if self._at_least(one) == 0:
                self._lower.clear()
                self._learn(compare(">=", one, 1))

    def _set_range(self, symbol: Symbol, low: Bound, high: Bound, fact: SizeFact) -> None:
        """Narrow a range because of a fact."""
        ends = zip(("low", "high"), self._range(symbol), (low, high), strict=True)
        self.narrowed.update({(symbol, end): fact for end, before, now in ends if before != now})
        self.ranges[symbol] = (low, high)
        if low == high and symbol not in self.replacements:
            self._replace(symbol - int(low))

    # -- queries --------------------------------------------------------------------------------------------------

    def constants(self) -> dict[Symbol, int]:
        """The symbols for which the facts leave one value."""
        found = {}
        for symbol in self.ranges:
            number = self.simplify(symbol).constant
            if number is not None:
                found[symbol] = number
        return found

    def holds(self, values: Mapping[Symbol, int]) -> bool:
        """True if ranges and facts hold at a point. Results made under this environment are valid exactly there."""
        return all(fact.condition.holds(values) for fact in self.facts) and all(
            low <= values[symbol] <= high for symbol, (low, high) in self.ranges.items()
        )

    def remember(self, key: Any, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, which asks this environment alone. `key` describes the function and its arguments.
        A new fact makes the environment forget."""
        key = (key, getattr(asking, "unknown", False), getattr(asking, "several", False))
        found = self._remembered.get(key)
        if found is None:
            known = len(self.facts)
            found = compute()
            if len(self.facts) == known:
                self._remembered[key] = found
        return found

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for symbol, (low, high) in self.ranges.items():
            yield f"{low} <= {symbol} <= {high}, for example {self.hints.get(symbol, 'unknown')}"
        for fact in self.facts:
            yield str(fact)


class _LargeSizes(dict[Symbol, int]):
    """The hints, and a large number for each symbol without a hint."""

    def __missing__(self, symbol: Symbol) -> int:
        return _LARGE
