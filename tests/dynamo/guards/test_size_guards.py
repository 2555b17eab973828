"""Facts about sizes as programs of the C guards, compared with Python's evaluation of the same conditions."""

from __future__ import annotations

import itertools
import math
import operator
import random

import pytest
import torch

import stator
from stator.dynamo.cache import entry as entry  # registers the guards on tensors
from stator.dynamo.guards.guard import Guard, GuardedFact, GuardKind, SizeFacts
from stator.dynamo.guards.guard_tree import build_guard_tree, describe_failure
from stator.dynamo.guards.size_guards import has_program
from stator.dynamo.guards.source import FunctionSource, LocalSource, SizeSource
from stator.dynamo.guards.tensor_guards import may_read_sizes
from stator.dynamo.ir.size_expressions import size_source
from stator.shapes.conditions import compare, conjunction, disjunction
from stator.shapes.expr import symbols
from stator.shapes.extrema import Max, Min
from stator.shapes.floats import as_float, float_operation, int_call

S0, S1, S2 = symbols("s0 s1 s2")


def frame(x, n):
    return x, n


SOURCES = {S0: SizeSource(LocalSource("x"), 0), S1: SizeSource(LocalSource("x"), 1), S2: LocalSource("n")}


def tree_of(*conditions):
    if all(map(has_program, conditions)):
        facts = SizeFacts(tuple(SOURCES), tuple(SOURCES.values()), tuple(map(GuardedFact, conditions)))
        guard = Guard(FunctionSource(), GuardKind.SIZES, facts)
    else:
        (condition,) = conditions
        guard = Guard(size_source(condition, SOURCES), GuardKind.EQUALS, True)
    assert may_read_sizes(torch.Tensor)  # installs the layout of tensors
    return guard, build_guard_tree([guard], frame)


CONDITIONS = [
    compare("==", S0, S1),
    compare("==", S2, 4),
    compare("!=", S0, S2),
    compare(">=", S2, 3),
    compare("<=", S2, 3),
    compare(">", S0 * 2, S1 * S2),
    compare("==", S2 % 3, 1),
    compare("==", S2 // -2, -2),
    compare("==", (S2 - 5) % S0, 0),
    compare("==", (S2 - 4) // S1, -1),
    compare(">=", Min.of(S0, S1, S2), 3),
    compare("==", Max.of(S0, S1 * S2), S0),
    compare("<=", S0 * S0 - S1 * 3 + 7, S2 * 5),
    disjunction(compare("==", S0, S1), compare(">", S2, 5)),
    conjunction(compare("!=", S0, S1), compare("<", S2, 5)),
    compare("==", int_call(math.floor, float_operation(operator.mul, S2, 0.5)), 2),
    compare(">=", float_operation(operator.truediv, S2, S0), 1.5),
    compare("!=", float_operation(operator.mul, S1, 0.5), 2.0),
    compare("==", int_call(operator.and_, S2, 3), 1),
    disjunction(compare("==", S0, S1), compare("<", as_float(S2), 2.5)),
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_guards_decide_as_python_does(condition):
    _, tree = tree_of(condition)
    seen = set()
    for a, b, n in itertools.product(range(1, 6), range(1, 6), range(-1, 9)):
        expected = condition.holds({S0: a, S1: b, S2: n})
        seen.add(expected)
        assert tree.check((torch.empty(a, b), n), frame) is expected, (a, b, n)
    assert seen == {True, False}


def test_many_facts_hold_together():
    random.seed(0)
    some = [compare(">=", S0 * random.randint(1, 5) + S1 * random.randint(1, 5) - S2, 0) for _ in range(40)]
    _, tree = tree_of(*some)
    for a, b, n in itertools.product(range(1, 6), range(1, 6), range(0, 40, 3)):
        expected = all(one.holds({S0: a, S1: b, S2: n}) for one in some)
        assert tree.check((torch.empty(a, b), n), frame) is expected


@pytest.mark.parametrize("number", [2**63, -(2**70), True, 3.0, None])
def test_what_is_no_int_of_64_bits_fails(number):
    _, tree = tree_of(compare("!=", S2, 5))
    assert not tree.check((torch.empty(1, 1), number), frame)


def test_a_product_that_overflows_fails():
    _, tree = tree_of(compare("!=", S2 * S2 * S2, 5))
    assert tree.check((torch.empty(1, 1), 2**20), frame)
    assert not tree.check((torch.empty(1, 1), 2**30), frame)


def test_a_remainder_by_zero_fails():
    _, tree = tree_of(compare("==", S0 % S2, 0))
    assert not tree.check((torch.empty(1, 1), 0), frame)


def test_a_failure_names_the_fact_and_the_sizes():
    guard, tree = tree_of(compare(">=", S2, 0), compare("==", S0, S1))
    failure = tree.explain((torch.empty(3, 4), 1), frame)
    assert "x.size(0) == x.size(1) no longer holds: x.size(0) is 3, x.size(1) is 4" in describe_failure(
        [guard], failure
    )


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_jagged_tensor_whose_rows_get_another_length(fullgraph: bool) -> None:
    """The size that stands for the lengths cannot be compared with numbers, as the search for changed strides does."""

    def jagged(width: int) -> torch.Tensor:
        return torch.nested.nested_tensor([torch.rand(rows, width) for rows in (2, 3, 4)], layout=torch.jagged)

    compiled = stator.compile(lambda x: x.sin(), backend="eager", fullgraph=fullgraph)
    for width in (3, 4, 5, 6):
        x = jagged(width)
        assert torch.equal(compiled(x).values(), x.values().sin())
