"""Chooses between the library and tiles, and between blocks, by timing (`mode="max-autotune"`). Choices are kept in
the kernel cache.

What is timed is what would run: the library's calls with the groups behind them, or the launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from stator.base import counters, logs
from stator.base.errors import CompileError
from stator.inductor.buffers import Buffer, Extern, Lowered, View
from stator.inductor.devices import library_reads_ends
from stator.inductor.schedule.groups import Combination, Group, ProductGroup, Tile, TiledGroup
from stator.inductor.schedule.shared_depth import with_shared_depth
from stator.runtime.choices import keep_choice, note_provisional, stored_choice

from . import timing
from .blocks import BY_RULE, VARIATIONS, Variation
from .printer import print_kernel
from .tiled.tiles import candidates, choose_tile
from .timing import Run, Tensors

# change these with what is stored, or with how it is timed
_PRODUCTS, _BLOCKS = "products-1", "blocks-1"
_MARGIN = 0.97  # another choice replaces the library, or the rule's, only if it is clearly quicker
# Bytes a second at which the loops behind read sums of programs that share the depth
_SUMS_BANDWIDTH = 3e12
_LEAST_BYTES = 1 << 20  # that a kernel reads and writes: smaller ones take the time of a launch


def may_time() -> bool:
    """While a CUDA graph is captured, rules decide."""
    if torch.cuda.is_current_stream_capturing():
        note_provisional()
        return False
    return True


class Tuner:
    """`choose_tile` by timing, for the buffers of one graph."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered, self.buffers, self.knowledge = lowered, lowered.buffers, lowered.sizes

    def __call__(self, group: ProductGroup, may_share_depth: bool) -> Tile | None:
        products = group.products
        device = self.buffers[products.left.buffer].layout.device
        if not may_time():
            return choose_tile(group, may_share_depth, lowered=self.lowered)
        tiles = candidates(group, may_share_depth, lowered=self.lowered)
        key = self._key(group, tiles, device)
        stored = stored_choice(key)
        if stored is not None:
            return None if stored["tile"] is None else Tile(**stored["tile"])
        try:
            with counters.timed("autotune"), torch.cuda.device(device):
                tile = self._timed(group, tiles, device)
        except torch.OutOfMemoryError:
            logs.log("autotune", "no memory is left to time products of %s in: the rule decides", group.name)
            note_provisional()
            return choose_tile(group, may_share_depth, lowered=self.lowered)
        keep_choice(key, {"tile": None if tile is None else asdict(tile)})
        return tile

    def _key(self, group: ProductGroup, tiles: Sequence[Tile], device: torch.device) -> str:
        """What a choice depends on: sizes, strides and loops, all in the text of a kernel, and what runs it."""
        texts = [
            print_kernel(launch, buffers, knowledge=self.knowledge).symbol
            for launch, buffers in self._launches(group, tiles)
        ]
        sizes = self.knowledge.hints([group.products.rows, group.products.depth])
        return timing.choice_key(device, _PRODUCTS, *sizes, *texts)

    def _launches(self, group: ProductGroup, tiles: Sequence[Tile]) -> list[tuple[ProductGroup, dict[str, Buffer]]]:
        launches = []
        for tile in tiles:
            buffers = dict(self.buffers)
            launch = replace(group, products=replace(group.products, tile=tile))
            if tile.split > 1:
                (made,) = with_shared_depth([launch], launch, buffers)
                assert isinstance(made, ProductGroup)
                launch = made
            launches.append((launch, buffers))
        return launches

    def _timed(self, group: ProductGroup, tiles: Sequence[Tile], device: torch.device) -> Tile | None:
        steps = [step for part in group.products.steps for step in part]
        launches = self._launches(group, tiles)
        names = {*group.reads, *(name for step in steps for name in _names(step))}
        buffers = {name: buffer for _, many in launches for name, buffer in many.items()}
        names |= {name for launch, _ in launches for name in (*launch.reads, *launch.writes)}
        tensors = Tensors({name: buffers[name] for name in names if name in buffers}, self.knowledge, group.reads)
        products = group.products
        rows, columns, depth = self.knowledge.hints([products.rows, products.parts[0].columns, products.depth])
        if products.ends is not None:
            tensors.end_groups(products.ends, depth if products.ends.along_depth else rows)
        library = math.inf  # a call that waits for the device cannot be timed in a graph
        if products.ends is None or not library_reads_ends(products.dtype, device):
            library = timing.time(self._library(steps, tensors, device), tensors.copies)
        times: list[tuple[float, Tile | None]] = [(library * _MARGIN, None)]
        sources = [print_kernel(launch, many, knowledge=self.knowledge) for launch, many in launches]
        timing.compile_together(sources, device)
        for tile, (launch, _), source in zip(tiles, launches, sources, strict=True):
            try:
                run = tensors.launch(source, launch, device)
            except (CompileError, RuntimeError) as problem:
                logs.log("autotune", "this device does not take %s: %s", tile, problem)
                continue
            behind = 0.0 if tile.split == 1 else 4e6 * rows * columns * tile.split / _SUMS_BANDWIDTH
            times.append((timing.time(run, tensors.copies) + behind, tile))
        best = min(times, key=lambda one: one[0])
        self._report(group, library, times, best)
        return best[1]

    def _report(self, group: ProductGroup, library: float, times: Any, best: Any) -> None:
        if logs.enabled("autotune"):
            products = group.products
            columns = [part.columns for part in products.parts]
            shape = f"{products.batch} x {products.rows} x {columns} x {products.depth}"
            listed = ", ".join(f"{time:.2f} {tile}" for time, tile in sorted(times[1:], key=lambda one: one[0]))
            logs.log("autotune", "products %s: %s; us: library %.2f, %s", shape, best[1] or "library", library, listed)

    def _library(self, steps: Sequence[Group | Extern], tensors: Tensors, device: torch.device) -> Run:
        runs: list[Run] = []
        for step in steps:
            if isinstance(step, Extern):
                runs.append(_call(step, tensors))
            else:
                source = print_kernel(step, self.buffers, knowledge=self.knowledge)
                runs.append(tensors.launch(source, step, device))

        def run(copy: int) -> None:
            for one in runs:
                one(copy)

        return run


def _names(step: Group | Extern) -> set[str]:
    if isinstance(step, Group):
        return {*step.reads, *step.writes}
    views = [arg.base if isinstance(arg, View) else arg for arg in step.args]
    return {name for name in (*views, *step.outputs) if isinstance(name, str)}


def _call(extern: Extern, tensors: Tensors) -> Run:
    """A call of products, or of a convolution, which also takes numbers and lists of these."""
    windows = extern.target is torch.ops.aten.convolution.default
    given = [arg for arg in extern.args if arg is not None or windows]
    arguments = [
        [tensors.view(arg, copy) if isinstance(arg, str | View) else arg for arg in given]
        for copy in range(tensors.copies)
    ]
    (output,) = extern.outputs
    assert output is not None
    results = [tensors.view(output, copy) for copy in range(tensors.copies)]

    def run(copy: int) -> None:
        out = {"out": results[copy]} if extern.style == "out" else {}
        extern.target(*arguments[copy], **extern.kwargs, **out)

    return run


class BlockTuner:
    """Prints kernels with the blocks that take the least time, for the buffers of one graph."""

    def __init__(self, lowered: Lowered) -> None:
        self.buffers, self.knowledge = lowered.buffers, lowered.sizes
        self.known: dict[str, Variation] = {}  # by the symbol of the kernel that the rule makes

    def __call__(self, group: Group | Combination) -> Variation:
        """How the blocks differ from the rule's. Small kernels, products and combinations have the rule's."""
        if not isinstance(group, Group) or isinstance(group, TiledGroup) or not may_time():
            return BY_RULE
        names = dict.fromkeys((*group.reads, *group.writes))
        tensors = {name: self.buffers[name] for name in names}
        if sum(timing.size_in_bytes(buffer, self.knowledge) for buffer in tensors.values()) < _LEAST_BYTES:
            return BY_RULE
        source = self._printed(group, BY_RULE)
        if source.symbol not in self.known:
            self.known[source.symbol] = self._chosen(group, source, tensors)
        return self.known[source.symbol]

    def _printed(self, group: Group, variation: Variation) -> Any:
        return print_kernel(group, self.buffers, knowledge=self.knowledge, variation=variation)

    def _chosen(self, group: Group, source: Any, buffers: dict[str, Buffer]) -> Variation:
        device = self.buffers[group.writes[0]].layout.device
        key = timing.choice_key(device, _BLOCKS, source.symbol, *self.knowledge.hints(source.sizes))
        stored = stored_choice(key)
        if stored is not None:
            return Variation(**stored)
        try:
            with counters.timed("autotune"), torch.cuda.device(device):
                found = self._timed(group, source, buffers, device)
        except torch.OutOfMemoryError:
            logs.log("autotune", "no memory is left to time %s in: the rule decides", group.name)
            note_provisional()
            return BY_RULE
        keep_choice(key, asdict(found))
        return found

    def _timed(self, group: Group, source: Any, buffers: dict[str, Buffer], device: torch.device) -> Variation:
        printed = {source.symbol: (BY_RULE, source)}
        for variation in VARIATIONS:
            made = self._printed(group, variation)
            printed.setdefault(made.symbol, (variation, made))
        timing.compile_together([made for _, made in printed.values()], device)
        tensors = Tensors(buffers, self.knowledge, group.reads)
        times: list[tuple[float, Variation]] = []
        for variation, made in printed.values():
            try:
                run = tensors.launch(made, group, device)
            except (CompileError, RuntimeError) as problem:
                logs.log("autotune", "this device does not take %s: %s", variation, problem)
                continue
            times.append((timing.time(run, tensors.copies) * (1 if variation is BY_RULE else 1 / _MARGIN), variation))
        if logs.enabled("autotune"):
            listed = ", ".join(f"{one:.2f} {variation}" for one, variation in sorted(times, key=lambda it: it[0]))
            logs.log("autotune", "blocks of %s; us: %s", source.symbol, listed)
        return min(times, key=lambda one: one[0], default=(0.0, BY_RULE))[1]
