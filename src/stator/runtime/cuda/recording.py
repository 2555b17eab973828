"""One recorded graph of a program: where its inputs and results lie, and what stands against a replay."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .donation import TakenValues
from .graph_capture import Capture
from .graph_inputs import InputDescription, InputPlaces
from .graph_results import RecordedResults
from .result_memory import ResultStorage

Call = Callable[..., Sequence[Any]]


class Recording:
    """The work of `call` for the sizes of some inputs, and for the addresses of those that it reads where they lie."""

    def __init__(
        self,
        call: Call,
        description: InputDescription,
        capture: Capture,
        inputs: Sequence[Any],
        direct: Collection[int],
        copied_results: Collection[int],
        device: torch.device,
        pool: int,
        visible: int | None,
        need: int,
        taken: TakenValues | None = None,
    ) -> None:
        """direct: positions of inputs that are read where they lie; others are copied. copied_results: positions of
        results that callers get copies of. pool: the number of the pool that it takes memory from. visible: see
        `RecordedResults`; need: see `Capture`. taken: saved values that end in the call; `taken.owners` is emptied.
        Raises CaptureFailed."""
        self.pool = pool
        self._donation = taken and weakref.ref(taken.donation)
        copied = [at for at in description.tensors if at not in direct]
        with torch._C._InferenceMode(False):
            self.places = InputPlaces(inputs, copied, description.written)
        given = [self.places.by_position.get(at, value) for at, value in enumerate(inputs)]
        owners = taken.owners if taken else {}

        def run() -> Sequence[Any]:
            if not description.boxed:
                return call(*given)
            arguments = list(given)
            for at in list(owners):
                arguments[at] = owners.pop(at)  # nothing else owns this memory
            return call(arguments)

        freed = [one.address for one in taken.storages] if taken else ()
        self.graph, captured = capture.capture(run, pool, need, freed)
        # The graph reads constants that belong to the code for these sizes, which its program may forget
        self.code = list(getattr(call, "known", {}).values())
        results = list(captured)
        del captured
        self.results = RecordedResults(results, given, copied_results, device, visible)
        self.read = [StorageWeakRef(inputs[at].untyped_storage()) for at in direct]
        self.quiet = True  # whether no caller has got results since all were seen unused
        self.overwrites: list[tuple[Recording, list[ResultStorage]]] = []  # results that a replay may write to

    @property
    def handed(self) -> list[ResultStorage]:
        return self.results.handed

    def replay(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        self.places.fill(inputs)
        self.graph.replay()
        self.places.write_back(inputs)
        self.quiet = not self.handed
        return self.results.make(inputs)

    def has_its_values(self) -> bool:
        """Whether this call alone holds the saved values that a replay overwrites."""
        return self._donation is None or ((donation := self._donation()) is not None and donation.is_free())

    def takes_values(self) -> bool:
        """Whether a replay writes to memory of saved values that it reads."""
        return self._donation is not None

    def unprotected(self) -> list[ResultStorage]:
        """Saved values that are in use, in memory that is free for captures."""
        return [one for one in self.used() if one.given_away]

    def release(self) -> None:
        """Free what the recording owns, and leave results to those who hold them."""
        self.results.release()
        self.overwrites.clear()
        del self.graph, self.places

    def is_obsolete(self) -> bool:
        """Whether memory that the graph reads is gone."""
        return any(one.expired() for one in self.read)

    def used(self) -> list[ResultStorage]:
        """The results that callers hold."""
        if self.quiet or not self.results.are_used():
            self.quiet = True
            return []
        found = [one for one in self.handed if one.is_used()]
        self.quiet = not found
        return found

    def threatened(self) -> list[Recording]:
        """Later recordings whose results callers hold and a replay may overwrite."""
        return [
            recording
            for recording, storages in self.overwrites
            if recording.used() and any(one.is_used() for one in storages)
        ]


__all__ = ["Recording"]
