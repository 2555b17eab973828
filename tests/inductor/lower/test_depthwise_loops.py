"""Depthwise convolutions, lowered as if their tensors were on a GPU: values, gradients and layouts are eager's. The
reference evaluator runs the lowered graphs on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.inductor.lower.as_on_gpu import Compiled, distance, lower_on_gpu, outcome
from tests.inductor.lower.depthwise_cases import CASES, CHANNELS, depthwise
from torch import nn

import stator
from stator.inductor.buffers import Extern, Loops
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import Group
from stator.prims.layout import same_strides

pytestmark = pytest.mark.fixed_sizes  # the evaluator of lowered graphs takes numbers for sizes

BY_LIBRARY = ("dilated by 2",)  # the gradient by the images


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    return lower_on_gpu(monkeypatch)


def calls(compiled: Compiled) -> list[str]:
    return [node.name for lowered, _ in compiled.graphs for node in lowered.nodes if isinstance(node, Extern)]


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_values_gradients_and_layouts_are_eagers(compiled, name, dtype, training, last):
    model, shape = depthwise(name)
    x = torch.randn(shape)
    exact_model, exact_x = model.double().train(training), x.double()
    exact = outcome(exact_model, exact_model, exact_x)
    model, x = model.to(dtype), x.to(dtype)
    if last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    eager = outcome(model, model, x)
    actual = outcome(stator.compile(model), model, x)
    for got, want, right in zip(actual, eager, exact, strict=True):
        assert same_strides(want.shape, got.stride(), want.stride())
        assert got.dtype is dtype
        assert distance(got, right) <= 1.5 * distance(want, right) + torch.finfo(dtype).eps
    assert len(compiled.graphs) == 1 + training
    assert len(calls(compiled)) == (training and name in BY_LIBRARY)


class Block(nn.Module):
    """As in MobileNet: a depthwise convolution between products."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Conv2d(8, 24, 1, bias=False), nn.Conv2d(24, 8, 1, bias=False)
        self.each = nn.Conv2d(24, 24, 3, stride, 1, groups=24, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(24), nn.BatchNorm2d(24)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.norms[0](self.widen(x)))
        return self.narrow(F.hardswish(self.norms[1](self.each(x))))


@pytest.mark.parametrize("stride", [1, 2])
def test_norm_and_activation_follow_in_the_loops_of_the_convolution(compiled, stride):
    with torch.no_grad():
        stator.compile(Block(stride).bfloat16().eval())(torch.randn(2, 8, 6, 6).bfloat16())
    ((lowered, _),) = compiled.graphs
    assert calls(compiled) == ["aten.mm.out"] * 2
    (node,) = [node for node in lowered.nodes if isinstance(node, Loops) and "hardswish_1" in node.origins]
    assert "convolution_1" in node.origins


def test_gradient_of_an_activation_is_a_part_of_the_loops_of_the_gradient(compiled):
    model, x = Block(1).bfloat16(), torch.randn(2, 8, 6, 6).bfloat16()
    outcome(stator.compile(model), model, x)
    backward, _ = compiled.graphs[1]
    groups = [step for step in schedule(backward).steps if isinstance(step, Group)]
    origins = [{name for member in group.members for name in member.origins} for group in groups]
    assert any({"convolution_backward_1", "hardswish_backward_1"} <= each for each in origins)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(nn.Conv2d(CHANNELS, CHANNELS, 9, padding=4, groups=CHANNELS), id="81 taps"),
        pytest.param(nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, groups=CHANNELS), id="two kernels for each channel"),
        pytest.param(nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, groups=CHANNELS), id="transposed"),
    ],
)
def test_other_kernels_are_the_librarys(compiled, model):
    outcome(stator.compile(model.eval()), model, torch.randn(2, CHANNELS, 9, 9))
    assert calls(compiled) == ["aten.convolution.default"]


@pytest.mark.parametrize(("taps", "together"), [(5, True), (7, False)])
def test_a_norm_behind_many_taps_has_loops_of_its_own(compiled, taps, together):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.each, self.norm = nn.Conv2d(64, 64, taps, 1, taps // 2, groups=64), nn.LayerNorm(64)

        def forward(self, x):
            return self.norm(self.each(x).permute(0, 2, 3, 1))

    with torch.no_grad():
        stator.compile(Normed().bfloat16())(torch.zeros(2, 64, 40, 40).bfloat16())
    ((lowered, _),) = compiled.graphs
    rows = [step for step in schedule(lowered).steps if step.inner_ranges]
    assert any("convolution" in member.origins for step in rows for member in step.members) is together


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_rows_of_large_kernels_are_a_loop_that_is_compiled_once(compiled, training):
    model, x = nn.Conv2d(12, 12, 7, 1, 3, groups=12).bfloat16().train(training), torch.randn(2, 12, 9, 11).bfloat16()
    outcome(stator.compile(model), model, x)
    bodies = [node.body for lowered, _ in compiled.graphs for node in lowered.nodes if isinstance(node, Loops)]
    sums = [body for body in bodies if any(op.name == "total" for op in body.ops)]
    assert len(sums) == 1 + training
    assert all(sum(op.name == "load" for op in body.ops) <= 8 + 14 for body in bodies)
