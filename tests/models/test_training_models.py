"""Training steps of unmodified transformers and timm models: one forward graph, one backward graph, equal to eager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from benchmarks.measure_training import differences
from benchmarks.training_models import NAMES
from tests.differential import Counts

import stator

pytestmark = pytest.mark.filterwarnings("error:stator")  # nothing runs eagerly, no backward operator by operator

TOLERANCE = 1e-3  # relative: of the loss, and of the largest element of each gradient
# Where rounding every weight once changes eager's own result by more than that, no two orders of summation agree to it.
TIMES_ROUNDING = 5
STEPS = 3
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
def test_steps_equal_eager(name: str) -> None:
    counts = Counts()
    found = differences(
        name, "small", lambda model: stator.compile(model, fullgraph=True), STEPS, ROUNDINGS, tolerance=TOLERANCE
    )
    for what in ("loss_1", "gradients_1", f"loss_{STEPS}", f"gradients_{STEPS}"):
        assert found[what] < max(TOLERANCE, TIMES_ROUNDING * found.get(f"rounding_{what}", 0.0)), (what, found)
    assert counts.graphs <= 2 and not counts.breaks
