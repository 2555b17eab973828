"""Conditions on sizes as one Python function. Never here: which conditions are relied on, or where sizes come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .conditions import Comparison, Condition, Conjunction, Disjunction
from .expr import Constant, Expr, FloorDiv, Mod, Symbol
from .extrema import Max, Min


def predicate(conditions: Iterable[Condition], symbols: Sequence[Symbol]) -> Callable[..., bool]:
    """A function of the values of `symbols`, in this order, that says whether all conditions hold. The names of the
    symbols are identifiers."""
    given = ", ".join(symbol.name for symbol in symbols)
    scope: dict[str, Any] = {"_symbols": tuple(symbols)}
    parts: list[str] = []
    for at, condition in enumerate(conditions):
        if isinstance(condition, bool) or is_python(condition):
            parts.append(str(condition))
        else:  # with floats, whose text is not Python
            scope[f"_condition{at}"] = condition
            parts.append(f"_condition{at}.holds(dict(zip(_symbols, ({given},))))")
    return eval(f"lambda {given}: {' and '.join(parts) or True}", scope)  # type: ignore[no-any-return]


def is_python(value: Any) -> bool:
    """Whether the text of a condition or expression is a Python expression of its symbols."""
    if isinstance(value, (int, Symbol)):
        return True
    if isinstance(value, Comparison):
        return isinstance(value.expr, Expr) and is_python(value.expr)
    if isinstance(value, (FloorDiv, Mod)):
        return is_python(value.numerator) and is_python(value.denominator)
    if isinstance(value, (Min, Max)):
        return all(map(is_python, value.args))
    if isinstance(value, (Conjunction, Disjunction)):
        return all(map(is_python, value.parts))
    return type(value) in (Expr, Constant) and all(map(is_python, value.atoms))
