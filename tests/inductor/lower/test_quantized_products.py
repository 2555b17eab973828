"""Products of a few rows with quantized weights become loops over the weight's bytes, and equal eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import FUSED, NARROW, assert_same
from tests.inductor.lower.lowering_oracle import library_calls, lowered_of

import stator
from stator.inductor.buffers import Loops
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.operators import quantized_products
from stator.inductor.passes import constants

Function = Callable[..., torch.Tensor]

INNER, COLUMNS, GROUP = 96, 72, 32
GROUPS = INNER // GROUP


def by_column(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, weight.t().to(x.dtype)) * scale


def by_row(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.mm(x, weight.view(INNER, -1).to(x.dtype)) * scale)


def by_group(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scales = scale.view(-1, 1, 1) * torch.arange(1, GROUPS + 1, dtype=x.dtype).view(1, GROUPS, 1)
    dequantized = (weight.view(-1, GROUPS, GROUP).to(x.dtype) - 3) * scales
    return torch.nn.functional.linear(x, dequantized.view(-1, INNER), scale)


def of_computed_rows(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 1).exp() @ weight.to(x.dtype).t() * scale


def of_nibbles(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    bytes = weight.view(torch.uint8)[:, : INNER // 2]
    numbers = torch.stack([bytes & 15, bytes >> 4], dim=-1).view(COLUMNS, INNER)
    return x @ (numbers.to(x.dtype) - 8).t() * scale


def with_bias(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight.to(x.dtype), scale).relu()


def of_a_part(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x[:, ::3].repeat(1, 3) @ weight[32:].to(torch.float32).to(x.dtype).t() * scale[32:]


def arguments(rows: int, dtype: torch.dtype, columns: int = COLUMNS) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    weight = torch.randint(-128, 128, (columns, INNER), dtype=torch.int8)
    return torch.randn(rows, INNER).to(dtype), weight, (torch.rand(columns) / 100).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("function", [by_column, by_row, by_group, of_computed_rows, of_nibbles])
def test_results_equal_eager(function: Function, rows: int, dtype: torch.dtype) -> None:
    inputs = arguments(rows, dtype)
    compiled = stator.compile(function, fullgraph=True, options={"verify": True})
    assert_same(compiled(*inputs), function(*inputs), FUSED if dtype.itemsize > 2 else NARROW)


@pytest.mark.fixed_sizes  # with a symbol for the number of rows, the library multiplies
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("function", [by_column, by_group, of_computed_rows])
def test_the_weight_is_not_stored_in_the_dtype_of_the_rows(function: Function, rows: int) -> None:
    lowered = lowered_of(function, arguments(rows, torch.float32))
    assert not library_calls(lowered)
    sizes = [math.prod(one.layout.size) for one in lowered.buffers.values() if one.kind == "computed"]
    assert sizes and max(sizes) <= rows * max(INNER, COLUMNS)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(
    ("rows", "columns", "lanes", "iterations"),
    [(1, 12, 16, 3), (2, 12, 16, 3), (3, 12, 16, 3), (8, 12, 16, 6), (8, 12, 8, 12), (2, 6, 16, 3), (2, 7, 16, 7)],
)
@pytest.mark.parametrize("function", [by_column, by_group, with_bias])
def test_an_element_of_long_rows_is_loaded_once_for_several_columns(
    function: Function, rows: int, columns: int, lanes: int, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_products, "_NEAREST_CACHE", 4 * rows * INNER)
    monkeypatch.setattr(quantized_products, "float_lanes", lambda: lanes)
    inputs = arguments(rows, torch.float32, columns)
    sums = [node for node in lowered_of(function, inputs).nodes if isinstance(node, Loops) and node.body.reduction_vars]
    assert [node.body.ranges for node in sums] == [(iterations,)]
    compiled = stator.compile(function, fullgraph=True, options={"verify": True})
    assert_same(compiled(*inputs), function(*inputs), FUSED)


@pytest.mark.parametrize(
    "function",
    [lambda x, w, s: x @ w.to(x.dtype).t().exp(), lambda x, w, s: x @ (w[:, :1] + w[:1]).to(x.dtype).t() @ w.float()],
    ids=["exponentials", "sums"],
)
def test_other_matrices_multiply_as_before(function: Function) -> None:
    x, weight, scale = arguments(3, torch.float32)
    weight = weight % 4
    compiled = stator.compile(function, fullgraph=True)
    assert_same(compiled(x, weight, scale), function(x, weight, scale), FUSED)


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("low", [-128, -5])
@pytest.mark.parametrize(("inner", "columns"), [(96, 72), (128, 64)])
def test_products_of_bytes_are_exact(rows: int, low: int, inner: int, columns: int) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(x, weight.t()) + 1

    torch.manual_seed(0)
    x = torch.randint(low, 128, (rows, inner), dtype=torch.int8)
    weight = torch.randint(low, 128, (columns, inner), dtype=torch.int8)
    extreme = torch.full_like(weight, -128)
    compiled = stator.compile(function, fullgraph=True)
    for given in ((x, weight), (torch.full_like(x, -128), extreme), (x.t().contiguous().t(), weight)):
        assert torch.equal(compiled(*given, x), function(*given, x))
    by_rows = weight.t().contiguous().t()
    assert torch.equal(compiled(x, by_rows, x), function(x, by_rows, x))


def test_gradients_of_rows() -> None:
    x, weight, scale = arguments(2, torch.float32)
    results = []
    for function in (by_column, stator.compile(by_column, fullgraph=True)):
        rows = x.clone().requires_grad_()
        function(rows, weight, scale).square().sum().backward()
        results.append(rows.grad)
    assert_same(results[1], results[0], FUSED)


def prefer_tiles(monkeypatch: pytest.MonkeyPatch, quicker: bool = True) -> None:
    """As on a processor that has tiles, and is quicker with them, or not."""
    monkeypatch.setattr(quantized_products, "has_tiles_for", lambda inner, columns, dtype: dtype is torch.bfloat16)
    for module in (quantized_products, constants):
        monkeypatch.setattr(module, "is_quicker", lambda rows, inner, columns, dtype, constant: quicker)


@pytest.mark.parametrize("function", [by_column, with_bias, of_a_part, by_row, by_group])
def test_rows_of_bfloat16_multiply_in_tiles(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the matrix is converted, and nothing else, and its columns are contiguous."""
    prefer_tiles(monkeypatch)
    x, weight, scale = arguments(40, torch.bfloat16, columns=64)
    compiled = stator.compile(function, fullgraph=True, options={"verify": True})
    assert_same(compiled(x, weight, scale), function(x, weight, scale), NARROW)
    calls = [call.target for call in library_calls(lowered_of(function, (x, weight, scale)))]
    assert (torch.ops.stator.tile_product.default in calls) == (function not in (by_row, by_group))


def test_a_changing_number_of_rows_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_tiles(monkeypatch)
    compiled = stator.compile(with_bias, fullgraph=True, dynamic=True)
    for rows in (20, 5, 700, 1):
        inputs = arguments(rows, torch.bfloat16, columns=64)
        assert_same(compiled(*inputs), with_bias(*inputs), NARROW)


class Converted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        _, weight, scale = arguments(1, torch.bfloat16, columns=64)
        self.weight, self.scale = torch.nn.Buffer(weight), torch.nn.Buffer(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        _, weight, scale = arguments(1, torch.float32)
        self.weight, self.scale = torch.nn.Buffer(weight), torch.nn.Buffer(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.scale[:, None])


@pytest.mark.fixed_sizes  # a kernel for any number of rows reads weights of floats
@pytest.mark.parametrize(
    ("layer", "rows", "dtype", "in_tiles", "has_halves", "stays"),
    [
        (Layer, 1, torch.float32, True, True, True),
        (Layer, 8, torch.float32, True, True, True),
        (Layer, 64, torch.float32, True, True, False),
        (Converted, 64, torch.bfloat16, True, True, True),
        (Converted, 600, torch.bfloat16, True, True, True),
        (Converted, 64, torch.bfloat16, False, True, False),
        (Converted, 8, torch.bfloat16, False, False, True),
        (Converted, 8, torch.bfloat16, False, True, False),
        (Converted, 2, torch.bfloat16, False, True, True),
    ],
)
def test_frozen_weights_stay_quantized(
    layer: type,
    rows: int,
    dtype: torch.dtype,
    in_tiles: bool,
    has_halves: bool,
    stays: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """in_tiles: whether these were timed to be quicker than libraries. has_halves: whether oneDNN multiplies bfloat16
    on the processor."""
    monkeypatch.setattr(constants, "onednn_takes", lambda dtype: has_halves)
    prefer_tiles(monkeypatch, in_tiles)
    seen: list[torch.dtype] = []
    original = LoweringBuilder.add_constant

    def spy(builder: LoweringBuilder, value: torch.Tensor, name: str) -> Any:
        seen.append(value.dtype)
        return original(builder, value, name)

    monkeypatch.setattr(LoweringBuilder, "add_constant", spy)
    eager, x = layer().eval(), torch.randn(rows, INNER, dtype=dtype)
    with torch.no_grad():
        assert_same(stator.freeze(eager, fullgraph=True)(x), eager(x), FUSED)
    assert (torch.int8 in seen) == stays
