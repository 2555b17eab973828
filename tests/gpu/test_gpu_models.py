"""Unmodified models of transformers and timm on the device: forward, training steps, autocast, memory."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.measure_training import differences
from benchmarks.models import NAMES, TIMM, build, relative_error
from benchmarks.training_models import NAMES as TRAINED
from benchmarks.training_models import TIMM as TRAINED_TIMM
from benchmarks.training_models import build_training
from tests.differential import Counts
from tests.gpu.device import DEVICE, only_cuda

import stator

MODES = ("default", "reduce-overhead")
# ‖out - exact‖ / ‖exact‖ against float64, where eager itself is nearer; elsewhere twice eager's own error
FLOORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def require(name: str) -> None:
    if name in (*TIMM, *TRAINED_TIMM):
        pytest.importorskip("timm")


def converted(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FLOORS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_forward(name: str, dtype: torch.dtype, mode: str) -> None:
    """One graph; three calls with inputs of their own, whose results stay."""
    require(name)
    case, counts = build(name, size="small", device=DEVICE), Counts()
    case.model.to(dtype)
    exact = copy.deepcopy(case.model).double()
    compiled = stator.compile(case.model, fullgraph=True, mode=mode)
    found, expected, truth = [], [], []
    for turn in range(3):
        args = [converted(value, dtype) if turn == 0 else torch.randn_like(value, dtype=dtype) for value in case.args]
        kwargs = {key: value.roll(turn, -1) if "ids" in key else value for key, value in case.kwargs.items()}
        with torch.no_grad():
            found.append(compiled(*args, **kwargs))
            expected.append(case.model(*args, **kwargs))
            truth.append(exact(*[converted(value, torch.float64) for value in args], **kwargs))
    for ours, eagers, exactly in zip(found, expected, truth, strict=True):
        assert type(ours) is type(eagers)
        assert relative_error(ours, exactly) <= max(FLOORS[dtype], 2 * relative_error(eagers, exactly))
    assert (counts.graphs, counts.breaks) == (1, 0)


@pytest.mark.filterwarnings("error:stator")  # nothing runs eagerly, no backward operator by operator
@pytest.mark.parametrize("name", TRAINED)
def test_training_steps(name: str) -> None:
    """As tests/models/test_training_models.py: relative to the largest element of each gradient."""
    require(name)
    wrap = lambda model: stator.compile(model, fullgraph=True)  # noqa: E731
    found = differences(name, "small", wrap, 3, 2, device=DEVICE)
    for what in ("loss_1", "gradients_1", "loss_3", "gradients_3"):
        assert found[what] < max(1e-3, 5 * found[f"rounding_{what}"]), (what, found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ("BertForMaskedLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "resnet50"))
def test_training_steps_under_autocast(name: str, mode: str) -> None:
    """Gradients of a step in bfloat16: at most twice as far from those of float32 as eager's, or 3% of their norm."""
    require(name)

    def gradients(wrap: Callable[[Any], Any], enabled: bool) -> torch.Tensor:
        case = build_training(name, size="small", dropout=False, device=DEVICE)
        model = wrap(case.model)
        for _ in range(3):
            case.model.zero_grad()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
                loss = case.loss(model)
            loss.backward()
        found = [
            parameter.grad.double().flatten() for parameter in case.model.parameters() if parameter.grad is not None
        ]
        return torch.cat(found)

    exact, eager = (gradients(lambda model: model, enabled) for enabled in (False, True))
    ours = gradients(lambda model: stator.compile(model, mode=mode), True)
    assert ours.shape == eager.shape
    assert (ours - exact).norm() <= max(2 * (eager - exact).norm(), 0.03 * exact.norm())


LARGE = ("BertForMaskedLM", "GPT2LMHeadModel", "resnet50", "vit_base_patch16_224", "convnext_tiny")


def peak(call: Callable[[], Any]) -> int:
    """The most bytes that torch's allocator has given out during a call, all else that is alive included."""
    for _ in range(3):
        call()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


@only_cuda
@pytest.mark.parametrize("name", LARGE)
def test_memory_of_inference(name: str) -> None:
    require(name)
    case = build(name, batch=8, device=DEVICE)
    case.model.bfloat16()
    args = [converted(value, torch.bfloat16) for value in case.args]
    with torch.no_grad():
        eager = peak(lambda: case.model(*args, **case.kwargs))
        compiled = stator.compile(case.model)
        assert peak(lambda: compiled(*args, **case.kwargs)) <= 1.05 * eager


@only_cuda
@pytest.mark.parametrize("name", LARGE)
def test_memory_of_training(name: str) -> None:
    require(name)
    case = build_training(name, batch=8, device=DEVICE)

    def step(model: Any) -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = case.loss(model)
        loss.backward()
        case.model.zero_grad()

    eager = peak(lambda: step(case.model))
    compiled = stator.compile(case.model)
    assert peak(lambda: step(compiled)) <= 1.05 * eager


def test_sequences_of_other_lengths() -> None:
    case = build("BertForMaskedLM", size="small", device=DEVICE)
    compiled = stator.compile(case.model)
    for length in (16, 11, 7, 30, 1):
        ids = torch.randint(0, 500, (2, length), device=DEVICE)
        with torch.no_grad():
            assert relative_error(compiled(input_ids=ids), case.model(input_ids=ids)) < 1e-4


def test_a_model_that_generates() -> None:
    """A growing key-value cache: tokens of a greedy search in float32."""
    case = build("LlamaForCausalLM", size="small", device=DEVICE)
    ids = case.kwargs["input_ids"][:, :5]
    expected = case.model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    case.model.forward = stator.compile(case.model.forward)
    assert torch.equal(case.model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0), expected)
