"""Ranges of loops over symbolic sizes: what copies share, and what they keep for themselves."""

from __future__ import annotations

from stator.inductor.sizes import SizeKnowledge
from stator.shapes.conditions import compare
from stator.shapes.environment import Environment
from stator.shapes.expr import Symbol, floor_div, modulo
from stator.shapes.simplify import SymbolicRanges, add_loop, simplify

X, INDIRECT = Symbol("x0"), Symbol("indirect0")


def knowledge() -> tuple[SizeKnowledge, Symbol]:
    environment = Environment()
    return SizeKnowledge(environment), environment.size("rows", 6)


def test_equal_loops_share_simplified_expressions() -> None:
    sizes, rows = knowledge()
    first, second = (sizes.ranges((X,), (rows,)) for _ in range(2))
    index = modulo(X + rows, rows)
    assert simplify(index, first) is X
    assert index in second.results_for(index)
    assert index not in sizes.ranges((X,), (rows + 1,)).results_for(index)
    assert simplify(index, sizes.ranges((X,), (rows + 1,))) is not X


def test_a_loop_that_only_a_copy_has_is_its_own() -> None:
    sizes, rows = knowledge()
    first, second = (sizes.ranges((X,), (rows,)) for _ in range(2))
    add_loop(first, INDIRECT, 4)
    add_loop(second, INDIRECT, 8)
    index = floor_div(INDIRECT, 4) * 3 + X
    assert simplify(index, first) is X
    assert simplify(index, second) is index


def test_a_loop_that_a_copy_has_again_is_its_own() -> None:
    sizes, rows = knowledge()
    first, second = (sizes.ranges((X,), (4,)) for _ in range(2))
    add_loop(second, X, 8)
    index = floor_div(X, 4) + rows
    assert simplify(index, first) is rows
    assert simplify(index, second) is index


def test_a_copy_of_a_copy_goes_on_with_its_loops() -> None:
    sizes, rows = knowledge()
    first = sizes.ranges((X,), (rows,))
    add_loop(first, INDIRECT, 4)
    assert simplify(floor_div(INDIRECT, 4), first) == 0
    copy = first.copy()
    assert isinstance(copy, SymbolicRanges)
    assert simplify(floor_div(INDIRECT, 4) + X, copy) is X
    add_loop(copy, INDIRECT, 8)
    assert simplify(floor_div(INDIRECT + X, 4), copy) is not simplify(floor_div(X, 4), copy)


def test_a_new_fact_is_used_for_loops_seen_before() -> None:
    environment = Environment()
    sizes, rows, limit = SizeKnowledge(environment), environment.size("rows", 6), environment.size("limit", 9)
    index = modulo(X, limit)
    assert simplify(index, sizes.ranges((X,), (rows,))) is index
    assert sizes.hint(rows) == 6
    environment.decide(compare("<=", rows, limit))
    assert simplify(index, sizes.ranges((X,), (rows,))) is X


def test_examples_of_later_symbols_are_found() -> None:
    environment = Environment()
    sizes, rows = SizeKnowledge(environment), environment.size("rows", 6)
    assert sizes.hint(rows * 2) == 12
    columns = environment.size("columns", 5)
    assert sizes.hint(rows * columns) == 30
