"""Optimizers and training loops on the device, whose step counts are tensors on the CPU: as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.gpu.device import DEVICE
from tests.gpu.moved import module_of, on_device

steps, loops, cases = map(
    module_of,
    ("optimizers/test_optimizer_steps.py", "optimizers/test_training_loops.py", "optimizers/optimizer_cases.py"),
)
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about its own deprecations
TOLERANCE = {"rtol": 1e-5, "atol": 2e-6}  # eager's fused loops over lists round at other places than its single steps


@pytest.fixture(autouse=True)
def moved():
    with on_device(steps):
        yield


def reason_against(name: str, options: dict[str, Any]) -> str | None:
    if DEVICE == "cpu":
        return None
    if name == "Adagrad" and options.get("fused"):
        return "torch has no fused Adagrad for CUDA"
    # its steps are not capturable, and such a step, with step counts on the device, is marked as not to be compiled
    return "torch keeps it from being compiled for CUDA" if name == "Adafactor" else None


@pytest.mark.parametrize("case", cases.CASES, ids=cases.text)
def test_ten_steps(case: Any) -> None:
    if (reason := reason_against(*case)) is not None:
        pytest.skip(reason)
    steps.assert_same(cases.stepped(case, cases.as_it_is), cases.stepped(case, cases.whole("inductor")), TOLERANCE)


@pytest.mark.parametrize("name", ("Adam", "AdamW", "SGD"))
def test_ten_steps_of_the_fused_kernel(name: str) -> None:
    case = (name, {"lr": 0.01, "fused": True})
    steps.assert_same(cases.stepped(case, cases.as_it_is), cases.stepped(case, cases.whole("inductor")), TOLERANCE)


@pytest.mark.parametrize("name", ("Adam", "AdamW"))
def test_ten_steps_with_step_counts_on_the_device(name: str) -> None:
    if DEVICE != "cuda":
        pytest.skip("of CUDA alone")
    case = (name, {"lr": 0.01, "capturable": True})
    steps.assert_same(cases.stepped(case, cases.as_it_is), cases.stepped(case, cases.whole("inductor")), TOLERANCE)


# under autocast, kernels round at other places: test_gpu_devices.py
@pytest.mark.parametrize("name", [name for name in loops.LOOPS if name != "scaled_under_autocast"])
def test_training_loop(name: str) -> None:
    loops.assert_trains_alike(name, "inductor")
    assert torch.get_default_device().type == DEVICE
