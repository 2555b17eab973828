"""Whole training steps with schedulers, clipping, scalers and averages under one stator.compile, against eager.

Losses and parameters agree with eager within 1e-4 of the largest value after all steps, in float32.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optimizer_cases import as_it_is
from training_loops import BREAKS, LOOPS

import stator
from stator.base import counters

# versions that a scheduler inside of the step makes by its count; their number does not grow with the steps
MOST_VERSIONS = {
    "SequentialLR inside": 5,
    "CosineAnnealingWarmRestarts inside": 5,
    "SWALR inside": 4,
    "accumulated": 4,
}

# schedulers that change the rate as others do that are run quickly
ALIKE = {
    "CosineAnnealingLR",
    "ConstantLR",
    "LinearLR",
    "ExponentialLR",
    "PolynomialLR",
    "MultiplicativeLR",
    "MultiStepLR",
}
ALIKE |= {"ChainedScheduler", "SWALR"}

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about its own deprecations


def assert_trains_alike(name: str, backend: str) -> None:
    expected, net = LOOPS[name](as_it_is)
    counters.clear()
    whole = name not in BREAKS
    found, ours = LOOPS[name](lambda function: stator.compile(function, backend=backend, fullgraph=whole))
    assert not counters.counts["dynamo.recompile_limit"]
    assert not counters.counts["dynamo.failed_frames"]
    for one, other in zip([*expected, *net.parameters()], [*found, *ours.parameters()], strict=True):
        assert_near(one, other, 1e-4)


def assert_near(expected: Any, found: Any, tolerance: float) -> None:
    one, other = torch.as_tensor(expected).detach(), torch.as_tensor(found).detach()
    scale = one.abs().max().item() if one.isfinite().all() else 1.0
    torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name.split()[0] in ALIKE)) for name in LOOPS]
)
def test_one_graph_trains_as_eager_does(name: str) -> None:
    assert_trains_alike(name, "aot_eager")
    if name not in BREAKS:
        assert counters.counts["dynamo.compiled_frames"] <= MOST_VERSIONS.get(name, 1 if " outside" in name else 3)


QUICK = ("plain", "clipped_by_norm", "CosineAnnealingLR outside")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
        for name in LOOPS
        if name != "scaled_under_autocast"
    ],
)
def test_kernels_train_as_eager_does(name: str) -> None:
    assert_trains_alike(name, "inductor")


def test_the_step_is_compiled_where_a_scaler_calls_it() -> None:
    names: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        scaler.scale((parameter * 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    stator.compile(step, backend=backend)()
    assert any("addcdiv" in name for name in names)
