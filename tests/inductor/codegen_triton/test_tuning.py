"""Choices between the library and tiles, and between blocks: by the rule, and by timing, with times that the tests
invent."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
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
from stator.inductor.codegen.triton import choose_tile, timing, tuning
from stator.inductor.codegen.triton.blocks import BY_RULE, Variation
from stator.inductor.codegen.triton.tiled import tiles
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
    monkeypatch.setattr(timing, "triton_version", lambda: "a version")
    monkeypatch.setattr(cuda, "load_kernels", made.load_kernels)
    monkeypatch.setattr(timing, "time", made.time)
    return made


def product(rows: int, depth: int, columns: int) -> list[torch.Tensor]:
    return [torch.empty(sizes, dtype=torch.bfloat16) for sizes in ((rows, depth), (depth, columns))]


def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Programs may share the depth."""
    return F.layer_norm(x @ weight, weight.shape[1:])


def launched(
    function: Callable[..., Any], tensors: list[torch.Tensor], choose: Callable[..., Any], rows: str | None = None
) -> list[Tile | None]:
    """The tiles of the launches of a function. rows: the name of the first size, where that is not known."""
    fakes = symbolic_fakes(tensors, [(rows,), *[()] * (len(tensors) - 1)], Environment())
    graph, sizes = with_expressions(trace(function, fakes, keep=can_lower).graph)
    lowered = lower(run_passes(graph, False), False, sizes)
    steps = fuse_products(schedule(lowered), lowered, choose(lowered))[0].steps
    return [step.products.tile for step in steps if isinstance(step, ProductGroup)]


def chosen(rows: int = ROWS) -> list[Tile | None]:
    return launched(normalized, product(rows, DEPTH, COLUMNS), tuning.Tuner)


def by_rule(function: Callable[..., Any], tensors: list[torch.Tensor], rows: str | None = None) -> list[Tile | None]:
    return launched(function, tensors, lambda lowered: partial(choose_tile, lowered=lowered), rows)


@pytest.mark.parametrize("rows", (1, 16, 64, 128, 256))
def test_the_rule_shares_a_great_depth(rows: int, device: FakeDevice) -> None:
    (tile,) = by_rule(normalized, product(rows, 3072, 768))
    assert tile is not None and tile.split > 1
    assert not by_rule(torch.matmul, product(rows, 3072, 768))


def test_the_rule_leaves_what_was_not_timed_to_the_library(device: FakeDevice) -> None:
    assert len(by_rule(torch.matmul, product(128, 768, 768))) == 1
    assert not by_rule(torch.matmul, product(128, 768, 768), rows="rows")
    assert not by_rule(torch.matmul, product(2048, 768, 768))
    assert not by_rule(torch.matmul, product(128, 768, 4096))
    assert not by_rule(torch.matmul, product(128, 772, 768))  # rows of the left side that start anywhere
    assert not by_rule(
        lambda x, weight: x.t() @ weight, [torch.empty(768, columns).bfloat16() for columns in (128, 768)]
    )


@pytest.mark.parametrize("depth, columns", ((72, 8), (18, 216), (1512, 144), (1280, 1000)))
def test_the_rule_takes_few_rows_with_an_epilogue(depth: int, columns: int, device: FakeDevice) -> None:
    def gate(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x @ weight)

    (tile,) = by_rule(gate, product(1, depth, columns))
    assert tile is not None and tile.rows == 16 and tile.split == 1
    assert bool(by_rule(gate, product(32, depth, columns))) is (depth * columns <= 1 << 16)
    assert not by_rule(torch.matmul, product(1, depth, columns))


def test_the_rule_is_for_tables_of_odd_length_alone(device: FakeDevice) -> None:
    for columns, number in ((32000, 0), (30522, 1), (50257, 1)):
        tensors = [torch.empty(sizes, dtype=torch.bfloat16) for sizes in ((128, 768), (columns, 768))]
        assert len(by_rule(lambda x, words: x @ words.t(), tensors)) == number


def test_the_rule_takes_large_products_with_results_in_odd_rows(device: FakeDevice) -> None:
    for rows, columns, depth, number in (
        (2048, 50257, 768, 1),
        (512, 30522, 4096, 1),
        (8192, 1001, 1024, 1),
        (2048, 50264, 768, 0),  # the library has wide accesses
        (2048, 50260, 768, 0),
        (2048, 50257, 771, 0),
        (512, 101, 768, 0),  # little work
    ):
        tensors = [torch.empty(sizes, dtype=torch.bfloat16) for sizes in ((rows, depth), (columns, depth))]
        assert len(by_rule(lambda x, words: x @ words.t(), tensors)) == number


def test_a_tile_must_be_clearly_quicker_than_the_library(device: FakeDevice) -> None:
    device.times = lambda text: 9.8 if text else 10.0
    assert chosen() == []
    device.times = lambda text: 9.0 if text else 10.0
    assert chosen() == []  # kept
    assert len(chosen(rows=100)) == 1


def test_the_quickest_tile_is_chosen_and_kept(device: FakeDevice) -> None:
    device.times = lambda text: 5.0 if "'COLUMNS': 128" in text else 9.0
    (tile,) = chosen()
    assert tile is not None and tile.columns == 128 and tile.split == 1
    assert len(device.texts) > 4 and device.texts[0] == ""
    device.texts.clear()
    assert chosen() == [tile] and not device.texts


def test_tiles_that_a_device_refuses_are_left_out(device: FakeDevice) -> None:
    device.refuses = lambda text: "'COLUMNS': 128" in text
    device.times = lambda text: 5.0 if "'COLUMNS': 128" in text else 9.0 if text else 10.0
    (tile,) = chosen()
    assert tile is not None and tile.columns < 128


def test_programs_may_compute_several_tiles_where_there_are_many(device: FakeDevice) -> None:
    device.times = lambda text: 5.0 if "flatten=True" in text else 9.0 if "tl.dot" in text else 10.0
    for rows, programs in ((2048, 132), (256, 0)):
        (tile,) = launched(lambda x, weight: F.gelu(x @ weight), product(rows, 768, 3072), tuning.Tuner)
        assert tile is not None and tile.programs == programs


def experts(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return F.gelu(torch._grouped_mm(x, weight, offs=ends))


EXPERTS = [torch.empty(64, 128).bfloat16(), torch.empty(4, 128, 256).bfloat16(), torch.empty(4, dtype=torch.int32)]


def test_products_of_groups_are_timed_beside_the_library(device: FakeDevice) -> None:
    device.times = lambda text: 9.0 if "tl.dot" in text else 10.0
    (tile,) = launched(experts, EXPERTS, tuning.Tuner)
    assert tile is not None and tile.rows == 16
    device.times = lambda text: 11.0 if "tl.dot" in text else 10.0
    assert not launched(experts, [EXPERTS[0].repeat(2, 1), *EXPERTS[1:]], tuning.Tuner)
    assert not by_rule(experts, EXPERTS)
    assert len(by_rule(experts, [EXPERTS[0][:8], *EXPERTS[1:]])) == 1  # few rows for each expert


def test_a_library_that_reads_where_groups_end_is_not_called(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tiles, tuning):
        monkeypatch.setattr(module, "library_reads_ends", lambda dtype, device: True)
    assert len(by_rule(experts, EXPERTS)) == 1
    device.times = lambda text: 9.0 if "tl.dot" in text else 0.0
    assert len(launched(experts, EXPERTS, tuning.Tuner)) == 1


def test_each_share_of_the_depth_has_sums_of_its_own(device: FakeDevice) -> None:
    chosen()
    assert {ROWS * COLUMNS * split for split in (1, 2, 3, 4)} == set(device.results)


def test_random_numbers_of_the_user_are_not_drawn(device: FakeDevice) -> None:
    before = torch.get_rng_state()
    chosen()
    assert device.texts and torch.equal(torch.get_rng_state(), before)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


def variations(function: Callable[..., Any], *tensors: torch.Tensor) -> list[Variation]:
    """How the blocks of each kernel of a function differ from the rule's."""
    fakes = symbolic_fakes(list(tensors), [()] * len(tensors), Environment())
    graph, sizes = with_expressions(trace(function, fakes, keep=can_lower).graph)
    lowered = lower(run_passes(graph, False), False, sizes)
    tuner = tuning.BlockTuner(lowered)
    return [tuner(step) for step in schedule(lowered).steps]  # type: ignore[arg-type]


def block_of(text: str, name: str = "XBLOCK") -> int:
    """The elements of a block along the loops of x or r, from the text of a kernel."""
    found = re.search(rf"'{name}': (\d+)", text)
    assert found
    return int(found[1])


def test_the_quickest_blocks_are_chosen_and_kept(device: FakeDevice) -> None:
    device.times = lambda text: 1e4 / block_of(text)
    (found,) = variations(gelu, torch.empty(1 << 20))
    assert found == Variation(x=2, warps=1)
    device.texts.clear()
    assert variations(gelu, torch.empty(1 << 20)) == [found] and not device.texts
    assert variations(gelu, torch.empty(1 << 21)) == [found] and device.texts  # another size


def test_other_blocks_must_be_clearly_quicker_than_the_rules(device: FakeDevice) -> None:
    device.times = lambda text: 10 - 1e-6 * block_of(text)
    assert variations(gelu, torch.empty(1 << 20)) == [BY_RULE]
    device.times = lambda text: 1e4 / block_of(text)
    device.refuses = lambda text: block_of(text) != 1024
    assert variations(gelu, torch.empty(1 << 22)) == [BY_RULE]


def test_small_kernels_have_the_rules_blocks(device: FakeDevice) -> None:
    assert variations(gelu, torch.empty(1 << 10)) == [BY_RULE] and not device.texts


def test_a_row_in_registers_stays_one_block(device: FakeDevice) -> None:
    """Variations of its length are the same kernel, which is timed once."""
    variations(lambda x: torch.softmax(x, -1), torch.empty(4096, 1000))
    assert len(device.texts) == len(set(device.texts))
    assert {block_of(text, "RBLOCK") for text in device.texts} == {1024}
