"""Gradients of tables that are the last layer's weight too, under `exact_rounding`: eager's bits in one memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import stator
from stator.aot import keep_all
from stator.base import counters
from stator.base.config import Options
from stator.graph.tracing.tracer import trace
from stator.inductor.buffers import Extern
from stator.inductor.lower import lower
from stator.inductor.passes import run_passes
from stator.pipeline import compile_graph
from stator.runtime.table_rows import add_rows

aten = torch.ops.aten
ROWS, WIDTH = 400, 37


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers; any NaN is any other NaN."""
    integers = {torch.float32: torch.int32, torch.float64: torch.int64}[tensor.dtype]
    return torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor).view(integers)


def with_special(tensor: torch.Tensor) -> torch.Tensor:
    special = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-40, -1e-40], dtype=tensor.dtype)
    here = torch.rand(tensor.shape) < 0.2
    return torch.where(here, special[torch.randint(len(special), tensor.shape)], tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("padding", [-1, 7, 123])
@pytest.mark.parametrize("of_indices", [torch.int64, torch.int32])
def test_rows_have_the_bits_of_the_sum_of_both_tables(
    dtype: torch.dtype, scaled: bool, padding: int, of_indices: torch.dtype
) -> None:
    torch.manual_seed(0)
    indices = torch.randint(0, 20, (2, 50)).to(of_indices)  # 7 is among them
    gradient = with_special(torch.randn(2, 50, WIDTH, dtype=dtype))
    gradient[indices == 3] = -0.0
    total = with_special(torch.randn(ROWS, WIDTH, dtype=dtype))
    expected = total + aten.embedding_dense_backward(gradient, indices, ROWS, padding, scaled)
    add_rows(total, gradient, indices, padding, scaled, False, out=total)
    assert torch.equal(bits(total), bits(expected))
    again = total + aten.embedding_dense_backward(gradient, indices, ROWS, padding, scaled)
    add_rows(total, gradient, indices, padding, scaled, True, out=total)  # a sum has no zeros with a minus sign
    assert torch.equal(bits(total), bits(again))


def test_no_rows_leave_the_total_plus_zero() -> None:
    total = torch.full((ROWS, WIDTH), -0.0)
    add_rows(total, torch.empty(0, WIDTH), torch.empty(0, dtype=torch.int64), -1, False, False, out=total)
    assert torch.equal(bits(total), bits(torch.zeros(ROWS, WIDTH)))


def table(values: torch.Tensor, index: torch.Tensor, padding: int = -1) -> torch.Tensor:
    return aten.embedding_dense_backward(values, index, ROWS, padding, False)


def tied(a, b, index, values):
    return torch.mm(a.t(), b) + table(values, index)


def tied_the_other_way(a, b, index, values):
    return table(values, index, 3) + torch.mm(a.t(), b)


def of_two_tables(a, b, index, values):
    return table(values * 2, index) + (torch.mm(a.t(), b) + table(values, index))


def turned_twice(a, b, index, values):
    return (torch.mm(a.t(), b)).t().t() + table(values, index)


def rows_before_the_product(a, b, index, values):
    rows = table(values, index)
    return torch.mm(a.t(), b + values[0, 0]) + rows


def rows_of_the_product(a, b, index, values):
    product = torch.mm(a.t(), b)
    return product + table((torch.mm(b[:1], product.t())).expand(40, ROWS)[:, :WIDTH].contiguous(), index)


def product_used_again(a, b, index, values):
    product = torch.mm(a.t(), b)
    return product + table(values, index), product * 2


def product_returned(a, b, index, values):
    product = torch.mm(a.t(), b)
    return product + table(values, index), product


def rows_used_again(a, b, index, values):
    rows = table(values, index)
    return torch.mm(a.t(), b) + rows, rows * 2


def scaled_sum(a, b, index, values):
    return torch.add(torch.mm(a.t(), b), table(values, index), alpha=2)


def no_product(a, b, index, values):
    return (torch.mm(a.t(), b)).cos() + table(values, index)


def half_floats(a, b, index, values):
    return torch.mm(a.t().bfloat16(), b.bfloat16()) + table(values.bfloat16(), index)


def of_many_rows(a, b, index, values):
    return torch.mm(a.t(), b) + table(values.repeat(9, 1), index.repeat(9))


IN_PLACE = [tied, tied_the_other_way, of_two_tables, turned_twice, rows_before_the_product]
OTHERS = [
    rows_of_the_product,
    product_used_again,
    product_returned,
    rows_used_again,
    scaled_sum,
    no_product,
    half_floats,
    of_many_rows,
]


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(50, ROWS), torch.randn(50, WIDTH), torch.randint(0, ROWS, (40,)), torch.randn(40, WIDTH)]


@pytest.mark.parametrize("function", [*IN_PLACE, *OTHERS])
def test_sums_have_eagers_bits(function: Callable[..., Any]) -> None:
    given = inputs()
    traced = trace(function, given, keep=keep_all)
    options = Options(exact_rounding=True, verify=True)
    for _ in range(2):
        actual = compile_graph(traced.graph, given, options=options)(*given)
        expected = function(*given)
        for one, other in zip(actual, expected if isinstance(expected, tuple) else (expected,), strict=True):
            assert torch.equal(bits(one.float()), bits(other.float()))


@pytest.mark.parametrize("function", [*IN_PLACE, *OTHERS])
def test_rows_are_added_where_the_product_lies(function: Callable[..., Any]) -> None:
    graph = trace(function, inputs(), keep=keep_all).graph
    lowered = lower(run_passes(graph, exact=True), exact=True)
    calls = [node for node in lowered.nodes if isinstance(node, Extern)]
    of_rows = [call for call in calls if call.target is add_rows]
    assert bool(of_rows) == (function in IN_PLACE)
    if of_rows:
        assert not any(call.target is aten.embedding_dense_backward.default for call in calls)
        assert {call.outputs for call in of_rows} <= {call.outputs for call in calls if call.target is aten.mm.default}
        assert [call.args[-1] for call in of_rows] == [False, True][: len(of_rows)]


class Tied(torch.nn.Module):
    """A step whose peak is at its end: a large table is read twice and multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(8192, 64, padding_idx=0)
        self.between = torch.nn.Linear(64, 64)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        x = self.between(self.table(one)).relu() + self.table(other)
        return F.linear(x, self.table.weight).square().mean()


def test_a_tied_table_takes_one_gradient() -> None:
    model = Tied()
    given = [torch.randint(0, 8192, (4,)) for _ in range(2)]
    model(*given).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    counters.clear()
    stator.compile(model, fullgraph=True, options={"exact_rounding": True, "verify": True})(*given).backward()
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        assert torch.equal(bits(parameter.grad), bits(wanted))
    assert counters.counts["memory:backward_peak"] < 1.5 * model.table.weight.nbytes
