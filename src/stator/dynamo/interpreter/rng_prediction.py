"""Which numbers a `random.Random` is about to give, as a guard finds out on a copy of it. What is drawn in captured
code, and what is decided from it, is said in handlers/python_calls/random_numbers.py; no program's generator draws
anything here.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stator.base.errors import WrongAssumption
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, Source
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Effect, Evaluate, Load, Recipe

if TYPE_CHECKING:
    from .capture_context import CaptureContext

MOST_WAYS = 8  # that the numbers of one graph may be decided: each is compiled by itself


@dataclass(frozen=True, slots=True)
class Drawn:
    """`function(generator, *args)`: one number, or what else a generator gives."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class Forecast:
    """Called with a generator: what an expression of the numbers gives that it will draw in this order. `expression`:
    the index of one, or (function, arguments), in which (None, constant) is a constant.

    Equal to another one that does the same.
    """

    __slots__ = ("__name__", "_text", "drawn", "expression")

    def __init__(self, drawn: tuple[Drawn, ...], expression: Any) -> None:
        self.drawn = drawn
        self.expression = expression
        names = [(one.function.__qualname__, one.args) for one in drawn]
        self._text = f"{names}{_text(expression)}"
        self.__name__ = "forecast"

    def __call__(self, generator: random.Random) -> Any:
        copy = random.Random(0)
        copy.setstate(random.Random.getstate(generator))
        return _evaluated(self.expression, [one.function(copy, *one.args) for one in self.drawn])

    def __eq__(self, other: object) -> bool:
        return type(other) is Forecast and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def _text(expression: Any) -> str:
    if isinstance(expression, int):
        return f"#{expression}"
    function, parts = expression
    if function is None:
        return f"{type(parts).__name__} {parts!r}"
    return f"{function.__name__}({', '.join(map(_text, parts))})"


def _evaluated(expression: Any, results: list[Any]) -> Any:
    if isinstance(expression, int):
        return results[expression]
    function, parts = expression
    return parts if function is None else function(*(_evaluated(part, results) for part in parts))


@dataclass(slots=True)
class Draws:
    """What one capture draws ahead of its graph."""

    log: list[tuple[Recipe, Source, Drawn | None]] = field(default_factory=list)
    shadows: dict[Source, random.Random] = field(default_factory=dict)  # generators whose state is known by now
    ways: int = 1

    def add(self, draw: Recipe, generator: Source, drawn: Drawn | None) -> None:
        """`drawn` is None where a copy would not give the same."""
        self.log.append((draw, generator, drawn))

    def decided(self, context: CaptureContext, recipe: Recipe, generator: Any, ways: int) -> Any:
        """What this expression of drawn numbers gives in this call, under a guard; None where that is not to be known:
        there are too many ways."""
        if generator is None or self.ways * ways > MOST_WAYS:
            return None
        drawn: list[Drawn] = []
        index: dict[int, int] = {}
        for draw, source, one in self.log:
            if source != generator.source:
                continue
            if one is None:
                return None
            index[id(draw)] = len(drawn)
            drawn.append(one)
        expression = _expression(recipe, index)
        if expression is None:
            return None
        forecast = Forecast(tuple(drawn), expression)
        source = CallSource(forecast, (generator.source,))
        found = forecast(generator.obj)
        context.guard(source, GuardKind.EQUALS, found)
        context.draws.append(CallRecipe(ConstantRecipe(check_foreseen), [recipe, ConstantRecipe(found)]))
        self.ways *= ways
        return found

    def compared(self, context: CaptureContext, function: Any, left: Recipe, right: Recipe) -> bool | None:
        """What comparing drawn numbers gives, as their generators know already; None where it cannot be known."""
        found = compared(function, left, right)
        if found is not None:
            return found
        both = CallRecipe(ConstantRecipe(function), [left, right])
        return self.decided(context, both, self.generator_of(context, both), 2)  # type: ignore[no-any-return]

    def generator_of(self, context: CaptureContext, recipe: Recipe) -> Any:
        """Of the drawn numbers in an expression, if it is one of random.Random's own class."""
        sources = {source for draw, source, _ in self.log if _is_in(draw, recipe)}
        if len(sources) != 1:
            return None
        (source,) = sources
        values = (value for value in context.wrapped.values() if value.source == source)
        return next((value for value in values if type(getattr(value, "obj", None)) is random.Random), None)

    def effects(self) -> list[Effect]:
        """Generators whose state is known are brought to it."""
        return [
            Evaluate(
                CallRecipe(ConstantRecipe(random.Random.setstate), [Load(source), ConstantRecipe(shadow.getstate())])
            )
            for source, shadow in self.shadows.items()
        ]


def check_foreseen(found: Any, foreseen: Any) -> None:
    """Called when the numbers were drawn. Raises WrongAssumption where another thread drew after the guard had looked:
    the call begins anew by itself."""
    if found != foreseen:
        raise WrongAssumption("a random number is not what was foreseen: another thread draws from the generator, too")


def _expression(recipe: Recipe, index: dict[int, int]) -> Any:
    if id(recipe) in index:
        return index[id(recipe)]
    if isinstance(recipe, ConstantRecipe):
        return (None, recipe.value)
    if isinstance(recipe, CallRecipe) and isinstance(recipe.function, ConstantRecipe) and not recipe.kwargs:
        parts = tuple(_expression(part, index) for part in recipe.args)
        return None if any(part is None for part in parts) else (recipe.function.value, parts)
    return None


def _is_in(draw: Recipe, recipe: Recipe) -> bool:
    return recipe is draw or (isinstance(recipe, CallRecipe) and any(_is_in(draw, part) for part in recipe.args))


_EXACT = 2**53  # whole numbers up to here are floats


def bounds(recipe: Recipe) -> tuple[float, float] | None:
    """Between which numbers, both included, an expression of `random()` is; rounding keeps their order. None also where
    one is infinite: there is no order in what infinity times zero gives."""
    if isinstance(recipe, ConstantRecipe):
        number = recipe.value
        known = type(number) is float or (type(number) is int and abs(number) <= _EXACT)
        return (number, number) if known and math.isfinite(number) else None
    if not isinstance(recipe, CallRecipe) or not isinstance(recipe.function, ConstantRecipe):
        return None
    function = recipe.function.value
    if function is random.Random.random:
        return 0.0, 1.0 - 2.0**-53
    parts = [bounds(part) for part in recipe.args]
    if any(part is None for part in parts):
        return None
    if function is operator.neg:
        low, high = parts[0]  # type: ignore[misc]
        return -high, -low
    if function in (operator.add, operator.sub, operator.mul):
        found = [function(one, other) for one in parts[0] for other in parts[1]]  # type: ignore[union-attr]
        return (min(found), max(found)) if all(map(math.isfinite, found)) else None
    return None


def compared(function: Any, left: Recipe, right: Recipe) -> bool | None:
    """What comparing these always gives, if that is known."""
    one, other = bounds(left), bounds(right)
    if one is None or other is None:
        return None
    if function in (operator.gt, operator.ge):
        one, other = other, one
        function = operator.lt if function is operator.gt else operator.le
    if function in (operator.lt, operator.le):
        always, never = function(one[1], other[0]), not function(one[0], other[1])
        return True if always else False if never else None
    apart = one[1] < other[0] or other[1] < one[0]
    return (function is operator.ne) if apart else None
