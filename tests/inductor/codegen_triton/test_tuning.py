"""Choices of `max-autotune` between the library and tiles, with times that the tests invent."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from all_sizes import symbolic_fakes

from stator.graph.tracing.tracer import trace
from stator.inductor import devices
from stator.inductor.codegen.triton import tuning
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes, with_expressions
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import ProductGroup, Tile
from stator.inductor.schedule.products import fuse_products
from stator.runtime import cuda
from stator.shapes.environment import Environment

ROWS, DEPTH, COLUMNS = 128, 1536, 64


class FakeDevice:
    """Kernels that do nothing. `times` gives the microseconds of a kernel by its text, of the library for ""."""

    def __init__(self) -> None:
        self.times: Callable[[str], float] = lambda text: 10.0
        self.refuses: Callable[[str], bool] = lambda text: False
        self.texts: list[str] = []  # what was timed
        self.results: list[int] = []  # the elements of the last argument of each kernel
        self.current = ""

    def load_kernels(self, sources: Sequence[KernelSource], device: torch.device) -> dict[str, Any]:
        if any(self.refuses(source.source) for source in sources):
            raise RuntimeError("too much shared memory")

        def launch(text: str, *tensors: torch.Tensor) -> None:
            self.current = text
            self.results.append(tensors[-1].numel())

        def bind(text: str) -> Callable[..., Any]:
            return lambda count, sizes: lambda *tensors: launch(text, *tensors)

        return {source.symbol: SimpleNamespace(bind=bind(source.source)) for source in sources}

    def time(self, run: Callable[[int], None], copies: int) -> float:
        self.current = ""
        run(copies - 1)
        self.texts.append(self.current)
        return self.times(self.current)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeDevice:
    made = FakeDevice()
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(devices.TRAITS, "cpu", devices.GPU)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(tuning, "triton_version", lambda: "a version")
    monkeypatch.setattr(cuda, "load_kernels", made.load_kernels)
    monkeypatch.setattr(tuning, "_time", made.time)
    return made


def chosen(rows: int = ROWS) -> list[Tile | None]:
    """The tiles of the launches of a product that is normalized, whose depth programs may share."""
    tensors = [torch.empty(sizes, dtype=torch.bfloat16) for sizes in ((rows, DEPTH), (DEPTH, COLUMNS))]
    fakes = symbolic_fakes(tensors, [(), ()], Environment())
    traced = trace(lambda x, weight: F.layer_norm(x @ weight, (COLUMNS,)), fakes, keep=can_lower)
    graph, sizes = with_expressions(traced.graph)
    lowered = lower(run_passes(graph, False), False, sizes)
    steps = fuse_products(schedule(lowered), lowered, tuning.Tuner(lowered))[0].steps
    return [step.products.tile for step in steps if isinstance(step, ProductGroup)]


def test_a_tile_must_be_clearly_quicker_than_the_library(device: FakeDevice) -> None:
    device.times = lambda text: 9.8 if text else 10.0
    assert chosen() == []
    device.times = lambda text: 9.0 if text else 10.0
    assert chosen() == []  # kept
    assert len(chosen(rows=100)) == 1


def test_the_quickest_tile_is_chosen_and_kept(device: FakeDevice) -> None:
    device.times = lambda text: 5.0 if "'ROWS': 128" in text else 9.0
    (tile,) = chosen()
    assert tile is not None and tile.rows == 128 and tile.split == 1
    assert len(device.texts) > 4 and device.texts[0] == ""
    device.texts.clear()
    assert chosen() == [tile] and not device.texts


def test_tiles_that_a_device_refuses_are_left_out(device: FakeDevice) -> None:
    device.refuses = lambda text: "'ROWS': 128" in text
    device.times = lambda text: 5.0 if "'ROWS': 128" in text else 9.0 if text else 10.0
    (tile,) = chosen()
    assert tile is not None and tile.rows == 64


def test_each_share_of_the_depth_has_sums_of_its_own(device: FakeDevice) -> None:
    chosen()
    assert {ROWS * COLUMNS * split for split in (1, 2, 3, 4)} == set(device.results)


def test_random_numbers_of_the_user_are_not_drawn(device: FakeDevice) -> None:
    before = torch.get_rng_state()
    chosen()
    assert device.texts and torch.equal(torch.get_rng_state(), before)
