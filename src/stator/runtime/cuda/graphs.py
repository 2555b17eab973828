"""Programs that are recorded as CUDA graphs and replayed: `record`.

A recording belongs to one combination of sizes and to the addresses of the inputs that it reads where they lie. A
replay writes to the results of its recording, to memory of the pool that was free when it was recorded, and that of a
backward to saved values that it has read. So it runs only while nobody uses that memory; docs/cuda-graphs.md has the
whole contract. How work is captured, how uses are told, and how inputs and results are copied is in the files beside
this one.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stator.base import counters, logs
from stator.runtime.autograd_state import below_autograd
from stator.runtime.launch import addresses

from .donation import TakenValues, bytes_lent, take_values
from .graph_capture import LARGE_BYTES, Capture, CaptureFailed, CudaCapture, Graph
from .graph_inputs import InputDescription, SeenStorage, can_copy
from .recording import Call, Recording
from .result_memory import ResultStorage

MOST_SIZES = 32  # combinations of sizes that one program is recorded for
MOST_RECORDINGS = 128  # of one program, for sizes and addresses
# How often a program is recorded anew because an input has moved, until that input is copied: for parameters and
# results of recordings, and for others
MOST_MOVES, MOST_MOVES_OF_OTHERS = 64, 4
# Results in use that are larger together, and more than half of all, make a second recording; others are copied from
# then on
MOST_COPIED_BYTES = 16 << 20
MOST_ALTERNATES = 4  # recordings for equal inputs, which take turns
# Recordings of a program made anew because a replay would overwrite results in use, until these are copied
MOST_EVASIONS = 16
MOST_POOLS = 12  # of memory
MOST_FAILURES = 2  # captures that may fail

Key = tuple[Any, ...]
WarmResult = tuple[int, int, StorageWeakRef]  # position, bytes, storage


class GraphPool:
    """What the recordings of one device share: the capture, its memory, and the lock."""

    def __init__(self, device: torch.device, capture: Capture) -> None:
        self.device, self.capture = device, capture
        self.lock = threading.RLock()  # of captures and replays: two threads never share static memory
        self.entered = self.capturing = False  # by the thread that has the lock
        self.context = below_autograd()
        self.recordings: dict[Recording, weakref.ref[RecordedProgram]] = {}
        self._leaving: list[Recording] = []
        self.freed: list[Graph] = []  # in the call that has entered: memory of a pool goes with its last graph
        # Recordings whose results outlive them. Where these do not own their memory, the graph keeps the pool
        self._left: dict[Recording, Graph | None] = {}
        self.warm_backwards: weakref.WeakSet[RecordedProgram] = weakref.WeakSet()  # which are to be recorded

    def results_at(self) -> set[int]:
        """The addresses of results that callers may hold."""
        return {tensor.data_ptr() for one in self.recordings for storage in one.handed for tensor in storage.tensors}

    def results_are_used(self) -> bool:
        """Whether callers hold any result."""
        self._left = {one: graph for one, graph in self._left.items() if one.used()}
        return bool(self._left) or any(one.used() for one in list(self.recordings))

    def add(self, recording: Recording, program: RecordedProgram, taken: Collection[ResultStorage] = ()) -> None:
        """Note for each earlier recording the new results that its replays may write to, and for this one the saved
        values that were given away before. taken: those that it reads itself, before it writes there."""
        for other in self.recordings:
            other.overwrites = [(one, found) for one, found in other.overwrites if one in self.recordings or one.used()]
            found = [one for one in recording.handed if other.graph.may_write(one.address)]
            if found:
                other.overwrites.append((recording, found))
        for other in [*self.recordings, *self._left]:
            given = [one for one in other.handed if one.given_away and one not in taken]
            found = [one for one in given if recording.graph.may_write(one.address)]
            if found:
                recording.overwrites.append((other, found))
        self.recordings[recording] = weakref.ref(program)
        counters.count("cuda_graphs:recorded")
        counters.largest("memory:cuda_graphs", self.capture.reserved_bytes())

    def has_unprotected(self, memory: int) -> bool:
        """Whether saved values are in use that captures in the pool of this number might overwrite."""
        return any(one.pool == memory and one.unprotected() for one in [*self.recordings, *self._left])

    def drop_obsolete(self) -> None:
        """Free the memory of recordings that read memory which is gone, in the order in which they were made: results
        of one may be what another one reads."""
        for recording, program in list(self.recordings.items()):
            if recording.is_obsolete() and not recording.used() and (owner := program()) is not None:
                owner._drop(recording)

    def remove(self, recordings: list[Recording]) -> None:
        """Free recordings; a function that dies during a capture leaves them until its end."""
        self._leaving += recordings
        recordings.clear()
        while self._leaving and not self.capturing:
            recording = self._leaving.pop()
            self.recordings.pop(recording, None)
            self._left = {one: graph for one, graph in self._left.items() if one.used()}
            if recording.used():
                self._left[recording] = recording.graph if recording.unprotected() else None
            if self.entered:
                self.freed.append(recording.graph)
            self.capture.free_behind_replays(recording.places.by_position.values())
            recording.release()


_pools: dict[torch.device, GraphPool] = {}


def pool_of(device: torch.device) -> GraphPool:
    """The pool of a CUDA device, of the current one without an index."""
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    found = _pools.get(device)
    return found or _pools.setdefault(device, GraphPool(device, CudaCapture(device)))


def record(
    call: Call,
    description: InputDescription,
    pool: GraphPool,
    name: str,
    visible: int | None = None,
    need: int = 0,
    need_beyond_saved: int = 0,
) -> Call:
    """Return a callable like `call`, which runs it as it is at first, then records it and replays the recording.

    call: a compiled program whose tensors are all on the pool's device, which launches work on the current stream and
    neither waits for the device nor reads its data. name: of the program, for messages. visible: only so many of its
    results leave compiled code; by default all. need: the bytes that its large tensors take at its peak, if known;
    need_beyond_saved: those that do not fit into saved values which it has read.
    """
    return RecordedProgram(call, description, pool, name, visible, need, need_beyond_saved)


def refuse(name: str, reason: str) -> None:
    """Say once that a program runs without a CUDA graph."""
    counters.count("cuda_graphs:refused")
    logs.log("cuda_graphs", "%s runs without a CUDA graph: %s", name, reason)
    logs.warn_once(f"cuda_graphs:{name}:{reason}", f"stator: {name} runs without a CUDA graph: {reason}")


class RecordedProgram:
    """See `record`."""

    def __init__(
        self,
        call: Call,
        description: InputDescription,
        pool: GraphPool,
        name: str,
        visible: int | None,
        need: int,
        need_beyond_saved: int,
    ) -> None:
        self.need, self.need_beyond_saved = need, need_beyond_saved
        self.call, self.description, self.pool, self.name, self.visible = call, description, pool, name, visible
        self.boxed = description.boxed
        self.stopped = False
        self.failures = self.evasions = 0
        self.warm: dict[Key, list[WarmResult]] = {}  # by sizes: results of a first call
        self.seen: dict[int, SeenStorage] = {}  # inputs when they were looked at last
        self.moves: Counter[int] = Counter()
        self.copied: set[int] = set()  # positions of results that callers get copies of
        # The number of the pool that recordings take memory from. It is odd for backwards, which alone are boxed:
        # gradients may live during the next forward, which would write to them in a pool of both. Where they do not, a
        # backward takes the memory of the saved values
        self.memory = int(description.boxed)
        self.takes_values = description.boxed
        # For the inputs that recordings read where they lie: the function that selects these, and the recordings by
        # sizes and addresses
        self.tables: dict[tuple[int, ...], tuple[Any, dict[Key, list[Recording]]]] = {}
        self.recordings: list[Recording] = []
        weakref.finalize(self, pool.remove, self.recordings).atexit = False

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        pool = self.pool
        if self.stopped or pool.capture.is_capturing():
            return self.call(*arguments)
        inputs: Any = arguments[0] if self.boxed else arguments
        settings = torch.is_inference_mode_enabled(), *pool.capture.settings()
        key = (settings, *self.description.sizes_in(inputs))
        with pool.lock:
            results = None
            if not pool.entered:  # a destructor may call a compiled function
                pool.entered = True
                try:
                    with pool.context:
                        results = self._replay(inputs, key)
                finally:
                    pool.entered = False
                    pool.freed.clear()
        if results is None:
            results = self.call(*arguments)
            if self.warm.get(key) == []:
                self.warm[key] = _storages(results)
                if self.takes_values:
                    pool.warm_backwards.add(self)
        elif self.boxed:
            inputs.clear()
        return results

    def _replay(self, inputs: Sequence[Any], key: Key) -> Sequence[Any] | None:
        """The results of a recording, which is made if need be. None if the program has to run as it is."""
        found = self._find(inputs, key)
        ready = next((one for one in found if not one.used()), None)
        if ready is not None and not ready.has_its_values():
            # A graph that is kept reads them again behind this call
            self.takes_values = False
            self._drop(ready)
            ready = None
        if ready is None:
            if key not in self.warm:
                self._warm_up(inputs, key)
                return None
            if found:
                self._make_way(found)
        elif threatened := ready.threatened():
            self._evade(ready, threatened)
            ready = None
        if ready is None:
            ready = self._record(inputs, key)
        if ready is None:
            return None
        self.pool.capture.follow(self.pool.results_are_used)
        counters.count("cuda_graphs:replayed")
        return ready.replay(inputs)

    def _find(self, inputs: Sequence[Any], key: Key) -> list[Recording]:
        """The recordings for these inputs."""
        for select, table in self.tables.values():
            found = table.get((key, addresses(select(inputs))))
            if found:
                return found
        return []

    def _warm_up(self, inputs: Sequence[Any], key: Key) -> None:
        """Let the program run as it is: libraries choose kernels then, and load them."""
        if len(self.warm) == MOST_SIZES:
            reason = f"it is recorded for at most {MOST_SIZES} combinations of sizes; others run as they are"
            logs.warn_once(f"cuda_graphs:{self.name}:sizes", f"stator: {self.name}: {reason}")
            return
        self.warm[key] = []
        self._look_at(inputs)

    def _make_way(self, found: list[Recording]) -> None:
        """Callers hold results of all these recordings. Large ones make another recording, if it holds little besides;
        others are copied from now on."""
        used = [storage for recording in found for storage in recording.used()]
        size = sum(storage.bytes for storage in used)
        large = size > MOST_COPIED_BYTES and 2 * size > sum(
            one.bytes for recording in found for one in recording.handed
        )
        if large and len(found) < MOST_ALTERNATES:
            return
        self.copied.update(at for storage in used for at in storage.positions)
        for recording in list(found):
            self._drop(recording)

    def _evade(self, ready: Recording, threatened: Sequence[Recording]) -> None:
        """Callers hold results of these recordings, which a replay would overwrite. Record anew, in memory that nobody
        uses. This program and the others leave their pool of memory for two pools, so that it ends and this program
        never writes to the other's again. One of the others that takes saved values leaves this pool by taking none."""
        self._drop(ready)
        self.takes_values = self.takes_values and not ready.takes_values()
        if ready.pool != self.memory:  # recorded before
            return
        self.evasions += 1
        found = {one: owner() for one, owner in self.pool.recordings.items() if one in threatened}
        others = {program for program in found.values() if program is not None and program is not self}
        takers = {owner for one, owner in found.items() if owner in others and one.takes_values()}
        for program in takers:
            program.takes_values = False
        if self.evasions <= MOST_EVASIONS and self.memory + 4 < MOST_POOLS:
            self.memory += 2 * bool(others)
            for program in others - takers:
                program.memory = max(program.memory, self.memory + 2)
            return
        for recording, owner in found.items():
            if owner is not None:
                owner.copied.update(at for storage in recording.handed for at in storage.positions)
                owner._drop(recording)

    def _drop(self, recording: Recording) -> None:
        if recording in self.recordings:
            self.recordings.remove(recording)
            for _, table in self.tables.values():
                for key, found in list(table.items()):
                    if recording in found:
                        found.remove(recording)
                        if not found:
                            del table[key]
            self.pool.remove([recording])

    def _record(self, inputs: Sequence[Any], key: Key) -> Recording | None:
        """Record the program for these inputs. None if that is impossible."""
        direct = self._direct(inputs)
        self._drop_replaced(inputs, key, direct)
        for one in [one for one in self.recordings if one.is_obsolete()]:
            self._drop(one)
        self.pool.drop_obsolete()
        if len(self.recordings) >= MOST_RECORDINGS:
            self._stop(f"it was recorded {MOST_RECORDINGS} times, for other sizes or addresses each")
            return None
        alive = [(at, size) for at, size, storage in self.warm[key] if not storage.expired()]
        if sum(size for _, size in alive) <= MOST_COPIED_BYTES:
            self.copied.update(at for at, _ in alive)
        self.warm[key] = []
        self._look_at(inputs)
        pool = self.pool
        taken = self._take_values(inputs, direct)
        if taken is None and not self._move_to_unused_pool():
            return None
        memory, need = (taken.pool, self.need_beyond_saved) if taken else (self.memory, self.need)
        pool.capturing = True
        try:
            made = Recording(
                *(self.call, self.description, pool.capture, inputs, direct, self.copied),
                *(pool.device, memory, self.visible, need, taken),
            )
        except CaptureFailed as error:
            self.failures += 1
            if self.failures == MOST_FAILURES:
                self._stop(str(error))
            return None
        finally:
            pool.capturing = False
            pool.remove([])
        pool.add(made, self, taken.storages if taken else ())
        self.recordings.append(made)
        if direct not in self.tables:
            self.tables[direct] = _selection(direct), {}
            self.tables = dict(sorted(self.tables.items(), key=lambda item: -len(item[0])))
        select, table = self.tables[direct]
        table.setdefault((key, addresses(select(inputs))), []).append(made)
        return made

    def _take_values(self, inputs: Any, direct: Sequence[int]) -> TakenValues | None:
        """The saved values that a recording of this program may overwrite, where gradients do not live so long that the
        next forward would overwrite these."""
        if not self.boxed:
            for program in list(self.pool.warm_backwards):
                program.takes_values &= not program.has_gradients()
        if not self.takes_values:
            return None
        self.pool.warm_backwards.discard(self)
        donor = max(
            self.pool.recordings, key=lambda one: bytes_lent(one.results, map(inputs.__getitem__, direct)), default=None
        )
        if donor is None or self.pool.has_unprotected(donor.pool):
            return None
        return take_values(donor.results, donor.pool, inputs, direct)

    def has_gradients(self) -> bool:
        """Whether results of a first call live."""
        return any(not storage.expired() for results in self.warm.values() for _, _, storage in results)

    def _move_to_unused_pool(self) -> bool:
        """Leave a pool where a capture might overwrite saved values that are in use. Returns whether there is
        another."""
        while self.pool.has_unprotected(self.memory):
            if self.memory + 2 >= MOST_POOLS:
                return False
            self.memory += 2
        return True

    def _drop_replaced(self, inputs: Sequence[Any], key: Key, direct: Sequence[int]) -> None:
        """Free the recordings that one which reads the inputs `direct` where they lie replaces: it serves all of their
        calls, and copies the inputs that they read besides, which are no parameters and no results."""
        wanted, results_at = {at: inputs[at].data_ptr() for at in direct}, self.pool.results_at()
        for positions, (_, table) in list(self.tables.items()):
            others = set(positions).difference(direct)
            if not others or not self.description.parameters.isdisjoint(others):
                continue
            for (sizes, where), found in list(table.items()):
                lie = dict(zip(positions, memoryview(where).cast("q"), strict=True))
                serves = sizes == key and wanted.items() <= lie.items()
                if serves and results_at.isdisjoint([lie[at] for at in others]):
                    for one in list(found):
                        self._drop(one)

    def _direct(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """The positions of inputs that a recording reads where they lie: parameters, results of recordings, and tensors
        that lay there before."""
        results_at = self.pool.results_at()
        direct = []
        for at in self.description.tensors:
            tensor, seen = inputs[at], self.seen.get(at)
            if not can_copy(tensor):
                direct.append(at)
                continue
            most = -1
            if at in self.description.parameters or tensor.data_ptr() in results_at:
                most = MOST_MOVES
            elif seen is not None and seen.is_in(tensor):
                most = MOST_MOVES_OF_OTHERS
            if self.moves[at] <= most:
                direct.append(at)
        return tuple(direct)

    def _look_at(self, inputs: Sequence[Any]) -> None:
        """Remember where the inputs lie, and count how often each has moved."""
        for at in self.description.tensors:
            seen = self.seen.get(at)
            if seen is None or not seen.is_in(inputs[at]):
                self.moves[at] += seen is not None
                self.seen[at] = SeenStorage(inputs[at])

    def _stop(self, reason: str) -> None:
        self.stopped = True
        self.tables.clear()
        self.pool.remove(self.recordings)
        refuse(self.name, reason)


def _selection(positions: tuple[int, ...]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The function that selects these positions of a sequence."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda inputs: [inputs[at] for at in positions]


def _storages(results: Sequence[Any]) -> list[WarmResult]:
    found = []
    for at, result in enumerate(results):
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            found.append((at, storage.nbytes(), StorageWeakRef(storage)))
    return found


__all__ = ["LARGE_BYTES", "GraphPool", "InputDescription", "pool_of", "record", "refuse"]
