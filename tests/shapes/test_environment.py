"""Symbols with hints: what is known without asking, what is recorded when it is not, and what follows from facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stator.base.errors import Unsupported
from stator.shapes.conditions import compare, conjunction, disjunction, negate
from stator.shapes.environment import Environment, assume_several
from stator.shapes.expr import Expr, Symbol, floor_div
from stator.shapes.extrema import Max, Min

RELATIONS = ("==", "!=", "<", "<=", ">", ">=")


def sizes(**hints: int) -> tuple[Environment, list[Symbol]]:
    environment = Environment()
    return environment, [environment.size(name, hint) for name, hint in hints.items()]  # type: ignore[misc]


def facts(environment: Environment) -> list[str]:
    return [str(fact) for fact in environment.facts]


def test_a_size_of_zero_is_no_symbol() -> None:
    environment, (a, b) = sizes(a=0, b=1)
    assert a == 0 and environment.hints == {b: 1}


def test_ranges_answer_without_a_fact() -> None:
    environment, (a, b) = sizes(a=6, b=4)
    for condition in (
        compare("!=", a, 0),
        compare(">=", a * b, a),
        compare(">=", a * b + b, 2),
        compare("<", a, a + b),
        compare("==", a * b // b, a),
        compare("!=", 2 * a, 7),
    ):
        assert environment.decide(condition) is True
        assert environment.decide(negate(condition)) is False
    assert not environment.facts


def test_products_are_compared_where_an_upper_bound_is_known() -> None:
    """Intervals alone lose that both terms grow with b."""
    environment, (a, b) = sizes(a=6, b=4)
    environment.assume(compare("<=", b, 512))
    assert environment.evaluate_static(compare(">=", a * b, b)) is True


def test_common_factors_are_no_part_of_a_fact() -> None:
    environment, (a, b, c) = sizes(a=6, b=4, c=4)
    assert environment.decide(compare("==", a * b, a * c))
    assert environment.decide(compare(">", a * b, b))
    assert facts(environment) == ["b - c == 0", "a - 2 >= 0"]


def test_sizes_of_several_elements_answer_without_a_fact_where_one_changes_nothing() -> None:
    environment, (a, b) = sizes(a=1, b=4)
    with assume_several():
        assert not environment.decide(compare("==", a, 1))
        assert environment.decide(compare(">", a * b, a))
        assert not environment.facts
        assert environment.decide(compare("==", b, 4))
    assert facts(environment) == ["b - 4 == 0"]
    assert environment.decide(compare("==", a, 1))
    assert environment.constants() == {a: 1, b: 4}


def test_only_the_sizes_that_are_told_answer_as_numbers_above_one() -> None:
    environment, (a, b, stride) = sizes(a=6, b=4, stride=30)
    with assume_several([a * b, floor_div(b, 3)]):
        assert environment.decide(compare(">", a * stride * b, stride))
        assert environment.decide(compare(">", b, 1))
        assert not environment.facts
        assert environment.decide(compare(">", stride, 1))
        assert environment.decide(compare(">", a, 1))
    assert facts(environment) == ["stride - 2 >= 0", "a - 2 >= 0"]


def test_a_size_that_does_not_exist_for_one_answers_as_for_more() -> None:
    environment, (a,) = sizes(a=8)
    with assume_several([floor_div(a + 5, a - 1)]):  # a division by zero if a is 1
        assert environment.decide(compare(">", a, 1))
    assert not environment.facts


def test_a_size_that_is_zero_in_the_example_is_not_taken_for_several() -> None:
    environment, (a,) = sizes(a=3)
    with assume_several([a - 3]):
        assert environment.decide(compare("==", a, 3))
    assert facts(environment) == ["a - 3 == 0"]


def test_a_number_that_is_not_smaller_than_several_is_several() -> None:
    environment, (part, whole) = sizes(part=5, whole=8)
    assert environment.decide(compare(">=", whole, part))
    with assume_several([part]):
        assert environment.decide(compare(">", whole, 1))
    assert facts(environment) == ["-part + whole >= 0"]


def test_whether_a_tensor_is_empty_is_a_fact() -> None:
    environment, (a,) = sizes(a=6)
    environment.rely_on_elements(a)
    assert not environment.facts
    with assume_several():
        environment.rely_on_elements(a - 1)
    assert facts(environment) == ["a - 1 != 0"]


def test_what_is_not_known_is_answered_by_the_hints_and_recorded_once() -> None:
    environment, (a, b) = sizes(a=6, b=4)
    assert environment.decide(compare(">", a, b))
    assert environment.decide(compare(">", a, b))
    assert not environment.decide(compare("<=", a, b))
    assert not environment.decide(compare("==", a, b))
    assert environment.decide(compare(">=", a, b))
    assert facts(environment) == ["a - b - 1 >= 0"]


def test_a_weaker_question_follows_from_a_fact() -> None:
    environment, (a, b) = sizes(a=16, b=4)
    environment.decide(compare(">", a, b + 5))
    assert environment.evaluate_static(compare(">", a, b + 2)) is True
    assert environment.evaluate_static(compare(">", a, b + 7)) is None


def test_a_bound_on_one_symbol_narrows_its_range() -> None:
    environment, (a,) = sizes(a=9)
    environment.decide(compare("<=", 3 * a, 29))
    assert environment.ranges[a] == (1, 9)
    assert environment.evaluate_static(compare("<", a, 10)) is True
    environment.decide(compare("!=", a, 1))
    assert environment.ranges[a] == (2, 9)


def test_a_symbol_with_one_value_left_is_replaced() -> None:
    environment, (a, b) = sizes(a=2, b=6)
    assert environment.decide(compare("<", a, 3))
    assert not environment.replacements
    assert environment.decide(compare(">", a, 1))
    assert environment.replacements[a] == 2
    assert environment.simplify(a * b) is 2 * b


def test_a_bound_on_a_quotient_is_one_on_its_numerator() -> None:
    environment, (a,) = sizes(a=70)
    assert environment.decide(compare("!=", (a + 31) // 32, 1))
    assert environment.ranges[a][0] == 33
    assert environment.evaluate_static(compare(">", (a + 15) // 16, 2)) is True
    environment.assume(compare("<", a // 10, 9))
    assert environment.ranges[a] == (33, 89)


def test_an_extremum_is_compared_by_its_arguments() -> None:
    environment, (a, b) = sizes(a=6, b=3)
    assert environment.decide(compare("==", Min.of(a, 4), 4))
    assert environment.decide(compare("<", Max.of(b, 2), a))
    assert facts(environment) == ["a - 4 >= 0", "a - b - 1 >= 0"]
    assert not environment.decide(compare("==", b - Min.of(b, 2), 0))
    assert environment.ranges[b][0] == 3


def test_an_extremum_is_known_beside_its_arguments() -> None:
    environment, (a, b) = sizes(a=6, b=3)
    for condition in (
        compare(">=", Max.of(a, b), a),
        compare(">=", 2 * Max.of(Min.of(a, 12), Min.of(b, 12)), 2 * Min.of(a, 12)),
        compare("<=", Min.of(a, b), b),
        compare("!=", a - Min.of(a, b) + 1, 0),
    ):
        assert environment.evaluate_static(condition) is True
        assert environment.evaluate_static(negate(condition)) is False
    assert environment.evaluate_static(compare(">=", Min.of(a, b), a)) is None
    assert environment.evaluate_static(compare("<=", Max.of(a, b), a)) is None


def test_terms_that_all_arguments_have_stand_beside_a_minimum() -> None:
    a, b = Symbol("a"), Symbol("b")
    assert Min.of(a + 3, a + b) == a + Min.of(b, 3)
    assert Max.of(2 * a * b + 1, 2 * a * b - b) - 2 * a * b == Max.of(1, -b)


def test_a_minimum_is_zero_where_its_other_argument_is() -> None:
    """min(a, 4) is 0 where a is 0; and min(a, -1) never."""
    a, b = Symbol("a"), Symbol("b")
    assert compare("==", Min.of(a, 4), 0) == compare("==", a, 0)
    assert compare("!=", Max.of(a, -4), 0) == compare("!=", a, 0)
    assert compare("==", Min.of(a, -1), 0) is False
    assert compare("!=", Max.of(a, 1), 0) is True
    assert compare("==", a - Max.of(a + 1, a + 3, b), 0) is False
    assert compare("==", a + 4 - Max.of(a + 1, a + 3, b), 0) == compare("==", a + 4, b)


def test_an_equation_narrows_ranges_by_earlier_inequalities() -> None:
    environment = Environment(locate=iter(("sum", "one")).__next__)
    a, b = environment.symbol("a", 24), environment.symbol("b", 1, 1)
    assert environment.decide(compare(">=", a + b, 25))
    assert environment.decide(compare("==", b, 1))
    assert environment.ranges[a][0] == 24
    assert environment.narrowed[a, "low"].origin == "sum"  # the fact that bounds the symbol, not the newest one
    assert environment.simplify(Min.of(a, 24)).constant == 24


def test_a_fact_makes_the_environment_forget_results() -> None:
    environment, (a, b) = sizes(a=6, b=4)
    asked: list[bool] = []

    def compute() -> bool:
        asked.append(environment.evaluate_static(compare(">", a, b)) is True)
        return asked[-1]

    assert [environment.remember("a > b", compute) for _ in range(2)] == [False, False] == asked * 2
    with assume_several():
        environment.remember("a > b", compute)
    assert len(asked) == 2
    environment.assume(compare(">", a, b))
    assert environment.remember("a > b", compute)


def test_equal_sizes_become_one_symbol() -> None:
    environment, (a, b) = sizes(a=6, b=6)
    assert environment.decide(compare("==", a, b))
    assert environment.simplify(b * 2 + a) is a * 3
    assert environment.evaluate_static(compare("==", a * b, b * a)) is True
    assert environment.evaluate_static(compare("==", a * a, b * b)) is True
    assert facts(environment) == ["a - b == 0"]
    assert not environment.constants()


def test_a_product_of_sizes_is_put_in_place_of_another() -> None:
    environment, (a, b, product) = sizes(a=2, b=3, product=6)
    assert environment.decide(compare("==", product, a * b))
    assert environment.simplify(product // a) is b


def test_a_value_that_was_asked_for_is_constant_from_then_on() -> None:
    environment, (a, b) = sizes(a=6, b=4)
    assert environment.specialize(a + b) == 10
    assert not environment.constants()
    assert environment.specialize(a) == 6
    assert environment.constants() == {a: 6, b: 4}


def test_only_what_settles_a_compound_question_is_recorded() -> None:
    environment, (a, b) = sizes(a=6, b=4)
    assert not environment.decide(conjunction(compare("==", a, 7), compare("==", b, 4)))
    assert facts(environment) == ["a - 7 != 0"]
    assert environment.decide(disjunction(compare("==", a, 5), compare("==", b, 4)))
    assert facts(environment) == ["a - 7 != 0", "b - 4 == 0"]


def test_a_contradiction_is_refused() -> None:
    environment, (a,) = sizes(a=6)
    environment.assume(compare("<", a, 10))
    with pytest.raises(ValueError, match="contradicts"):
        environment.assume(compare(">", a, 12))
    with pytest.raises(ValueError, match="symbol a already"):
        environment.size("a", 3)
    with pytest.raises(ValueError, match="not between"):
        environment.symbol("c", 3, 4)


def test_a_symbol_without_a_hint_can_only_be_asked_what_its_range_tells() -> None:
    environment = Environment()
    count = environment.symbol("count", None, 0)
    assert environment.decide(compare(">=", count, 0))
    with pytest.raises(Unsupported, match="count"):
        environment.decide(compare(">", count, 3))
    with pytest.raises(Unsupported, match="count"):
        environment.specialize(count)
    assert not environment.facts


def test_facts_say_where_they_come_from() -> None:
    environment = Environment(locate=lambda: "model.py:3")
    environment.decide(compare(">", environment.size("a", 6), 4))
    assert environment.facts[0].origin == "model.py:3"


expressions = st.recursive(
    st.one_of(st.integers(-6, 6), st.sampled_from([Symbol(name) for name in "abc"])),
    lambda children: st.one_of(
        st.tuples(children, children).map(lambda pair: pair[0] + pair[1]),
        st.tuples(children, children).map(lambda pair: pair[0] - pair[1]),
        st.tuples(children, children).map(lambda pair: pair[0] * pair[1]),
        st.tuples(children, st.integers(1, 5)).map(lambda pair: pair[0] // pair[1]),
        st.tuples(children, st.sampled_from([Symbol(name) for name in "abc"])).map(lambda pair: pair[0] // pair[1]),
        st.tuples(children, st.sampled_from([Symbol(name) for name in "abc"])).map(lambda pair: pair[0] % pair[1]),
        st.tuples(children, children).map(lambda pair: Min.of(*pair)),
        st.tuples(children, children).map(lambda pair: Max.of(*pair)),
    ),
    max_leaves=5,
)
questions = st.lists(st.tuples(st.sampled_from(RELATIONS), expressions, expressions), min_size=1, max_size=6)
values = st.tuples(*[st.integers(2, 9)] * 3)


def number(expr: Expr | int, point: dict[Symbol, int]) -> int:
    return expr.evaluate(point) if isinstance(expr, Expr) else expr


@given(questions, values, st.lists(values, max_size=8))
def test_answers_hold_wherever_the_facts_do(asked: list, hints: tuple, others: list) -> None:
    """The answer for the hints is the right one; at any other point where ranges and facts hold, it is right too."""
    environment = Environment()
    names = [environment.size(name, hint) for name, hint in zip("abc", hints, strict=True)]
    answers = [environment.decide(compare(*question)) for question in asked]
    for point in [hints, *others]:
        at = dict(zip(names, point, strict=True))
        if not environment.holds(at):  # type: ignore[arg-type]
            assert point != hints
            continue
        for (relation, left, right), answer in zip(asked, answers, strict=True):
            truth = eval(f"{number(left, at)} {relation} {number(right, at)}")  # type: ignore[arg-type]
            assert truth is answer
            for side in (left, right):
                assert environment.simplify(side).evaluate(at) == number(side, at)  # type: ignore[arg-type]


@given(questions, values, values)
def test_facts_print_as_python_that_checks_them(asked: list, hints: tuple, point: tuple) -> None:
    environment = Environment()
    names = [environment.size(name, hint) for name, hint in zip("abc", hints, strict=True)]
    for question in asked:
        environment.decide(compare(*question))
    at = dict(zip(names, point, strict=True))
    for fact in environment.facts:
        assert eval(str(fact), {str(name): value for name, value in at.items()}) is fact.condition.holds(at)  # type: ignore[arg-type]


def test_an_equation_is_known_after_its_symbol_is_replaced() -> None:
    environment, (a, b) = sizes(a=3, b=3)
    assert environment.decide(compare("==", b // 2, 1)) and environment.decide(compare("==", a, b))
    assert environment.simplify(b) is a
    assert environment.evaluate_static(compare("==", a // 2, 1)) is True
    assert environment.evaluate_static(compare("!=", a // 2, 1)) is False


def test_a_choice_between_two_ints_is_an_extremum_where_it_is_one_for_all_values():
    environment = Environment()
    n, m = environment.size("n", 6), environment.size("m", 4)
    assert environment.extremum(compare(">", n, 8), 8, n) is min
    assert environment.extremum(compare("<=", n, 8), 8, n) is max
    assert environment.extremum(compare("<", n, m), n + 2, m + 2) is min
    assert environment.extremum(compare(">=", n, 8), m + 7, n + m) is min
    assert environment.extremum(compare(">", n, 8), 9, n) is min
    assert environment.extremum(compare(">", n, 8), 10, n) is None
    assert environment.extremum(compare("==", n, 8), 8, n) is None
    assert not environment.facts
