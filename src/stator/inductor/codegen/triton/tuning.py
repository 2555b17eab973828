"""Chooses between the library and tiles by timing (`mode="max-autotune"`). Choices are kept in the kernel cache.

Each launch is timed in a CUDA graph over several copies of its tensors, so that neither the host nor the second-level
cache, where weights of a model would not lie, decides. What is timed is what would run: the library's calls with the
groups behind them, or the launch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from stator.base import counters, logs
from stator.base.errors import CompileError
from stator.inductor.buffers import Buffer, Extern, Lowered, View
from stator.inductor.schedule.groups import Group, ProductGroup, Tile
from stator.inductor.schedule.shared_depth import with_shared_depth
from stator.inductor.sizes import SizeKnowledge
from stator.runtime import cuda
from stator.runtime.build import current_cache
from stator.runtime.cuda.machine_code import triton_version
from stator.runtime.toolchain import digest

from .printer import print_kernel
from .tiles import candidates, choose_tile

_FORMAT = "products-1"  # change it with what is stored, or with how it is timed
_SPREAD_BYTES = 96 << 20  # all copies of the tensors: twice the second-level cache
_MOST_COPIES = 32
_REPLAYS = 5
_MARGIN = 0.97  # a launch replaces the library only if it is clearly quicker
# Bytes a second at which the loops behind read sums of programs that share the depth
_SUMS_BANDWIDTH = 3e12

Run = Callable[[int], None]  # one run on a copy of the tensors


class Tuner:
    """`choose_tile` by timing, for the buffers of one graph. While a CUDA graph is captured, the rule decides."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered, self.buffers, self.knowledge = lowered, lowered.buffers, lowered.sizes

    def __call__(self, group: ProductGroup, may_share_depth: bool) -> Tile | None:
        products = group.products
        device = self.buffers[products.left.buffer].layout.device
        if torch.cuda.is_current_stream_capturing():
            return choose_tile(group, may_share_depth, lowered=self.lowered)
        tiles = candidates(group, may_share_depth, lowered=self.lowered)
        key = self._key(group, tiles, device)
        cache = current_cache()
        stored = cache.find_data(key)
        if stored is not None:
            found = json.loads(stored)["tile"]
            return None if found is None else Tile(**found)
        try:
            with counters.timed("autotune"), torch.cuda.device(device):
                tile = self._timed(group, tiles, device)
        except torch.OutOfMemoryError:
            logs.log("autotune", "no memory is left to time products of %s in: the rule decides", group.name)
            return choose_tile(group, may_share_depth, lowered=self.lowered)
        try:
            cache.store_data(key, json.dumps({"tile": None if tile is None else asdict(tile)}).encode())
        except OSError as problem:
            logs.warn_once("cache:autotune", f"stator cannot keep choices of kernels in {cache.folder}: {problem}")
        return tile

    def _key(self, group: ProductGroup, tiles: Sequence[Tile], device: torch.device) -> str:
        """What a choice depends on: sizes, strides and loops, all in the text of a kernel, and what runs it."""
        texts = [
            print_kernel(launch, buffers, knowledge=self.knowledge).symbol
            for launch, buffers in self._launches(group, tiles)
        ]
        machine = [torch.cuda.get_device_name(device), torch.__version__, triton_version()]
        sizes = self.knowledge.hints([group.products.rows, group.products.depth])
        return digest(json.dumps([_FORMAT, *machine, *sizes, *texts]))

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
        tensors = _Tensors({name: buffers[name] for name in names if name in buffers}, self.knowledge, group.reads)
        rows, columns = self.knowledge.hints([group.products.rows, group.products.parts[0].columns])
        library = _time(self._library(steps, tensors, device), tensors.copies)
        times: list[tuple[float, Tile | None]] = [(library * _MARGIN, None)]
        sources = [print_kernel(launch, many, knowledge=self.knowledge) for launch, many in launches]
        _compile_together(sources, device)
        for tile, (launch, _), source in zip(tiles, launches, sources, strict=True):
            try:
                run = self._launch(source, launch, tensors, device)
            except (CompileError, RuntimeError) as problem:
                logs.log("autotune", "this device does not take %s: %s", tile, problem)
                continue
            behind = 0.0 if tile.split == 1 else 4e6 * rows * columns * tile.split / _SUMS_BANDWIDTH
            times.append((_time(run, tensors.copies) + behind, tile))
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

    def _launch(self, source: Any, group: Group, tensors: _Tensors, device: torch.device) -> Run:
        kernel = cuda.load_kernels([source], device)[source.symbol]
        names = (*group.reads, *group.writes)
        launch = kernel.bind(len(names), self.knowledge.hints(source.sizes))
        arguments = [[tensors.flat(name, copy) for name in names] for copy in range(tensors.copies)]
        return lambda copy: launch(*arguments[copy])

    def _library(self, steps: Sequence[Group | Extern], tensors: _Tensors, device: torch.device) -> Run:
        runs: list[Run] = []
        for step in steps:
            if isinstance(step, Extern):
                runs.append(_call(step, tensors))
            else:
                source = print_kernel(step, self.buffers, knowledge=self.knowledge)
                runs.append(self._launch(source, step, tensors, device))

        def run(copy: int) -> None:
            for one in runs:
                one(copy)

        return run


def _names(step: Group | Extern) -> set[str]:
    if isinstance(step, Group):
        return {*step.reads, *step.writes}
    views = [arg.base if isinstance(arg, View) else arg for arg in step.args]
    return {name for name in (*views, *step.outputs) if isinstance(name, str)}


class _Tensors:
    """Memory for buffers: random numbers in floats, zeros in others. What is read exists in several copies."""

    def __init__(self, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge, reads: Sequence[str]) -> None:
        self.knowledge, self.buffers = knowledge, buffers
        sizes = {name: self._elements(buffer) * buffer.layout.dtype.itemsize for name, buffer in buffers.items()}
        total = sum(sizes[name] for name in reads)
        self.copies = max(2, min(_MOST_COPIES, _SPREAD_BYTES // max(total, 1)))
        self.generator = torch.Generator(next(iter(buffers.values())).layout.device)
        self.memory = {
            name: [self._fresh(buffer) for _ in range(self.copies if name in reads else 1)]
            for name, buffer in buffers.items()
        }

    def _elements(self, buffer: Buffer) -> int:
        layout = buffer.layout
        sizes, strides = self.knowledge.hints(layout.size), self.knowledge.hints(layout.stride)
        return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))

    def _fresh(self, buffer: Buffer) -> torch.Tensor:
        layout = buffer.layout
        if layout.dtype.is_floating_point:
            # not from the generator of the user's random numbers
            values = torch.empty(self._elements(buffer), device=layout.device).normal_(generator=self.generator)
            return values.to(layout.dtype)
        return torch.zeros(self._elements(buffer), dtype=layout.dtype, device=layout.device)

    def flat(self, name: str, copy: int) -> torch.Tensor:
        copies = self.memory[name]
        return copies[copy % len(copies)]

    def view(self, argument: str | View, copy: int) -> torch.Tensor:
        name, layout = (argument.base, argument.layout) if isinstance(argument, View) else (argument, None)
        offset = 0 if layout is None else self.knowledge.hint(layout.offset)
        layout = layout or self.buffers[name].layout
        sizes, strides = self.knowledge.hints(layout.size), self.knowledge.hints(layout.stride)
        return self.flat(name, copy).as_strided(sizes, strides, offset)


def _call(extern: Extern, tensors: _Tensors) -> Run:
    """A call of products: its arguments are tensors."""
    arguments = [[tensors.view(arg, copy) for arg in extern.args] for copy in range(tensors.copies)]
    (output,) = extern.outputs
    assert output is not None
    results = [tensors.view(output, copy) for copy in range(tensors.copies)]

    def run(copy: int) -> None:
        extern.target(*arguments[copy], **extern.kwargs, out=results[copy])

    return run


def _compile_together(sources: Sequence[Any], device: torch.device) -> None:
    """Compile in parallel. Loading finds out which of them a device refuses."""
    try:
        cuda.load_kernels(sources, device)
    except (CompileError, RuntimeError) as problem:
        logs.log("autotune", "a kernel was refused: %s", problem)


def _time(run: Run, copies: int) -> float:
    """Microseconds of one run: the least of several replays of a graph of one run on each copy."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(0)  # what libraries set up with their first call must not be captured
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for copy in range(copies):
                run(copy)
        times = []
        for _ in range(_REPLAYS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(1000 * start.elapsed_time(end) / copies)
    torch.cuda.current_stream().wait_stream(stream)
    return min(times)
