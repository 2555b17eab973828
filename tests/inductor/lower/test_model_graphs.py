"""Whole model graphs: passes, lowering and the reference interpreters give what eager gives, without generated code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.models import TRANSFORMERS, build, import_torchvision, largest_relative_difference
from tests.inductor.lowered_evaluator import run

import stator
from stator import aot
from stator.base import counters
from stator.inductor.lower import can_lower, lower, verify_lowered
from stator.inductor.passes import run_passes

TOLERANCE = 1e-5  # of the largest magnitude in each output

# few and small stages, and small images: what matters is every kind of block, not their number
VISION: dict[str, dict[str, Any]] = {
    "resnet18": {},
    "resnet50": {},
    "mobilenetv3_small_050": {},
    "convnext_atto": {},
    "densenet121": {"block_config": (3, 3)},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "swin_tiny_patch4_window7_224": {"img_size": 56, "depths": (2, 2), "num_heads": (3, 6), "embed_dim": 48},
}


def interpreting_backend(gm, example_inputs):
    def interpret_graph(graph, inputs):
        lowered = lower(run_passes(graph))
        verify_lowered(lowered)
        return lambda *tensors: tuple(run(lowered, tensors))

    return aot.compile_inference(gm, example_inputs, interpret_graph, keep=can_lower)


@pytest.fixture(autouse=True)
def no_grad():
    torch.manual_seed(0)
    counters.clear()
    with torch.no_grad():
        yield
    stator.reset()


def check(model, args, kwargs):
    expected = model(*args, **kwargs)
    actual = stator.compile(model, fullgraph=True, backend=interpreting_backend)(*args, **kwargs)
    assert largest_relative_difference(actual, expected) < TOLERANCE
    fallbacks = [name for name in counters.counts if name.startswith("inductor_fallback")]
    assert not fallbacks


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformer(name):
    case = build(name, size="small")
    check(case.model, case.args, case.kwargs)


@pytest.mark.parametrize("name", VISION)
def test_vision(name):
    import_torchvision()
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, **VISION[name]).eval()
    for module in model.modules():  # freshly made statistics (0 and 1) would hide mistakes in normalisation
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    size = VISION[name].get("img_size", 64)
    check(model, (torch.randn(1, 3, size, size),), {})
