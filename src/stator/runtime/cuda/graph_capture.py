"""Records the work of a call as a CUDA graph, in a pool of memory that recordings of a device share.

`Capture` is all that recording needs of a device, so that tests can stand in for a GPU. What is recorded, and when a
recording may run, is decided in graphs.py.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import torch

Results = Sequence[Any]


# Torch's allocator has segments of their own for smaller tensors, and larger segments for others, of this size or more
LARGE_BYTES = (1 << 20) + 1
_SEGMENT = 20 << 20


class CaptureFailed(Exception):
    """A call cannot be recorded: it did something that a graph cannot repeat."""


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Run the work on the current stream."""

    def may_write(self, address: int) -> bool:
        """Whether replay may write to this address, as far as the pool is concerned. Memory of the pool that was in use
        during the capture is never written."""


class Capture(Protocol):
    """Recording on one device."""

    def is_capturing(self) -> bool:
        """Whether the current stream is recording anything, also for the program's own graphs."""

    def settings(self) -> tuple[Any, ...]:
        """The program's settings of libraries, which choose kernels by them."""

    def follow(self, results_are_used: Callable[[], bool]) -> None:
        """Let the current stream, which runs the next replay, wait for what other streams of replays were given: they
        may still read results that nobody holds any more. `results_are_used`: whether there will be such reads."""

    def free_behind_replays(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let the memory of tensors that replays read be free, once the caller drops them, behind all replays so far,
        which may run on other streams than the one that it was allocated for."""

    def capture(
        self, run: Callable[[], Results], pool: int, need: int, freed: Collection[int] = ()
    ) -> tuple[Graph, Results]:
        """Record the work of `run`, without doing it. The results lie in the pool of this number; they have contents
        after a replay, which writes to no other pool. need: the bytes that large tensors of `run` take at its peak.
        freed: the addresses of memory of the pool that `run` frees; it can run but once then.

        Raises CaptureFailed.
        """

    def reserved_bytes(self) -> int:
        """The bytes of all pools."""


Ranges = Sequence[tuple[int, int]]  # of addresses, disjoint


class CudaGraph:
    """A recording on a CUDA device. Its work may write to the pool as it was after the capture (`segments`), apart from
    what was in use before and not freed (`spared`)."""

    __slots__ = ("__weakref__", "_segments", "_spared", "graph", "pool", "replay")

    def __init__(self, graph: Any, pool: int, segments: Ranges, spared: Ranges) -> None:
        self.graph, self.pool, self.replay = graph, pool, graph.replay
        self._segments, self._spared = sorted(segments), sorted(spared)

    def may_write(self, address: int) -> bool:
        return _contains(self._segments, address) and not _contains(self._spared, address)


def _contains(ranges: Ranges, address: int) -> bool:
    at = bisect_right(ranges, (address, math.inf)) - 1
    return at >= 0 and address < ranges[at][1]


def _readers() -> list[Callable[[], Any]]:
    found: list[Callable[[], Any]] = [
        torch._C._get_deterministic_algorithms,
        torch._C._get_cudnn_benchmark,
        torch._C._get_cudnn_deterministic,
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    ]
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    if precision is not None:
        return found + [partial(precision, "cuda", kind) for kind in ("matmul", "conv", "rnn")]
    return [*found, torch._C._get_cublas_allow_tf32, torch._C._get_cudnn_allow_tf32]


_SETTINGS = _readers()


class CudaCapture:
    """`Capture` for a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pools: dict[int, Any] = {}  # torch's names
        self.graphs: weakref.WeakSet[CudaGraph] = weakref.WeakSet()
        self._streams: dict[int, Any] = {}  # of replays whose results may still be read
        self._bytes: dict[int, int] = {}

    def is_capturing(self) -> bool:
        return torch._C._cuda_isCurrentStreamCapturing()

    def settings(self) -> tuple[Any, ...]:
        return tuple([read() for read in _SETTINGS])

    def follow(self, results_are_used: Callable[[], bool]) -> None:
        number: int = torch._C._cuda_getCurrentRawStream(self.device.index)  # type: ignore[attr-defined]
        if len(self._streams) == 1 and number in self._streams:
            return
        current = torch.cuda.current_stream(self.device)
        others = [stream for other, stream in self._streams.items() if other != number]
        # asked first: what a stream is given after that, it is given for a result that is still held
        if not results_are_used():
            self._streams.clear()
        self._streams[number] = current
        for stream in others:
            current.wait_stream(stream)

    def free_behind_replays(self, tensors: Iterable[torch.Tensor]) -> None:
        with torch._C._DisableTorchDispatch():  # a destructor may drop a recording anywhere
            for tensor in tensors:
                for stream in self._streams.values():  # earlier replays on other streams come before theirs
                    tensor.record_stream(stream)

    def capture(
        self, run: Callable[[], Results], pool: int, need: int, freed: Collection[int] = ()
    ) -> tuple[Graph, Results]:
        try:
            return self._capture(run, pool, need, freed)
        except torch.OutOfMemoryError as error:
            # A capture cannot take back memory that the allocator has cached
            torch.cuda.empty_cache()
            if freed:
                raise CaptureFailed("there is not enough memory") from error
        try:
            return self._capture(run, pool, 0, freed)  # there may be room for all tensors, but not for one segment
        except torch.OutOfMemoryError as error:
            raise CaptureFailed("there is not enough memory") from error

    def _capture(
        self, run: Callable[[], Results], pool: int, need: int, freed: Collection[int]
    ) -> tuple[Graph, Results]:
        if all(graph.pool != pool for graph in self.graphs):  # a pool ends with its last graph
            self.pools[pool] = torch.cuda.graph_pool_handle()
        blocks = [block for segment in self._segments(pool) for block in segment["blocks"]]
        inactive = [block["size"] for block in blocks if block["state"] == "inactive"]
        active = [block for block in blocks if block["state"] != "inactive" and block["address"] not in freed]
        spared = [(one["address"], one["address"] + one["size"]) for one in active]
        missing = need - sum(size for size in inactive if size >= LARGE_BYTES)
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        # Intermediates come from the pool, too, and go back to it: the pool lives as long as its graphs. So does the
        # memory that cuBLAS works in, which torch keeps for a stream and anybody may free
        with torch.cuda.stream(self.stream), fresh_workspaces():
            # Other threads, such as those that load data, may go on allocating memory
            graph.capture_begin(self.pools[pool], capture_error_mode="thread_local")
            try:
                if missing > _SEGMENT:
                    # One segment, which tensors of all sizes divide. The allocator would take one for each large
                    # tensor that finds no room, and gaps between them would stay
                    address = torch.cuda.caching_allocator_alloc(missing, self.device, self.stream)
                    torch.cuda.caching_allocator_delete(address)
                results = run()
                graph.capture_end()
            except BaseException as error:
                self._abandon(graph, pool)
                if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, Exception):
                    raise
                raise CaptureFailed(_first_line(error)) from error
        current.wait_stream(self.stream)
        segments = [(one["address"], one["address"] + one["total_size"]) for one in self._segments(pool)]
        self._bytes[pool] = sum(end - start for start, end in segments)
        made = CudaGraph(graph, pool, segments, spared)
        self.graphs.add(made)
        return made, results

    def _abandon(self, graph: Any, pool: int) -> None:
        """End a capture that failed. CUDA reports the failure again, and torch then leaves its allocator and its
        generator in the state of a capture; the end of another capture brings the generator back."""
        with suppress(RuntimeError):
            graph.capture_end()
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device.index, self.pools[pool])
        with suppress(RuntimeError):
            whole, probe = torch.cuda.CUDAGraph(), torch.zeros(1, device=self.device)
            self.stream.synchronize()
            whole.capture_begin(capture_error_mode="thread_local")
            probe.zero_()
            whole.capture_end()

    def _segments(self, pool: int) -> list[dict[str, Any]]:
        """What torch's allocator says about the segments of the pool."""
        name = self.pools[pool]
        return [
            segment
            for segment in torch.cuda.memory_snapshot(name)
            if tuple(segment["segment_pool_id"]) == tuple(name) and segment["device"] == self.device.index
        ]

    def reserved_bytes(self) -> int:
        return sum(self._bytes[pool] for pool in {graph.pool for graph in self.graphs})


@contextmanager
def fresh_workspaces() -> Iterator[None]:
    """Let products of the block allocate the memory that the library works in, and free it behind the block."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


__all__ = ["LARGE_BYTES", "Capture", "CaptureFailed", "CudaCapture", "Graph", "fresh_workspaces"]
