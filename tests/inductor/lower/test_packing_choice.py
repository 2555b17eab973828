"""Convolutions with a weight that each call packs: kernels of ours are chosen by timing, after the first process."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from tests.differential import FUSED, assert_same
from torch import nn

import stator
from stator.inductor.codegen import cpp
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.lower import direct_convolution, packing_choice
from stator.inductor.lower.builder import LoweringBuilder
from stator.runtime import choices
from stator.runtime.toolchain import float_lanes

pytestmark = pytest.mark.skipif(
    float_lanes() not in direct_convolution._TILES, reason="convolutions are the library's on this processor"
)


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_known", {})
    monkeypatch.setattr(choices, "_untimed", set())
    monkeypatch.setattr(choices, "_seconds_waited", 0.0)
    monkeypatch.setattr(choices, "_answered", {})


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_choice, "_KIND", f"test {time.time_ns()}")
    new_process(monkeypatch)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("ours", [True, False])
def test_the_second_process_follows_the_times(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(alternatives: choices.Alternatives) -> dict[str, list[float]]:
        return {name: [1.0 if (name == "tiles") == ours else 2.0] * 3 for name in alternatives}

    lowered, original = [], LoweringBuilder.extern

    def extern(builder: LoweringBuilder, target: Any, *given: Any, **named: Any) -> Any:
        lowered.append(isinstance(target, DirectConvolution))
        return original(builder, target, *given, **named)

    monkeypatch.setattr(LoweringBuilder, "extern", extern)
    monkeypatch.setattr(choices, "_times", times)
    model = nn.Sequential(nn.Conv2d(24, 48, 3), nn.ReLU()).eval().to(memory_format=torch.channels_last)
    x = torch.randn(1, 24, 40, 40).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for expected in (True, ours):
            compiled = stator.compile(model, fullgraph=True, options={"verify": True})
            assert_same(compiled(x), model(x), FUSED)
            assert lowered == [expected]
            lowered.clear()
            stator.reset()
            new_process(monkeypatch)


@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (3, 1), (3, 2)])
def test_both_alternatives_compute_the_convolution(kernel: int, groups: int) -> None:
    out = 40 - kernel + 1
    tile = direct_convolution.matrix_tile(out * out, 24, 48)
    assert tile is not None
    one, none = (1, 1), (0, 0)
    found = DirectConvolution(
        1, (40, 40), (out, out), 24, 48, groups, 24 * groups, False, (kernel, kernel), one, none, one, tile
    )
    first, second = packing_choice._runs(cpp.compiled_convolutions, found).values()
    images = [run() for (run,) in (first, second)]
    assert torch.equal(images[0].permute(0, 2, 3, 1).reshape(out * out, -1), images[1])
