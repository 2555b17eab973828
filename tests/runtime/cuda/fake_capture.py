"""A stand-in for a GPU: "captures" and "replays" calls on CPU tensors, in a pool of memory that all captures share.

A replay fills all memory that was free when the call was captured, and so may serve as scratch memory or hold results
of later captures, with garbage. Then it runs the recorded callable again on the tensors of the capture, fills memory
that the call frees with garbage, too, and writes the results to where the capture put them. So whoever reads memory
that is no longer theirs sees wrong numbers.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from stator.runtime.cuda.graph_capture import CaptureFailed
from stator.runtime.cuda.graph_inputs import can_copy

_ALIGNMENT = 64


class FakePool:
    """Memory of captures: first fit, or with `choose` any fit, and free again when its storage is gone."""

    def __init__(self, size: int, choose: Callable[[int], int] | None = None) -> None:
        self.choose = choose
        self.memory = bytearray(size)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.taken: dict[int, int] = {}  # offset -> bytes
        self.reach = 0  # the end of what was ever taken

    def free_ranges(self) -> list[tuple[int, int]]:
        ranges, start = [], 0
        for offset, size in sorted(self.taken.items()):
            ranges.append((start, offset))
            start = offset + size
        return [*ranges, (start, len(self.memory))]

    def allocate(self, like: torch.Tensor) -> torch.Tensor:
        """Memory for a storage of the bytes of `like`, as a tensor of `like`'s layout in it."""
        size = max(like.untyped_storage().nbytes(), 1)
        padded = -(-size // _ALIGNMENT) * _ALIGNMENT
        fitting = [start for start, end in self.free_ranges() if end - start >= padded]
        start = fitting[self.choose(len(fitting)) if self.choose else 0]
        self.taken[start] = padded
        self.reach = max(self.reach, start + padded)
        block = (ctypes.c_char * size).from_buffer(self.memory, start)
        weakref.finalize(block, self.taken.pop, start)
        whole = torch.frombuffer(block, dtype=torch.uint8)
        made = torch.empty(0, dtype=like.dtype)
        return made.set_(whole.untyped_storage(), like.storage_offset(), like.shape, like.stride())


class FakeGraph:
    """Knows the addresses of its inputs, and keeps none of them alive."""

    def __init__(self, capture: FakeCapture, pool: FakePool, freed: Collection[int]) -> None:
        self.capture, self.pool, self.scratch = capture, pool, pool.free_ranges()
        starts = [address - pool.base for address in freed]
        self.freed = [(start, start + pool.taken[start]) for start in starts]
        self.call: Callable[..., Sequence[Any]] = tuple
        self.inputs: list[Any] = []  # numbers, and where tensors are
        self.boxed = False
        self.results: list[Any] = []  # per result where it goes: address and layout

    def replay(self) -> None:
        self.capture.replays += 1
        self._fill(self.scratch)
        inputs = [_at(*one) if isinstance(one, tuple) else one for one in self.inputs]
        results = list(self.call(inputs) if self.boxed else self.call(*inputs))
        if self.freed:
            results = [one.clone() if isinstance(one, torch.Tensor) else one for one in results]
            self._fill(self.freed)
        for target, result in zip(self.results, results, strict=True):
            if target is not None:
                _at(*target).copy_(result)

    def _fill(self, ranges: Iterable[tuple[int, int]]) -> None:
        for start, end in ranges:
            end = min(end, self.pool.reach)
            if start < end:
                ctypes.memset(self.pool.base + start, 0xA5, end - start)

    def may_write(self, address: int) -> bool:
        offset = address - self.pool.base
        return any(start <= offset < end for start, end in [*self.scratch, *self.freed])


class FakeCapture:
    """`Capture` on CPU tensors."""

    def __init__(self, size: int = 1 << 20) -> None:
        self.size = size
        self.pools = {0: FakePool(size)}
        self.graphs: weakref.WeakSet[FakeGraph] = weakref.WeakSet()
        self.captures = self.replays = 0
        self.freed: list[torch.Tensor] = []  # memory of inputs, behind replays
        self.outer = False  # whether the program records a graph of its own
        self.failing: str | None = None
        self.setting: tuple[Any, ...] = ()
        self.graph: FakeGraph | None = None  # in a capture
        self.known: set[int] = set()  # storages of the inputs of a capture
        self.calls = 0  # of programs, beside captures and replays
        self.needs: list[int] = []  # bytes of large tensors, for each capture

    def is_capturing(self) -> bool:
        return self.outer

    def settings(self) -> tuple[Any, ...]:
        return self.setting

    def follow(self, results_are_used: Callable[[], bool]) -> None:
        pass

    def free_behind_replays(self, tensors: Iterable[torch.Tensor]) -> None:
        self.freed += tensors

    def reserved_bytes(self) -> int:
        return sum(pool.reach for pool in self.pools.values())

    @property
    def pool(self) -> FakePool:
        return self.pools[0]

    def capture(
        self, run: Callable[[], Sequence[Any]], pool: int, need: int, freed: Collection[int] = ()
    ) -> tuple[FakeGraph, Sequence[Any]]:
        self.needs.append(need)
        if self.failing is not None:
            raise CaptureFailed(self.failing)
        self.captures += 1
        if all(graph.pool is not self.pools.get(pool) for graph in self.graphs):  # a pool ends with its last graph
            self.pools[pool] = FakePool(self.size, self.pool.choose)
        memory = self.pools[pool]
        self.graph = graph = FakeGraph(self, memory, freed)
        self.graphs.add(graph)
        before = set(memory.taken)
        try:
            results = run()
        finally:
            self.graph = None
        assert {memory.base + start for start in before.difference(memory.taken)} <= set(freed)
        moved: dict[int, torch.Tensor] = {}
        made_of: dict[int, torch.Tensor] = {}
        placed: list[Any] = []
        for result in results:
            if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() in freed:
                placed.append(result)  # it took the memory of an input
                graph.results.append(_where(result))
                continue
            if not isinstance(result, torch.Tensor) or result.untyped_storage()._cdata in self.known:
                placed.append(result)
                graph.results.append(None)
                continue
            key = result.untyped_storage()._cdata
            if key not in moved:
                moved[key] = memory.allocate(result)
            made = made_of.setdefault(id(result), moved[key].new_empty(0, dtype=result.dtype))
            made.set_(moved[key].untyped_storage(), result.storage_offset(), result.shape, result.stride())
            placed.append(made)
            graph.results.append(_where(made))
        return graph, placed

    def watched(self, call: Callable[..., Sequence[Any]], boxed: bool = False) -> Callable[..., Sequence[Any]]:
        """`call` as a program: its captures leave no trace in its inputs."""

        def run(*arguments: Any) -> Sequence[Any]:
            graph = self.graph
            if graph is None:
                self.calls += 1
                return call(*arguments)
            inputs = list(arguments[0] if boxed else arguments)
            graph.call, graph.boxed = call, boxed
            graph.inputs = [_where(one) if isinstance(one, torch.Tensor) else one for one in inputs]
            tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
            # A real capture does not do the work, so that it does not matter what the inputs hold
            before = [(one, one.clone()) for one in tensors if can_copy(one) and 0 not in one.stride()]
            for one, _ in before:
                one.zero_()
            results = call(*arguments)
            for one, old in before:
                one.copy_(old)
            self.known = {one.untyped_storage()._cdata for one in tensors}
            return results

        return run


def _where(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _at(address: int, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    span = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) if 0 not in size else 0
    block = (ctypes.c_char * max(span * dtype.itemsize, 1)).from_address(address)
    return torch.frombuffer(block, dtype=torch.uint8)[: span * dtype.itemsize].view(dtype).as_strided(size, stride)
