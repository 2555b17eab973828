"""Networks of convolutions, lowered as if their tensors were on a GPU: images and weights lie channels-last from end to
end, values and gradients are eager's. Needs no GPU: the reference evaluator runs the lowered graphs on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.models import image_case
from tests.inductor.lower.as_on_gpu import Compiled, distance, lower_on_gpu, outcome
from torch import nn

import stator
from stator.inductor.buffers import Extern, Layout, Loops, Lowered, View
from stator.inductor.loops.body import LoopBody
from stator.prims.layout import channels_last_strides, same_strides

pytestmark = pytest.mark.fixed_sizes  # the evaluator of lowered graphs takes numbers for sizes

# small variants of models: settings and the size of images
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "resnet50": (dict(layers=(1, 1, 1, 1)), 64),
    "mobilenetv3_large_100": ({}, 64),
    "convnext_tiny": (dict(depths=(1, 1, 1, 1), dims=(16, 32, 64, 64)), 192),
    "densenet121": (dict(block_config=(2, 2, 2), growth_rate=16), 64),
}


class UNet(nn.Module):
    """Blocks with biases, batch and group norm; pooling, transposed convolutions, concatenations, three results."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = _block(3, 16), _block(16, 32), _block(32, 64)
        self.up, self.up_more = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 4, 2, 1)
        self.four, self.five, self.last = _block(64, 32), _block(32, 16), nn.Conv2d(16, 5, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = self.one(x)
        two = self.two(F.max_pool2d(one, 2))
        three = self.three(F.avg_pool2d(two, 2))
        four = self.four(torch.cat([self.up(three), two], 1))
        five = self.five(torch.cat([self.up_more(four), one], 1))
        return self.last(five), three, four


def _block(channels: int, out: int) -> nn.Sequential:
    first = nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()
    return nn.Sequential(*first, nn.Conv2d(out, out, 3, padding=1, bias=False), nn.GroupNorm(4, out), nn.SiLU())


class OddOnes(nn.Module):
    """One channel, images of one position, kernels without symmetry, groups, a weight that the program computes."""

    def __init__(self) -> None:
        super().__init__()
        self.dilated, self.wide = nn.Conv2d(1, 8, 3, padding=2, dilation=2), nn.Conv2d(8, 12, (1, 3), padding=(0, 1))
        self.weight = nn.Parameter(torch.randn(12, 12, 1, 1) / 4)
        self.grouped, self.narrow = nn.Conv2d(12, 12, 3, 2, groups=3), nn.Conv2d(12, 1, 1)
        self.single, self.whole = nn.Conv2d(12, 7, 1), nn.Conv2d(12, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.wide(F.relu(self.dilated(x)))
        x = F.conv2d(x, self.weight / self.weight.square().sum((1, 2, 3), keepdim=True).sqrt())
        means, corner = x.mean((2, 3), keepdim=True), x[:, :, :3, :3]
        return self.narrow(x), self.grouped(F.pad(x, (1, 2, 0, 1))), self.single(means), self.whole(corner)


class Grouped(nn.Module):
    """Groups between products, as in ResNeXt and RegNet. Smooth: where a ReLU is near zero, a rounding moves the whole
    gradient, and a GPU rounds a convolution twice, before its bias is added and after, as eager does there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two, self.three = (
            nn.Conv2d(3, 48, 1),
            nn.Conv2d(48, 48, 3, 1, 1, groups=48 // width),
            nn.Conv2d(48, 8, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.three(F.silu(self.two(F.silu(self.one(x)))))


class Patches(nn.Module):
    """Images cut into patches: at the start, of rows and columns left over, between products, and too narrow ones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.halves = nn.Conv2d(3, 32, 4, 4), nn.Conv2d(32, 48, 2, 2, bias=False)
        self.narrow, self.last = nn.Conv2d(48, 12, (1, 2), (1, 2)), nn.Conv2d(48, 16, (2, 3), (2, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = F.silu(self.halves(F.silu(self.stem(x))))
        return self.narrow(x), self.last(x).flatten(2).transpose(1, 2)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    return lower_on_gpu(monkeypatch)


def conversions(compiled: Compiled) -> list[str]:
    """Loops between the ends that read images or weights along one dimension and write them along another."""
    found = []
    for lowered, free in compiled.graphs:
        outputs = [out for at, out in enumerate(lowered.outputs) if at not in free]
        ends = {*lowered.inputs, *(out.base if isinstance(out, View) else out for out in outputs)}
        for node in lowered.nodes:
            if isinstance(node, Loops) and not ends.intersection(node.outputs):
                found += [
                    f"{name} in {node.outputs} of {node.origins}" for name in _transposed(node.body) if name not in ends
                ]
    return found


def _transposed(body: LoopBody) -> list[str]:
    """Buffers that the body reads with another innermost loop than it writes with."""
    loads = [(str(op.args[0]), body.indices[op.args[1].position]) for op in body.ops if op.name == "load"]
    stored = next(body.indices[op.args[1].position] for op in body.ops if op.name == "store")
    innermost = [var for var in body.vars if stored.coefficient(var) == 1]
    return [
        name
        for name, index in loads
        for inner in innermost
        if index.coefficient(inner) not in (0, 1)
        and any(index.coefficient(var) == 1 and stored.coefficient(var) != 0 for var in body.vars)
    ]


def formats(compiled: Compiled) -> set[str]:
    """The formats of images that library functions read and write."""
    found = set()
    for lowered, _ in compiled.graphs:
        for node in lowered.nodes:
            if isinstance(node, Extern):
                names = [arg for arg in (*node.args, *node.outputs) if isinstance(arg, str | View)]
                layouts = [arg.layout if isinstance(arg, View) else lowered.buffers[arg].layout for arg in names]
                found |= {_format(layout) for layout in layouts if len(layout.size) == 4}
    return found


def _format(layout: Layout) -> str:
    last = same_strides(layout.size, layout.stride, channels_last_strides(layout.size))
    return "channels last" if last else f"{layout.size} at {layout.stride}"


def module_of(name: str) -> tuple[nn.Module, torch.Tensor]:
    if name == "unet":
        return UNet(), torch.randn(2, 3, 32, 48)
    if name.startswith("groups of "):
        return Grouped(int(name.removeprefix("groups of "))), torch.randn(2, 3, 10, 12)
    if name == "patches":
        return Patches(), torch.randn(8, 3, 34, 57)
    if name == "odd":
        return OddOnes(), torch.randn(2, 1, 17, 12)
    settings, side = MODELS[name]
    case = image_case(name, 2, settings, side)
    return case.model, case.args[0]


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.flatten().double() for one in tensors])


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", [*MODELS, "unet"])
def test_networks_are_channels_last_between_their_ends(compiled, name, training):
    model, x = module_of(name)
    model, x = model.bfloat16().train(training), x.bfloat16()
    outcome(stator.compile(model), model, x)
    assert len(compiled.graphs) == 1 + training
    assert conversions(compiled) == []
    all_are_loops_and_products = name == "convnext_tiny"
    assert formats(compiled) == (set() if all_are_loops_and_products else {"channels last"})


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["unet", "odd", "patches", "groups of 1", "groups of 24"])
def test_values_and_layouts_are_eagers(compiled, name, dtype, training, memory_format):
    model, x = module_of(name)
    exact_model = module_of(name)[0].double()
    model = model.to(dtype).to(memory_format=memory_format).train(training)
    exact_model.load_state_dict(model.state_dict())
    x = x.to(dtype).to(memory_format=memory_format)
    exact = outcome(exact_model.train(training), exact_model, x.double())
    eager = outcome(model, model, x)
    actual = outcome(stator.compile(model), model, x)
    for got, want, right in zip(actual, eager, exact, strict=True):
        assert same_strides(want.shape, got.stride(), want.stride())
        if dtype is torch.float32:
            assert distance(got, right) <= 2 * distance(want, right) + torch.finfo(dtype).eps
    # in bfloat16, gradients before many layers are as far from eager's as both are from the truth
    assert distance(_joined(actual), _joined(exact)) <= 1.5 * distance(_joined(eager), _joined(exact))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("width", [2, 4, 8, 24])
def test_wide_groups_run_in_nchw_in_training_alone(compiled, width, training):
    """In inference they are launches of our own, or as quick in channels-last format."""
    channels_last = width <= 4 or not training
    model, x = Grouped(width).bfloat16().train(training), torch.randn(2, 3, 10, 12).bfloat16()
    outcome(stator.compile(model), model, x)
    calls = [node for lowered, _ in compiled.graphs for node in lowered.nodes if isinstance(node, Extern)]
    assert sum("convolution" in call.name for call in calls) == 1 + training
    assert (formats(compiled) == {"channels last"}) is channels_last
    if not training:  # what the backward needs is stored once, in the format of the loops that compute it
        assert all(_is_fused(lowered) for lowered, _ in compiled.graphs), "conversions are parts of other loops"


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_patches_become_products(compiled, training):
    model, x = module_of("patches")
    outcome(stator.compile(model.bfloat16().train(training)), model, x.bfloat16())
    calls = [node for lowered, _ in compiled.graphs for node in lowered.nodes if isinstance(node, Extern)]
    left = [call.name for call in calls if "convolution" in call.name]
    assert len(left) == 1 + training, "the library's, for the rows of 24 bytes alone"


def _is_fused(lowered: Lowered) -> bool:
    """True if no loops only copy images from one computed buffer to another."""
    for node in lowered.nodes:
        if isinstance(node, Loops) and {op.name for op in node.body.ops} == {"load", "store"}:
            sources = {str(op.args[0]) for op in node.body.ops if op.name == "load"}
            if not sources.intersection(lowered.inputs) and not set(node.outputs).intersection(
                map(str, lowered.outputs)
            ):
                return False
    return True
