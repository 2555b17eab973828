"""Conditions as one function: true exactly where each condition holds."""

from __future__ import annotations

import itertools
import math
import operator

from stator.shapes.conditions import compare, conjunction, disjunction, predicate
from stator.shapes.expr import Symbol
from stator.shapes.extrema import Max, Min
from stator.shapes.floats import as_float, float_operation, int_call

a, b = Symbol("a"), Symbol("b")

CONDITIONS = [
    compare("<", a, b),
    compare("==", a * b % 6, 0),
    compare("!=", (a + 3) // b - b, 0),
    compare(">=", Min.of(a, b, 5) * 2, Max.of(a, 4)),
    disjunction(compare("<", a, b), compare("==", a % 3, 0)),
    conjunction(compare("<", a, 9), disjunction(compare("<", b, 4), compare("==", a, b))),
    compare(">", float_operation(operator.mul, as_float(a), 0.7), 2.5),
    compare("==", int_call(math.floor, float_operation(operator.truediv, as_float(a), 1.5)), b),
]


def test_true_where_all_conditions_hold() -> None:
    for condition in CONDITIONS:
        holds = predicate([condition], (a, b))
        for values in itertools.product(range(2, 12), repeat=2):
            expected = condition if isinstance(condition, bool) else condition.holds({a: values[0], b: values[1]})
            assert holds(*values) == expected, (str(condition), values)
    both = predicate(CONDITIONS[:2], (b, a))
    assert both(3, 2) and not both(2, 3) and not both(5, 2)


def test_no_conditions_hold_always() -> None:
    assert predicate([], (a,))(7) and predicate([True], ())() and not predicate([False], ())()
