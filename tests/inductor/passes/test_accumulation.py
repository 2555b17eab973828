"""Rows and products are added to what is there, in its own memory where nobody else reads that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stator.base.config import Options
from stator.graph.tracing.tracer import trace
from stator.inductor.buffers import Loops
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes
from stator.pipeline import compile_graph

aten = torch.ops.aten
ROWS = 300


def rows_of(index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return aten.index_put(torch.zeros(ROWS, 24), [index], values, True)


def tied(a, b, index, values):
    return a.t() @ b + rows_of(index, values)


def tied_the_other_way(a, b, index, values):
    return rows_of(index, values) + (b.t() @ a).t()


def product_that_the_library_allocates(a, b, index, values):
    return torch.ones(ROWS, 200) @ torch.ones(200, 24) + rows_of(index, values)


def product_used_again(a, b, index, values):
    product = a.t() @ b
    return product + rows_of(index, values), product * 2


def rows_used_again(a, b, index, values):
    rows = rows_of(index, values)
    return a.t() @ b + rows, rows * 2


def rows_of_the_product(a, b, index, values):
    product = a.t() @ b
    return product + aten.index_put(torch.zeros(ROWS, 24), [index], product[: index.shape[0]], True)


def no_product(a, b, index, values):
    return a[:1].t().expand(ROWS, 24) * b[:1] + rows_of(index, values)


def scaled(a, b, index, values):
    return torch.add(a.t() @ b, rows_of(index, values), alpha=2)


def compare_with_eager(function: Callable) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(50, ROWS), torch.randn(50, 24), torch.randint(-ROWS, ROWS, (40,)), torch.randn(40, 24)]
    traced = trace(function, inputs, keep=can_lower)
    actual = compile_graph(traced.graph, inputs, options=Options(verify=True))(*inputs)
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    tolerance = 1e-2 if expected[0].dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(tuple(actual), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "function",
    [
        tied,
        tied_the_other_way,
        product_that_the_library_allocates,
        product_used_again,
        rows_used_again,
        rows_of_the_product,
        no_product,
        scaled,
    ],
)
def test_as_eager(function: Callable) -> None:
    compare_with_eager(function)


def test_a_tied_table_takes_one_pass_over_the_rows() -> None:
    inputs = [torch.randn(50, ROWS), torch.randn(50, 24), torch.randint(0, ROWS, (40,)), torch.randn(40, 24)]
    lowered = lower(run_passes(trace(tied, inputs, keep=can_lower).graph))
    assert sum(isinstance(node, Loops) for node in lowered.nodes) == 1  # no zeros, no copy, no sum of whole tables


def shared(a, b, index, values):
    return (a.t() @ b + (2 * a).t() @ b) + (3 * a).t() @ b


def shared_the_other_way(a, b, index, values):
    return (3 * a).t() @ b + (a.t() @ b + (2 * a).t() @ b)


def sum_of_sums(a, b, index, values):
    return (a.t() @ b + (2 * a).t() @ b) + ((3 * a).t() @ b + (4 * a).t() @ b)


def addends_used_again(a, b, index, values):
    one, other = a.t() @ b, (2 * a).t() @ b
    return one + other, one * 2, other * 2


def an_addend_returned(a, b, index, values):
    one = a.t() @ b
    return one + (2 * a).t() @ b, one


def twice_the_same(a, b, index, values):
    product = a.t() @ b
    return product + product


def product_of_the_other(a, b, index, values):
    one = a.t() @ b
    return one + (one @ b.t()).t().t() @ b


def half_floats(a, b, index, values):
    a, b = a.bfloat16(), b.bfloat16()
    return a.t() @ b + (2 * a).t() @ b


def transposed_sum(a, b, index, values):
    return (a.t() @ b).t() + ((2 * a).t() @ b).t()


@pytest.mark.parametrize(
    "function",
    [
        shared,
        shared_the_other_way,
        sum_of_sums,
        addends_used_again,
        an_addend_returned,
        twice_the_same,
        product_of_the_other,
        half_floats,
        transposed_sum,
    ],
)
def test_sums_of_products_as_eager(function: Callable) -> None:
    compare_with_eager(function)


def test_products_are_added_where_the_first_one_lies() -> None:
    inputs = [torch.randn(50, ROWS), torch.randn(50, 24), torch.randint(0, ROWS, (40,)), torch.randn(40, 24)]
    lowered = lower(run_passes(trace(shared, inputs, keep=can_lower).graph))
    calls = [node for node in lowered.nodes if not isinstance(node, Loops)]
    assert [call.target for call in calls] == [aten.mm.out, aten.addmm.out, aten.addmm.out]
    assert len({call.outputs for call in calls}) == 1
    assert lowered.outputs == list(calls[0].outputs)
