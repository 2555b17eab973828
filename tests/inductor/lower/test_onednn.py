"""Matrix products go to oneDNN's linear kernel where it is the quicker one, whatever the strides, and equal eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import stator
from stator.aot import compile_inference
from stator.base.config import Options
from stator.inductor.buffers import Extern, Lowered
from stator.inductor.lower import can_lower, lower, products_by_matrix
from stator.pipeline import compile_graph
from stator.runtime import choices, matrix_products

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

ROWS, INNER, COLUMNS = 128, 96, 128

CASES: dict[str, Function] = {
    "linear": lambda x, w, b: torch.nn.functional.linear(x, w.t(), b),
    "product": lambda x, w, b: x @ w,
    "row-major weight": lambda x, w, b: torch.addmm(b, x, w),
    "strided rows": lambda x, w, b: torch.addmm(b, torch.cat([x, x], 1)[:, 1 : INNER + 1], w),
    "transposed activation": lambda x, w, b: torch.addmm(b, x.t().contiguous().t(), w),
    "expanded bias": lambda x, w, b: torch.addmm(b[:1].expand(COLUMNS), x, w),
    "matrix instead of a bias": lambda x, w, b: torch.addmm(b.expand(ROWS, COLUMNS) + 0, x, w),
    "scaled": lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2.0),
}


@pytest.fixture(autouse=True)
def untuned_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor for which BLAS has no kernels of its own, where nothing was timed."""
    monkeypatch.setattr(matrix_products, "is_tuned_blas", lambda: False)
    monkeypatch.setattr(products_by_matrix, "_WORK", 1 << 62)  # no kernels of ours
    monkeypatch.setattr(matrix_products, "_TIMED_FROM", 1 << 62)
    monkeypatch.setattr(matrix_products, "_LEAST_WORK", 1 << 20)
    monkeypatch.setattr(choices, "_answered", {})
    monkeypatch.setattr(matrix_products, "_is_known_quicker", matrix_products._is_known_quicker.__wrapped__)


def lowered_graphs(function: Function, inputs: Sequence[torch.Tensor], seen: list[Lowered]) -> Callable[..., Any]:
    def compile_functional(graph: torch.fx.GraphModule, given: Sequence[torch.Tensor]) -> Callable[..., Any]:
        seen.append(lower(graph))
        return compile_graph(graph, given, options=Options(verify=True))

    module = torch.fx.symbolic_trace(lambda x, w, b: (function(x, w, b),))
    return compile_inference(module, inputs, compile_functional, keep=can_lower)


@pytest.mark.parametrize("place", [0, 1], ids=["whole storages", "behind others"])
@pytest.mark.parametrize("case", CASES)
def test_products_equal_eager(case: str, place: int) -> None:
    torch.manual_seed(0)
    sizes = ((ROWS, INNER), (INNER, COLUMNS), (COLUMNS,))
    inputs = [torch.randn(3, *size)[place] for size in sizes]
    with torch.no_grad():
        (actual,) = lowered_graphs(CASES[case], inputs, [])(*inputs)
        expected = CASES[case](*inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
    assert actual.stride() == expected.stride()


@pytest.mark.parametrize(("rows", "tuned", "by_onednn"), [(128, False, True), (2, False, False), (128, True, False)])
def test_products_go_to_the_quicker_library(
    rows: int, tuned: bool, by_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(matrix_products, "is_tuned_blas", lambda: tuned)
    inputs = [torch.randn(rows, INNER), torch.randn(INNER, COLUMNS), torch.randn(COLUMNS)]
    seen: list[Lowered] = []
    with torch.no_grad():
        lowered_graphs(CASES["row-major weight"], inputs, seen)
    targets = {node.target for node in seen[0].nodes if isinstance(node, Extern)}
    assert (torch.ops.mkldnn._linear_pointwise.default in targets) == by_onednn


@pytest.mark.parametrize("by_rows", [True, False])
def test_a_large_weight_that_lies_by_rows_goes_to_a_tuned_blas(by_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So lies a layer's weight in the gradient of its input, and by columns in its forward."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(matrix_products, "is_tuned_blas", lambda: True)
    x, weight = torch.randn(32, 1024), torch.randn(2048, 1024)
    inputs = [x, weight.t().contiguous() if by_rows else weight.t(), torch.randn(2048)]
    seen: list[Lowered] = []
    with torch.no_grad():
        (actual,) = lowered_graphs(lambda x, w, b: x @ w, inputs, seen)(*inputs)
    torch.testing.assert_close(actual, x @ weight.t(), rtol=1e-4, atol=1e-4)
    targets = {node.target for node in seen[0].nodes if isinstance(node, Extern)}
    assert (torch.ops.mkldnn._linear_pointwise.default in targets) != by_rows


@pytest.mark.parametrize("last", [None, torch.nn.GELU()], ids=["bias in the product", "bias in a loop"])
def test_a_product_with_a_changing_number_of_rows_chooses_for_each(
    last: torch.nn.Module | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    chosen: dict[int, bool] = {}
    choose = matrix_products.is_known_quicker

    def noted(rows: int, *others: int) -> bool:
        chosen[rows] = choose(rows, *others)
        return chosen[rows]

    monkeypatch.setattr(matrix_products, "is_known_quicker", noted)
    model = torch.nn.Sequential(torch.nn.Linear(INNER, COLUMNS), *([last] if last else [])).eval()
    compiled = stator.compile(model, dynamic=True)
    for rows in (2, 100, 7, 128):
        x = torch.randn(rows, INNER)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert chosen == {2: False, 100: True, 7: False, 128: True}


@pytest.mark.parametrize(
    "function",
    [lambda x, w, b: x.t() @ x, lambda x, w, b: x.expand(2, ROWS, INNER)[0].t() @ x],
    ids=["gradient of a weight", "through views"],
)
def test_a_transposed_first_operand_is_not_copied(function: Function) -> None:
    inputs = [torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS), torch.randn(COLUMNS)]
    seen: list[Lowered] = []
    with torch.no_grad():
        (actual,) = lowered_graphs(function, inputs, seen)(*inputs)
    assert [type(node) for node in seen[0].nodes] == [Extern]
    torch.testing.assert_close(actual, function(*inputs), rtol=1e-5, atol=1e-4)


def test_rows_far_apart_are_left_to_blas() -> None:
    """oneDNN multiplies matrices with gaps between their rows a thousand times slower."""
    inputs = [torch.randn(ROWS, INNER), torch.randn(ROWS, 8, COLUMNS), torch.randn(COLUMNS)]
    seen: list[Lowered] = []
    with torch.no_grad():
        lowered_graphs(lambda x, w, b: x @ w[:INNER, 0], inputs, seen)(*inputs)
    assert [node.target for node in seen[0].nodes if isinstance(node, Extern)] == [torch.ops.aten.mm.out]
