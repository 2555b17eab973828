"""Devices as tensors made there report them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator.prims  # noqa: F401  (fills the records)
from stator.graph.fake.fake_mode import FakeMode
from stator.prims.devices import as_device
from stator.prims.record import TensorMeta, records

aten = torch.ops.aten
ELSEWHERE = "xpu" if torch.cuda.is_available() else "cuda"  # a kind of device that is not here


@pytest.mark.parametrize("named", [None, "cpu", torch.device("cpu"), "cpu:0"])
def test_there_is_one_cpu(named: Any) -> None:
    assert as_device(named) == torch.empty(0, device=named).device == torch.device("cpu")


def test_a_device_of_several_is_the_first_one_unless_it_says_which() -> None:
    assert as_device(ELSEWHERE) == torch.device(ELSEWHERE, 0)
    assert as_device(f"{ELSEWHERE}:3") == torch.device(ELSEWHERE, 3)
    assert as_device("meta") == torch.empty(0, device="meta").device


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_an_accelerator_is_the_current_one() -> None:
    kind = torch.accelerator.current_accelerator()
    assert as_device(kind) == torch.empty(0, device=kind).device


@pytest.mark.parametrize("operator", [aten.empty.memory_format, aten.zeros.default, aten.rand.default])
def test_factories_give_devices_with_an_index(operator: torch._ops.OpOverload) -> None:
    rule = records[operator].shape
    assert rule is not None
    assert rule((2,), device=torch.device(ELSEWHERE)).device == torch.device(ELSEWHERE, 0)


@pytest.mark.parametrize("operator", [aten.pixel_shuffle.default, aten.pixel_unshuffle.default])
@pytest.mark.parametrize(("device", "kept"), [("cpu", True), ("cuda", False)])
def test_only_cpus_shuffle_pixels_within_channels_last(
    operator: torch._ops.OpOverload, device: str, kept: bool
) -> None:
    x = torch.zeros(2, 8, 4, 6).to(memory_format=torch.channels_last)
    mode = FakeMode()
    fake = mode.make(TensorMeta(tuple(x.shape), x.stride(), x.dtype, as_device(device), 0))
    with mode:
        found = operator(fake, 2)
    expected = operator(x, 2)
    assert found.shape == expected.shape
    assert found.stride() == (expected if kept else expected.contiguous()).stride()
