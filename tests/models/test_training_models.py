"""Training steps of unmodified transformers and timm models: one forward graph, one backward graph, equal to eager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from benchmarks.measure_training import differences
from benchmarks.training_models import NAMES, build_training

import stator
from stator.base import counters

pytestmark = pytest.mark.filterwarnings("error:stator")  # nothing runs eagerly, no backward operator by operator

TOLERANCE = 1e-3  # relative: of the loss, and of the largest element of each gradient
# Where rounding every weight once changes eager's own result by more than that, no two orders of summation agree to it.
TIMES_ROUNDING = 5
ROUNDINGS = 3  # eager's own results that this is taken from: of one alone it may happen to be small


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """With one thread: tests run beside each other, and threads that wait for one another take five times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    stator.reset()
    yield
    stator.reset()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NAMES)
def test_ten_steps_equal_eager(name: str) -> None:
    found = differences(name, "small", lambda model: stator.compile(model, fullgraph=True), 10, ROUNDINGS)
    for what in ("loss_1", "gradients_1", "loss_10", "gradients_10"):
        assert found[what] < max(TOLERANCE, TIMES_ROUNDING * found[f"rounding_{what}"]), (what, found)


@pytest.mark.parametrize("name", NAMES)
def test_one_graph_and_no_break(name: str) -> None:
    case = build_training(name, size="small")
    counters.clear()
    case.loss(stator.compile(case.model, backend="aot_eager", fullgraph=True)).backward()
    assert counters.counts["graphs"] == 1
