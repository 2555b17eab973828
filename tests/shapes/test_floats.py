"""Expressions of Python's floats: each has Python's value, also for infinities, NaN, -0.0 and ints beyond 2**53."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stator.shapes.conditions import compare, conjunction, disjunction, negate
from stator.shapes.environment import LARGEST_SIZE, Environment
from stator.shapes.expr import symbols
from stator.shapes.floats import FloatExpr, as_float, float_operation, functions_of, int_call, quotient

X, Y, N = symbols("floats_x floats_y floats_n")
LEFT, RIGHT = FloatExpr(None, (X,)), FloatExpr(None, (Y,))
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1.0, 2.0**53, 2.0**53 + 2, 1e308, 5e-324])
INTS = st.integers(-(2**70), 2**70) | st.sampled_from([0, 1, 2**53, 2**53 + 1])
RELATIONS: dict[str, Any] = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt},
    **{"<=": operator.le, ">": operator.gt, ">=": operator.ge},
}
OPERATIONS = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, min, max)


def outcome(function: Any, *args: Any) -> str:
    """The result with its type and the sign of a zero, or the exception."""
    try:
        result = function(*args)
    except (ArithmeticError, ValueError) as error:
        return type(error).__name__
    return f"{type(result).__name__} {result!r}"


def unknown(low: float = -math.inf, high: float = math.inf) -> Environment:
    environment = Environment()
    for name in ("floats_x", "floats_y", "floats_n"):
        environment.symbol(name, None, low, high)
    return environment


@given(st.sampled_from(sorted(RELATIONS)), FLOATS, FLOATS)
def test_a_comparison_has_pythons_truth(relation: str, x: float, y: float) -> None:
    condition = compare(relation, LEFT, RIGHT)
    assert condition.holds({X: x, Y: y}) is RELATIONS[relation](x, y)
    assert negate(condition).holds({X: x, Y: y}) is not RELATIONS[relation](x, y)
    assert unknown().evaluate_static(condition) is None


@given(st.sampled_from(sorted(RELATIONS)), FLOATS, INTS)
def test_a_float_and_an_int_are_compared_exactly(relation: str, x: float, n: int) -> None:
    assert compare(relation, LEFT, N).holds({X: x, N: n}) is RELATIONS[relation](x, n)
    assert compare(relation, n, LEFT).holds({X: x}) is RELATIONS[relation](n, x)


@given(st.sampled_from(OPERATIONS), FLOATS | INTS, FLOATS)
def test_an_operation_has_pythons_value(function: Any, x: Any, y: float) -> None:
    left = LEFT if isinstance(x, float) else N
    made = float_operation(function, left, RIGHT)
    assert outcome(made.evaluate, {X: x, N: x, Y: y}) == outcome(function, x, y)


@given(st.sampled_from((math.floor, math.ceil, math.trunc, int, round)), FLOATS)
def test_a_rounding_has_pythons_value(function: Any, x: float) -> None:
    assert outcome(int_call(function, LEFT).evaluate, {X: x}) == outcome(function, x)
    assert int_call(function, as_float(N)) is N


@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from(sorted(RELATIONS)),
    *(st.floats(-1e300, 1e300) for _ in range(5)),
    st.sampled_from((math.floor, math.ceil, math.trunc, round)),
)
def test_bounds_hold_what_they_answer(
    function: Any, relation: str, x: float, y: float, other: float, low: float, high: float, rounding: Any
) -> None:
    low, high = min(low, high, x, y), max(low, high, x, y)
    environment, values = unknown(low, high), {X: x, Y: y}
    made = float_operation(function, LEFT, RIGHT)
    try:
        condition = compare(relation, made, other)
        truth = condition.holds(values)
        whole = int_call(rounding, made)
        number = whole.evaluate(values)
    except (ArithmeticError, ValueError):
        return
    assert environment.evaluate_static(condition) in (None, truth)
    least, most = whole.bounds(environment.ranges)
    assert least <= number <= most


@pytest.mark.parametrize("function", [min, max, operator.add, operator.mul])
def test_a_float_without_bounds_may_be_nan(function: Any) -> None:
    """max(nan, 1.0) is NaN, which is not at least 1."""
    environment = unknown()
    for made in (float_operation(function, LEFT, 1.0), float_operation(function, 1.0, LEFT)):
        assert environment.evaluate_static(compare(">=", made, -math.inf)) is None
        assert environment.evaluate_static(compare("!=", made, made)) is None


def test_a_fact_answers_its_negation_and_nothing_about_nan() -> None:
    environment = Environment(assumes=True)
    x = FloatExpr(None, (environment.symbol("floats_fact", None),))
    environment.expect(compare(">", x, 0.0))
    assert environment.evaluate_static(compare(">", x, 0.0)) is True
    assert environment.evaluate_static(negate(compare(">", x, 0.0))) is False
    assert environment.evaluate_static(compare("<=", x, 0.0)) is None


def test_equal_numbers_of_several_types_make_several_expressions() -> None:
    made = [float_operation(operator.mul, LEFT, one) for one in (0.0, -0.0, 0, False, 1, 1.0, True)]
    assert len(set(made)) == len(made)
    assert made[0] == float_operation(operator.mul, LEFT, 0.0)


@given(st.sampled_from(OPERATIONS), st.integers(1, 9), st.integers(1, 9))
def test_the_text_is_the_expression(function: Any, x: int, n: int) -> None:
    """Code of host programs has this text."""
    made = float_operation(function, N + 1, as_float(N * 2 - 1))
    for one in (made, float_operation(operator.truediv, N - 3, made), float_operation(function, made, N // 2 + 1)):
        try:
            expected = one.evaluate({N: n})
        except ZeroDivisionError:
            continue
        assert eval(str(one), {"floats_n": n}) == expected


@pytest.mark.parametrize("dividend", [2.0, -2.0, 0.0, math.inf, math.nan])
@pytest.mark.parametrize("divisor", [0.0, -0.0])
def test_quotients_by_zero_are_those_of_tensors(dividend: float, divisor: float) -> None:
    expected = (torch.tensor(dividend) / torch.tensor(divisor)).item()
    found = float_operation(quotient, dividend, float_operation(operator.mul, as_float(N), divisor))
    assert repr(found.evaluate({N: 3})) == repr(expected)
    assert repr(eval(str(found), {"floats_n": 3, "quotient": quotient, "inf": math.inf, "nan": math.nan})) == repr(
        expected
    )


ROUNDED = st.sampled_from([math.floor, math.ceil, math.trunc, int, round])
FACTORS = st.sampled_from([0.5, 0.25, 1.5, 2.0, 0.7, 1 / 3, 1e-3, 3.3, 1.0 - 2**-53, 1.0 + 2**-52]) | st.floats(
    1e-6, 1e4
)
SIZES = st.integers(1, 40) | st.integers(1, LARGEST_SIZE) | st.just(LARGEST_SIZE)


def of_sizes() -> Environment:
    environment = Environment()
    environment.limits[environment.symbol("floats_n", 7, 1)] = LARGEST_SIZE
    return environment


@given(ROUNDED, FACTORS, SIZES, st.integers(-3, 9), st.integers(-2, 2), st.sampled_from(sorted(RELATIONS)))
def test_rounded_products_are_compared_as_in_python(
    function: Any, factor: float, size: int, number: int, times: int, relation: str
) -> None:
    whole = int_call(function, float_operation(operator.mul, as_float(N), factor))
    condition = compare(relation, whole, N * times + number)
    expected = RELATIONS[relation](function(size * factor), size * times + number)
    assert (condition if isinstance(condition, bool) else condition.holds({N: size})) is expected
    assert of_sizes().evaluate_static(condition) in (None, expected)


@given(ROUNDED, FACTORS, FACTORS, SIZES, st.integers(1, 2**50), st.sampled_from(OPERATIONS[:4]))
def test_rounded_floats_of_sizes_are_ints(
    function: Any, factor: float, other: float, size: int, divisor: int, operation: Any
) -> None:
    def values(number: Any, join: Any) -> list[Any]:
        scaled = join(operator.mul, number, factor)
        return [scaled, join(operation, scaled, other), join(operator.truediv, number, divisor)]

    found = values(N, float_operation)
    for expression, value in zip(found, values(size, lambda function, *args: function(*args)), strict=True):
        assert of_sizes().without_floats(int_call(function, expression)).evaluate({N: size}) == function(value)


def test_sizes_times_short_factors_need_no_floats() -> None:
    environment = of_sizes()
    whole = [int_call(function, float_operation(operator.mul, N, 1.5)) for function in (math.floor, math.ceil)]
    assert [environment.without_floats(one) for one in whole] == [N + N // 2, -(-3 * N // 2)]
    environment = unknown(1)
    assert environment.without_floats(whole[0]) is whole[0]  # a number may be too large for floats
    long = int_call(math.floor, float_operation(operator.mul, N, 0.7))
    assert environment.without_floats(long) is long
    assert environment.evaluate_static(compare("!=", long, N)) is True
    assert compare(">=", long, 2) == compare(">=", N, 3)


def test_functions_inside_of_conditions_and_quotients() -> None:
    whole = int_call(math.floor, float_operation(operator.mul, N, 0.5)) // 3
    assert functions_of(whole) == {math.floor, operator.mul}
    assert functions_of(conjunction(compare("==", whole, 2), compare("<", LEFT, 1.0))) == {
        *(math.floor, operator.mul, operator.lt, None),
    }
    assert functions_of(disjunction(compare(">=", N, 2), compare("==", N, 0))) == frozenset()
