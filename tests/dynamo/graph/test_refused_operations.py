"""Operations that capture follows and a later stage cannot trace: the graph ends ahead of them, once and for all calls
at that line. Results and gradients are eager's, in float64 to 1e-9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import Tolerance, assert_same

import stator
from stator.base import counters

pytestmark = pytest.mark.filterwarnings("error:stator")
CLOSE = Tolerance(1e-9, 1e-9)


@torch.library.custom_op("stator_tests::scaled_groups", mutates_args=())
def scaled_groups(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x * 2


scaled_groups.register_fake(lambda x, ends: torch.empty_like(x))


def _gradient_by_groups(ctx: Any, gradient: torch.Tensor) -> Any:
    made = torch.zeros_like(gradient)
    for end in ctx.ends.tolist():  # reads data
        made[:end] = gradient[:end] * 2
    return made, None


def _keep_ends(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.ends = inputs[1]


scaled_groups.register_autograd(_gradient_by_groups, setup_context=_keep_ends)
ENDS = torch.tensor([1, 3, 4])


def gradient_that_reads_data(x: Any) -> Any:
    for _ in range(3):
        x = scaled_groups(x.sin().exp(), ENDS).cos()
    return x


def gradient_by_a_loop(x: Any) -> Any:
    columns = torch.linalg.householder_product(x.sin(), x[0].cos())
    return columns.exp().sum(), columns


def sparse_gradient(x: Any) -> Any:
    return torch.gather(x, 0, torch.tensor([[0, 1, 2]]), sparse_grad=True).exp() * 2


def memory_between_elements(x: Any) -> Any:
    y = x[:, ::2]
    return (y.as_strided((2, 2), (6, 2), 1).exp() * x.sum()).cos(), y


def least_squares(x: Any) -> Any:
    found = torch.linalg.lstsq(x.sin(), x.detach().cos(), driver="gelsd")
    return found.solution.exp(), found.residuals * 2


def inside_of_a_call(x: Any) -> Any:
    return gradient_by_a_loop(x * 2)[1].sin() + gradient_by_a_loop(x + 1)[0]


PROGRAMS = [
    gradient_that_reads_data, gradient_by_a_loop, sparse_gradient, memory_between_elements, least_squares,
    inside_of_a_call,
]  # fmt: skip


def given(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def results_of(run: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    results = run(x)
    results = list(results) if isinstance(results, tuple) else [results]
    roots = [result for result in results if result.requires_grad]
    tangents = [torch.linspace(0.5, 1.5, root.numel(), dtype=root.dtype).reshape(root.shape) for root in roots]
    (gradient,) = torch.autograd.grad(roots, [x], tangents)
    return [*results, gradient.to_dense().contiguous()]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_and_gradients_are_eagers(program: Callable[..., Any], backend: str) -> None:
    compiled = stator.compile(program, backend=backend)
    for seed in (0, 1):
        assert_same(results_of(compiled, given(seed)), results_of(program, given(seed)), CLOSE)
    counters.clear()
    assert_same(results_of(compiled, given(2)), results_of(program, given(2)), CLOSE)
    assert not counters.counts["graphs"] and not counters.counts["dynamo.failed_frames"]


def test_the_graph_ends_ahead_of_the_operation() -> None:
    counters.clear()
    results_of(stator.compile(gradient_by_a_loop), given())
    assert counters.counts["graph_breaks"] == 1 and not counters.counts["refused_graphs"]


def test_every_call_at_a_line_is_known_from_one_refusal() -> None:
    counters.clear()
    results_of(stator.compile(gradient_that_reads_data), given())
    assert counters.counts["graph_breaks"] == 3
    assert counters.counts["graphs"] <= 5  # the whole, which is refused once, and what lies around three calls


def test_under_fullgraph_the_graph_runs_operator_by_operator() -> None:
    compiled = stator.compile(gradient_by_a_loop, fullgraph=True)
    with pytest.warns(RuntimeWarning, match="a graph runs eagerly.*gradient-loop"):
        found = results_of(compiled, given())
    assert_same(found, results_of(gradient_by_a_loop, given()), CLOSE)


def test_without_gradients_the_graph_is_whole() -> None:
    counters.clear()
    with torch.no_grad():
        found = stator.compile(gradient_by_a_loop, fullgraph=True)(given())
    assert_same(found, gradient_by_a_loop(given().detach()), CLOSE)
    assert counters.counts["graphs"] == 1
