"""Random numbers in kernels: bit by bit those of the eager reference, in scalars and vectors, in any order of loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inductor.lowered_evaluator import run
from torch import fx

from stator.aot import functionalize_random
from stator.base import dumps
from stator.base.config import Options
from stator.graph.tracing.tracer import trace
from stator.inductor.buffers import Extern
from stator.inductor.codegen.cpp import print_kernel
from stator.inductor.codegen.host import load_dumped
from stator.inductor.lower import can_lower, lower, verify_lowered
from stator.inductor.passes import run_passes
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import Group
from stator.pipeline import compile_graph
from stator.prims.operators import random
from stator.prims.record import TensorMeta, records

CPU = torch.device("cpu")
SEED = torch.tensor(-987654321987)
CASES: list[tuple[Any, ...]] = [
    *((random.uniform, dtype) for dtype in random.NORMAL_DTYPES),
    *((random.uniform, dtype, True) for dtype in random.OPEN_DTYPES),
    *((random.normal, dtype) for dtype in random.NORMAL_DTYPES),
    *((random.bernoulli, p) for p in (0.0, 0.3, 1.0)),
    *((random.integers, low, high) for low, high in ((0, 10), (-5, 60_000), (0, 2**31), (-(2**40), 2**61))),
]


def graph_of_cases(size: Sequence[int]) -> fx.GraphModule:
    """Takes a seed, returns a tensor of every case."""
    graph = fx.Graph()
    seed = graph.placeholder("seed")
    seed.meta["val"] = TensorMeta((), (), torch.int64, CPU)
    outputs = []
    for stream, (target, *arguments) in enumerate(CASES):
        node = graph.call_function(target, (seed, stream, list(size), *arguments))
        rule: Any = records.get(target).shape
        node.meta["val"] = rule(SEED, stream, list(size), *arguments)
        outputs.append(node)
    graph.output(tuple(outputs)).meta["val"] = tuple(node.meta["val"] for node in outputs)
    return fx.GraphModule(torch.nn.Module(), graph)


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    return functionalize_random(trace(function, inputs, keep=can_lower).graph)


def in_threads(count: int, function: Callable[[], Any]) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return function()
    finally:
        torch.set_num_threads(before)


# rows that are whole blocks of 64, whole vectors, and neither; enough elements for two threads; none; one
@pytest.mark.parametrize("size", [[], [7], [0, 4], [3, 5, 17], [64, 64], [130, 1000]])
def test_kernels_give_the_numbers_of_the_reference(size: list[int]) -> None:
    expected = graph_of_cases(size)(SEED)
    for vectorize in (True, False):
        compiled = compile_graph(graph_of_cases(size), [SEED], options=Options(verify=True, vectorize=vectorize))
        for threads in (1, 2):
            for got, want, case in zip(in_threads(threads, lambda: compiled(SEED)), expected, CASES, strict=True):
                assert torch.equal(got, want), (case, vectorize, threads)


@pytest.mark.parametrize("size", [[], [0, 4], [3, 70]])
def test_the_reference_evaluator_gives_the_numbers_of_the_reference(size: list[int]) -> None:
    lowered = lower(run_passes(graph_of_cases(size)))
    verify_lowered(lowered)
    for got, want, case in zip(run(lowered, [SEED]), graph_of_cases(size)(SEED), CASES, strict=True):
        assert torch.equal(got, want), case


FUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "added to a contiguous tensor": lambda x: torch.rand(36, 52) + x,
    "added to a transposed tensor": lambda x: torch.rand(52, 36).t() + x,
    "transposed and stored": lambda x: torch.rand(52, 36).t().contiguous() * 2,
    "sliced": lambda x: torch.rand(80, 60)[3:39, 5:57] + x,
    "strided": lambda x: torch.rand(36, 104)[:, ::2] + x,
    "flipped": lambda x: torch.rand(36, 52).flip(1) + x,
    "padded": lambda x: torch.nn.functional.pad(torch.rand(30, 50), (1, 1, 2, 4)) + x,
    "broadcast over rows": lambda x: torch.rand(52) + x,
    "broadcast over columns": lambda x: torch.rand(36, 1) + x,
    "of one row": lambda x: torch.rand(1, 52) + x,
    "gathered": lambda x: torch.rand(100, 52)[torch.arange(36) * 2] + x,
    "reduced over rows": lambda x: (torch.rand(36, 52) + x).sum(0),
    "reduced over columns": lambda x: (torch.rand(36, 52) + x).sum(1),
    "reduced to one number": lambda x: torch.rand(300, 400).sum() + x.sum(),
    "a normalised row": lambda x: torch.softmax(torch.rand(36, 52) + x, -1),
    "used twice": lambda x: (lambda u: (u + x).sum(1, keepdim=True) * u)(torch.rand(36, 52)),
    "with attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        *[x.view(1, 4, 9, 52) for _ in range(3)], dropout_p=0.3
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_loops_in_any_order_take_the_same_numbers(name: str) -> None:
    x = torch.randn(36, 52, generator=torch.Generator().manual_seed(0))
    graph = traced(FUSED[name], x)
    torch.manual_seed(11)
    want = graph(x)[0]
    for options in (Options(verify=True), Options(verify=True, fusion=False)):
        torch.manual_seed(11)
        got = compile_graph(traced(FUSED[name], x), [x], options=options)(x)[0]
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_dropout_and_what_follows_are_one_kernel() -> None:
    x = torch.randn(64, 64)
    lowered = lower(run_passes(traced(lambda x, y: torch.nn.functional.dropout(x, 0.1) + y, x, x)))
    steps = schedule(lowered).steps
    assert [type(step) for step in steps] == [Extern, Group]
    (group,) = (step for step in steps if isinstance(step, Group))
    source = print_kernel(group, lowered.buffers).source
    assert "random_run(" in source and "random_lanes(" not in source


def test_layers_that_differ_in_their_stream_share_a_kernel() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.nn.functional.dropout(torch.relu(x @ w), 0.1)
        return x

    lowered = lower(run_passes(traced(layers, torch.randn(32, 32), torch.randn(32, 32))))
    groups = [step for step in schedule(lowered).steps if isinstance(step, Group)]
    assert len(groups) == 4
    assert len({print_kernel(group, lowered.buffers).symbol for group in groups}) == 1


def test_a_dumped_compilation_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    x = torch.randn(50)
    with dumps.compilation("dropout"):
        graph = traced(lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x), x)
        compiled = compile_graph(graph, [x], options=Options())
    (folder,) = tmp_path.iterdir()
    results = []
    for run_it in (compiled, load_dumped(folder)):
        torch.manual_seed(0)
        results.append(run_it(x)[0])
    assert torch.equal(*results)


def test_a_seed_is_drawn_by_one_library_call() -> None:
    lowered = lower(run_passes(traced(lambda x: torch.rand_like(x) + torch.randn_like(x), torch.randn(8))))
    externs = [node for node in lowered.nodes if isinstance(node, Extern)]
    assert [extern.target for extern in externs] == [torch.ops.aten.randint.low]


def test_library_calls_that_draw_keep_their_order() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shared = torch.exp(x)
        first = torch.poisson(shared)
        second = torch.poisson(y.abs())
        return first, shared + second  # worth fusing with `shared`, but then the second would come first

    x, y = torch.randn(60, 60), torch.randn(60, 60)
    compiled = compile_graph(traced(function, x, y), [x, y], options=Options(verify=True))
    torch.manual_seed(3)
    want = function(x, y)
    torch.manual_seed(3)
    for got, expected in zip(compiled(x, y), want, strict=True):
        torch.testing.assert_close(got, expected)


def test_unused_library_calls_that_draw_are_kept() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.randperm(5)
        return torch.poisson(x.abs())

    x = torch.randn(20)
    compiled = compile_graph(traced(function, x), [x], options=Options(verify=True))
    torch.manual_seed(3)
    want = function(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x)[0], want)
