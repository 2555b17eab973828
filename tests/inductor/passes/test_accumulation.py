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


FILLED: dict[str, Callable] = {
    "tied": lambda a, b, index, values: a.t() @ b + rows_of(index, values),
    "tied the other way": lambda a, b, index, values: rows_of(index, values) + (b.t() @ a).t(),
    "product that the library allocates": lambda a, b, index, values: (
        torch.ones(ROWS, 200) @ torch.ones(200, 24) + rows_of(index, values)
    ),
    "product used again": lambda a, b, index, values: (
        (product := a.t() @ b) + rows_of(index, values),
        product * 2,
    ),
    "rows used again": lambda a, b, index, values: (a.t() @ b + (rows := rows_of(index, values)), rows * 2),
    "rows of the product": lambda a, b, index, values: (
        (product := a.t() @ b) + aten.index_put(torch.zeros(ROWS, 24), [index], product[: index.shape[0]], True)
    ),
    "no product": lambda a, b, index, values: a[:1].t().expand(ROWS, 24) * b[:1] + rows_of(index, values),
    "scaled": lambda a, b, index, values: torch.add(a.t() @ b, rows_of(index, values), alpha=2),
}
SUMS: dict[str, Callable] = {
    "shared": lambda a, b, *_: (a.t() @ b + (2 * a).t() @ b) + (3 * a).t() @ b,
    "shared the other way": lambda a, b, *_: (3 * a).t() @ b + (a.t() @ b + (2 * a).t() @ b),
    "sum of sums": lambda a, b, *_: (a.t() @ b + (2 * a).t() @ b) + ((3 * a).t() @ b + (4 * a).t() @ b),
    "addends used again": lambda a, b, *_: ((one := a.t() @ b) + (other := (2 * a).t() @ b), one * 2, other * 2),
    "an addend returned": lambda a, b, *_: ((one := a.t() @ b) + (2 * a).t() @ b, one),
    "twice the same": lambda a, b, *_: (product := a.t() @ b) + product,
    "product of the other": lambda a, b, *_: (one := a.t() @ b) + (one @ b.t()).t().t() @ b,
    "half floats": lambda a, b, *_: (a := a.bfloat16()).t() @ (b := b.bfloat16()) + (2 * a).t() @ b,
    "transposed sum": lambda a, b, *_: (a.t() @ b).t() + ((2 * a).t() @ b).t(),
}


@pytest.mark.parametrize("name", FILLED | SUMS)
def test_as_eager(name: str) -> None:
    function = (FILLED | SUMS)[name]
    torch.manual_seed(0)
    inputs = [torch.randn(50, ROWS), torch.randn(50, 24), torch.randint(-ROWS, ROWS, (40,)), torch.randn(40, 24)]
    traced = trace(function, inputs, keep=can_lower)
    actual = compile_graph(traced.graph, inputs, options=Options(verify=True))(*inputs)
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    tolerance = 1e-2 if expected[0].dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(tuple(actual), expected, rtol=tolerance, atol=tolerance)


def test_a_tied_table_takes_one_pass_over_the_rows() -> None:
    inputs = [torch.randn(50, ROWS), torch.randn(50, 24), torch.randint(0, ROWS, (40,)), torch.randn(40, 24)]
    lowered = lower(run_passes(trace(FILLED["tied"], inputs, keep=can_lower).graph))
    assert sum(isinstance(node, Loops) for node in lowered.nodes) == 1  # no zeros, no copy, no sum of whole tables


def test_products_are_added_where_the_first_one_lies() -> None:
    inputs = [torch.randn(50, ROWS), torch.randn(50, 24), torch.randint(0, ROWS, (40,)), torch.randn(40, 24)]
    lowered = lower(run_passes(trace(SUMS["shared"], inputs, keep=can_lower).graph))
    calls = [node for node in lowered.nodes if not isinstance(node, Loops)]
    assert [call.target for call in calls] == [aten.mm.out, aten.addmm.out, aten.addmm.out]
    assert len({call.outputs for call in calls}) == 1
    assert lowered.outputs == list(calls[0].outputs)
