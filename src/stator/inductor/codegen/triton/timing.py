"""Times launches on the device: memory for their tensors, and the time of a run. Choices are kept in the kernel cache.

Each launch is timed in a CUDA graph over several copies of its tensors, so that neither the host nor the second-level
cache, where weights of a model would not lie, decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stator.base import logs
from stator.base.errors import CompileError
from stator.inductor.buffers import Buffer, View
from stator.inductor.schedule.groups import Ends, Group
from stator.inductor.sizes import SizeKnowledge
from stator.prims.layout import extent
from stator.runtime import choices, cuda
from stator.runtime.cuda.graph_capture import fresh_workspaces
from stator.runtime.cuda.machine_code import triton_version

_SPREAD_BYTES = 96 << 20  # all copies of the tensors: twice the second-level cache
_MOST_COPIES = 32
_REPLAYS = 5

Run = Callable[[int], None]  # one run on a copy of the tensors


def elements(buffer: Buffer, knowledge: SizeKnowledge) -> int:
    """The elements of a buffer's memory."""
    sizes, strides = knowledge.hints(buffer.layout.size), knowledge.hints(buffer.layout.stride)
    return extent(sizes, strides)  # type: ignore[no-any-return]


def size_in_bytes(buffer: Buffer, knowledge: SizeKnowledge) -> int:
    return elements(buffer, knowledge) * buffer.layout.dtype.itemsize


class Tensors:
    """Memory for buffers: random numbers in floats, zeros in others. What is read exists in several copies."""

    def __init__(self, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge, reads: Sequence[str]) -> None:
        self.knowledge, self.buffers = knowledge, buffers
        total = sum(size_in_bytes(buffers[name], knowledge) for name in reads)
        self.copies = max(2, min(_MOST_COPIES, _SPREAD_BYTES // max(total, 1)))
        self.generator = torch.Generator(next(iter(buffers.values())).layout.device)
        self.memory = {
            name: [self._fresh(buffer) for _ in range(self.copies if name in reads else 1)]
            for name, buffer in buffers.items()
        }

    def _fresh(self, buffer: Buffer) -> torch.Tensor:
        layout, count = buffer.layout, elements(buffer, self.knowledge)
        if layout.dtype.is_floating_point:
            # not from the generator of the user's random numbers
            values = torch.empty(count, device=layout.device).normal_(generator=self.generator)
            return values.to(layout.dtype)
        return torch.zeros(count, dtype=layout.dtype, device=layout.device)

    def end_groups(self, ends: Ends, size: int) -> None:
        """Let groups divide `size` rows, or so many steps of the depth, evenly."""
        place, count = ends.place, ends.count
        found = torch.arange(1, count + 1) * size // count
        for memory in self.memory[place.buffer]:
            memory.as_strided((count,), (place.strides[2],), place.offset).copy_(found)

    def flat(self, name: str, copy: int) -> torch.Tensor:
        copies = self.memory[name]
        return copies[copy % len(copies)]

    def view(self, argument: str | View, copy: int) -> torch.Tensor:
        name, layout = (argument.base, argument.layout) if isinstance(argument, View) else (argument, None)
        offset = 0 if layout is None else self.knowledge.hint(layout.offset)
        layout = layout or self.buffers[name].layout
        sizes, strides = self.knowledge.hints(layout.size), self.knowledge.hints(layout.stride)
        return self.flat(name, copy).as_strided(sizes, strides, offset)

    def launch(self, source: Any, group: Group, device: torch.device) -> Run:
        """Runs of a printed kernel. Raises CompileError or RuntimeError if the device does not take it."""
        kernel = cuda.load_kernels([source], device)[source.symbol]
        names = (*group.reads, *group.writes)
        launch = kernel.bind(len(names), self.knowledge.hints(source.sizes))
        arguments = [[self.flat(name, copy) for name in names] for copy in range(self.copies)]
        return lambda copy: launch(*arguments[copy])


def compile_together(sources: Sequence[Any], device: torch.device) -> None:
    """Compile in parallel. Loading finds out which of them a device refuses."""
    try:
        cuda.load_kernels(sources, device)
    except (CompileError, RuntimeError) as problem:
        logs.log("autotune", "a kernel was refused: %s", problem)


def time(run: Run, copies: int) -> float:
    """Microseconds of one run: the least of several replays of a graph of one run on each copy."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(0)  # what libraries set up with their first call must not be captured
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with fresh_workspaces(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
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


def choice_key(device: torch.device, *facts: Any) -> str:
    """The name of a choice in the cache: it depends on what runs the kernels, and on these facts."""
    return choices.choice_key([torch.cuda.get_device_name(device), triton_version()], *facts)
