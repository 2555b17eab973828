"""Division of polynomials: the defining equation, and that exact quotients are found."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from stator.shapes.expr import Expr, constant, symbols

i, j, k = symbols("i j k")
leaves = st.one_of(st.integers(-5, 5).map(constant), st.sampled_from((i, j, k)))
polynomials = st.recursive(
    leaves,
    lambda children: st.one_of(
        st.tuples(children, children).map(lambda pair: pair[0] + pair[1]),
        st.tuples(children, children).map(lambda pair: pair[0] * pair[1]),
    ),
    max_leaves=6,
)
points = st.tuples(*[st.integers(-7, 7)] * 3).map(lambda values: dict(zip((i, j, k), values, strict=True)))


@given(polynomials, polynomials, points)
def test_quotient_and_remainder_are_pythons(top: Expr, bottom: Expr, point: dict) -> None:
    assume(bottom.symbols and bottom.evaluate(point) != 0)
    numbers = top.evaluate(point), bottom.evaluate(point)
    assert ((top // bottom).evaluate(point), (top % bottom).evaluate(point)) == divmod(*numbers)


@given(polynomials, polynomials)
def test_a_product_is_divided_out(first: Expr, second: Expr) -> None:
    assume(second.symbols)
    assert (first * second) // second is first
    assert ((first * second) % second).constant == 0


def test_multiples_leave_the_numerator() -> None:
    assert str((i * j + i + 1) // i) == str(j + 1 + 1 // i)
    assert ((i * j + k) % i) is (k % i)
