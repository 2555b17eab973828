"""Long reductions in parts, as devices need them whose kernels do not share a reduction: eager's results."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from all_sizes import check_at_sizes, compiled_once, symbolic_fakes

from stator.graph.tracing.tracer import trace
from stator.inductor import devices
from stator.inductor.lower import can_lower, lower, split_reductions
from stator.inductor.passes import run_passes
from stator.inductor.passes.symbolic_sizes import with_expressions
from stator.inductor.schedule import schedule
from stator.shapes.environment import Environment

REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum of rows": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "sum of all": lambda x: (x * 2).sum(),
    "mean of padded rows": lambda x: F.pad(x, (1, 2)).mean(-1),
    "extrema": lambda x: (x.amax(0), x.amin(-1), x.amax()),
    "positions": lambda x: (x.argmax(-1), x.argmin(0), x.argmax()),
    "extrema and positions": lambda x: (*x.max(0), *x.min(1)),
    "logical": lambda x: ((x > 2).any(0), (x > -2).all(-1)),
    "integers": lambda x: (x * 8).long().sum(-1),
    "product": lambda x: (x.abs() + 0.5).clamp(max=1.1).prod(0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
    "moments": lambda x: (*torch.var_mean(x, 0), torch.var(x)),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "softmax": lambda x: torch.softmax(x, -1),
    "batch norm": lambda x: F.batch_norm(x.t().reshape(x.shape[1], -1, 1), None, None, training=True),
    "cross entropy": lambda x: F.cross_entropy(x, x.abs().long().sum(-1).clamp(max=1)),
}
SIZES = [(64, 96), (96, 64), (67, 101), (1, 300), (300, 2), (7, 1024), (2, 2)]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.TRAITS, "cpu", dataclasses.replace(devices.GPU, two_pass_elements=16, combined_bytes=0))
    monkeypatch.setattr(split_reductions, "_LONG", {False: 16, True: 8})
    monkeypatch.setattr(split_reductions, "_SHORTEST", {False: 8, True: 4})


@pytest.mark.parametrize("name", REDUCTIONS)
def test_parts_of_a_reduction_give_its_result(name: str) -> None:
    torch.manual_seed(0)
    for rows, columns in SIZES[:3]:
        x = torch.randn(rows, columns)
        x[0, -1] = torch.nan if name in ("extrema", "positions", "extrema and positions") else 1
        expected = REDUCTIONS[name](x)
        found = compiled_once(REDUCTIONS[name], [x], [(None, None)])[0](x)
        for one, other in zip(found, [expected] if isinstance(expected, torch.Tensor) else expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_parts_serve_all_sizes(name: str) -> None:
    if name == "product":
        pytest.skip("products of random numbers of every length lose all digits")
    torch.manual_seed(0)
    make = lambda rows, columns: [torch.randn(rows, columns)]  # noqa: E731
    check_at_sizes(REDUCTIONS[name], make, [("rows", "columns")], SIZES, rtol=1e-4, atol=1e-5, equal_nan=True)


def kernels_of(function: Callable[..., Any], *shape: int) -> int:
    """The kernels of a graph for a GPU. Nothing runs."""
    traced = trace(
        function, symbolic_fakes([torch.empty(shape)], [(None,) * len(shape)], Environment()), keep=can_lower
    )
    graph, sizes = with_expressions(traced.graph)
    return len(schedule(lower(run_passes(graph, False), False, sizes)).steps)


@pytest.mark.parametrize(
    ("name", "shape", "kernels"),
    [
        ("sum of rows", (4096, 8192), 1),
        ("sum of rows", (4, 1 << 25), 2),
        ("sum of all", (8192, 8192), 2),
        ("sum of columns", (131072, 1024), 2),
        ("positions", (1 << 27,), 2),
    ],
)
def test_only_long_reductions_with_few_results_are_split(
    name: str, shape: tuple[int, ...], kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(devices.TRAITS, "cpu", devices.GPU)
    function = {**REDUCTIONS, "positions": lambda x: x.argmax()}[name]
    assert kernels_of(function, *shape) == kernels


def test_parts_of_a_variance_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean and the squares of a part come from one kernel, and a second one combines both."""
    monkeypatch.undo()
    monkeypatch.setitem(devices.TRAITS, "cpu", devices.GPU)
    assert kernels_of(lambda x: torch.var_mean(x, [0, 2, 3]), 128, 256, 56, 56) == 2
    assert kernels_of(lambda x: torch.var_mean(x, 0), 131072, 1024) == 2
    assert kernels_of(lambda x: torch.var_mean(x, 0), 3136, 1024) == 2
