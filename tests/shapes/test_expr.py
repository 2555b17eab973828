"""Canonical integer expressions: equal values everywhere, the simplifications lowering relies on, and printing."""

from __future__ import annotations

import copy
import itertools
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stator.shapes.expr import Expr, FloorDiv, Mod, Symbol, constant, symbols
from stator.shapes.extrema import Max, Min
from stator.shapes.simplify import _RULES, SymbolicRanges, loop_ranges, simplify

SYMBOLS = symbols("i j k")
i, j, k = SYMBOLS

leaves = st.one_of(st.integers(-12, 12).map(constant), st.sampled_from(SYMBOLS))
divisors = st.integers(1, 24)


def combine(children: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(
        st.tuples(st.just("+"), children, children),
        st.tuples(st.just("-"), children, children),
        st.tuples(st.just("*"), children, children),
        st.tuples(st.just("//"), children, divisors),
        st.tuples(st.just("%"), children, divisors),
        st.tuples(st.just("min"), children, children),
        st.tuples(st.just("max"), children, children),
    )


trees = st.recursive(leaves, combine, max_leaves=12)

OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def build(tree: object) -> Expr:
    if isinstance(tree, Expr):
        return tree
    name, left, right = tree
    if name in ("min", "max"):
        return (Min if name == "min" else Max).of(build(left), build(right))
    return OPERATIONS[name](build(left), right if isinstance(right, int) else build(right))


def value(tree: object, point: dict[Symbol, int]) -> int:
    if isinstance(tree, Symbol):
        return point[tree]
    if isinstance(tree, Expr):
        return tree.constant
    name, left, right = tree
    right = right if isinstance(right, int) else value(right, point)
    if name in ("min", "max"):
        return {"min": min, "max": max}[name](value(left, point), right)
    return OPERATIONS[name](value(left, point), right)


@given(trees, st.lists(st.integers(-50, 50), min_size=3, max_size=3))
@settings(max_examples=600, deadline=None)
def test_canonical_form_keeps_the_value(tree, numbers):
    point = dict(zip(SYMBOLS, numbers, strict=True))
    assert build(tree).evaluate(point) == value(tree, point)


@given(trees, st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(0, 2**32))
@settings(max_examples=600, deadline=None)
def test_simplify_keeps_the_value_within_the_ranges_and_bounds_hold(tree, sizes, seed):
    ranges = loop_ranges(SYMBOLS, sizes)
    expr = build(tree)
    simpler = simplify(expr, ranges)
    low, high = expr.bounds(ranges)
    rng = random.Random(seed)
    for _ in range(10):
        point = {symbol: rng.randrange(size) for symbol, size in zip(SYMBOLS, sizes, strict=True)}
        expected = value(tree, point)
        assert simpler.evaluate(point) == expected
        assert low <= expected <= high


@given(trees, trees, st.lists(st.integers(-20, 20), min_size=3, max_size=3))
@settings(max_examples=300, deadline=None)
def test_substitute_is_composition(tree, inner, numbers):
    point = dict(zip(SYMBOLS, numbers, strict=True))
    substituted = build(tree).substitute({i: build(inner)})
    assert substituted.evaluate(point) == value(tree, {**point, i: value(inner, point)})


def test_substitution_leaves_atoms_without_replaced_symbols_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    quotient = (j - 1) // 2
    index = i * quotient * quotient + 3 * quotient + (i + k) % 5
    with monkeypatch.context() as patched:
        patched.setattr("stator.shapes.expr.floor_div", None)
        result = index.substitute({i: k + 2})
    assert result is (k + 2) * quotient * quotient + 3 * quotient + (2 * k + 2) % 5


def test_atoms_are_simplified_once_for_all_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = SymbolicRanges({j: (2, 100)}, lambda expr: False)
    ranges.add_loop(i, j)
    quotient, simplified = FloorDiv._of(i + 3 * j, j), []

    def rule(atom: FloorDiv, given: SymbolicRanges) -> Expr:
        simplified.append(atom)
        return original(atom, given)

    original = _RULES[FloorDiv]
    monkeypatch.setitem(_RULES, FloorDiv, rule)
    for expr in (quotient + i, quotient * 2 - j, quotient * i):
        numbers = {i: 7, j: 9}
        assert simplify(expr, ranges).evaluate(numbers) == expr.evaluate(numbers)
    assert simplified == [quotient]


@given(trees)
@settings(max_examples=200, deadline=None)
def test_text_is_python_with_the_same_value(tree):
    expr = build(tree)
    point = {"i": 3, "j": -7, "k": 11}
    assert eval(str(expr), {}, point) == expr.evaluate({Symbol(name): number for name, number in point.items()})


def test_equal_expressions_are_one_object():
    assert (i + j) * 2 - j is i * 2 + j
    assert (i + 1) * (i - 1) is i * i - 1
    assert Symbol("i") is i
    assert copy.deepcopy(i + j) is i + j
    assert pickle.loads(pickle.dumps((i * 3 + j) // 4 + 2)) is (i * 3 + j) // 4 + 2


def test_constants_compare_with_ints():
    assert i - i == 0
    assert hash(constant(5)) == hash(5)
    assert (i + 1 == 1) is False


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ((32 * i + j) // 32, i),
        ((32 * i + j) % 32, j),
        ((64 * i + 32 * k + j) // 32, 2 * i + k),
        ((64 * i + 32 * k + j) // 64, i),
        ((64 * i + 32 * k + j) % 64, 32 * k + j),
        ((128 * i + 32 * k + j) // 64, 2 * i),
        ((j + 5 - 5) // 32, constant(0)),
        ((j + 32) // 32, constant(1)),
        (j // 4 * 4 + j % 4, j),
        ((j // 4) % 8, j // 4),
        (j % 64, j),
        ((i * 96 + j * 3 + k) // 3 % 32, j),
        (((i * 32 + j) // 8) * 8 + (i * 32 + j) % 8, i * 32 + j),
        ((63 * i + j + 8) // 64, i),
        ((63 * i + j + 8) % 64, j - i + 8),
    ],
)
def test_division_and_remainder_disappear_within_ranges(expr, expected):
    assert simplify(expr, loop_ranges(SYMBOLS, (7, 32, 2))) is expected


def test_nested_divisions_merge_without_ranges():
    assert i // 4 // 8 is i // 32
    assert ((i + 1) // 2 + 1) // 2 is (i + 3) // 4
    assert ((i - 1) // 2 - 3) // 5 is (i - 7) // 10
    assert (i % 32) % 8 is i % 8
    assert (6 * i) // 4 is (3 * i) // 2
    assert (8 * i + 3) % 4 == 3
    assert isinstance(i // 2, FloorDiv)
    assert isinstance(i % 2, Mod)


def test_quotients_of_padded_numbers_are_those_rounded_up():
    padded = i + (-i) % 8
    assert (-i) // 8 is -((i + 7) // 8)
    assert padded // 8 is (i + 7) // 8
    assert padded % 8 == 0
    assert simplify(padded - 8 * ((i + 7) // 8), {}) == 0


def test_coefficients():
    expr = 32 * i + (j // 4) + i * k + 7
    assert (32 * i + (j // 4) + 7).coefficient(i) == 32
    assert expr.coefficient(i) is k + 32
    assert (expr * i).coefficient(i) is None
    assert expr.coefficient(j) is None
    assert (i + 1).coefficient(j) == 0
    assert expr.offset == 7
    assert expr.symbols == {i, j, k}


def test_truth_of_a_symbolic_expression_is_refused():
    with pytest.raises(TypeError, match="not known"):
        bool(i + 1)


def test_quotients_of_quotients_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is padded to windows and halved many times: each size has the one before it twice."""
    size: Expr = i
    for _ in range(9):
        size = (size + -size % 7) // 2
    seen: list[Expr] = []
    for kind, name in itertools.product((FloorDiv, Mod), ("_atom_bounds", "_replaced")):
        real = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, given, real=real: (seen.append(self), real(self, given))[1])
    low, high = size.bounds({i: (1000, 2000)})
    assert low <= size.evaluate({i: 1500}) <= high
    assert len(seen) == len(set(seen))
    seen.clear()
    assert size.substitute({i: j + 1}).evaluate({j: 99}) == size.evaluate({i: 100})
    assert len(seen) == len(set(seen))
