"""Checkpointed functions of the captured code: which is running, and what each writes a second time in a backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import fx

from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Effect, Evaluate, NewTuple
from stator.dynamo.values.base import Value
from stator.dynamo.values.tensors.tensor import TensorValue, history
from stator.runtime.repeated_writes import repeat_in_backward

if TYPE_CHECKING:
    from stator.dynamo.values.base import Reconstructor


@dataclass(frozen=True, slots=True)
class RepeatedWrite:
    """The node that writes; to what; the share of it that stays, or None for all; a tensor or number that is added."""

    node: fx.Node | None
    target: TensorValue
    share: float | None
    added: Value


@dataclass(slots=True)
class Region:
    """A checkpointed function. results: autograd's nodes that made its results; a backward that reaches one of them
    runs it again."""

    writes: list[RepeatedWrite] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    def is_reached(self, nodes: Sequence[Any]) -> bool:
        return any(node is result for result in self.results for node in nodes)


class Checkpoints:
    """Those of one capture."""

    def __init__(self) -> None:
        self.running: Region | None = None  # None also inside of two, where eager runs it three times
        self.writing: list[Region] = []  # done, with writes
        self._depth = 0

    @contextmanager
    def region(self, in_the_call: bool) -> Iterator[Region | None]:
        """A checkpointed function is followed in the block. Gives None where it is not known how often it runs."""
        outer, self._depth = self.running, self._depth + 1
        self.running = region = Region() if self._depth == 1 and in_the_call else None
        try:
            yield region
        finally:
            self.running, self._depth = outer, self._depth - 1

    def done(self, region: Region | None, results: Iterable[Value]) -> None:
        """What a region that was followed gave to the program."""
        if region is not None and region.writes:
            fakes = [value.fake for value in results if isinstance(value, TensorValue)]
            region.results = [fake.grad_fn for fake in fakes if fake.grad_fn is not None]
            self.writing.append(region)

    def reached(self, nodes: Sequence[Any]) -> Iterator[RepeatedWrite]:
        """What a backward through these nodes of autograd writes again."""
        for region in reversed(self.writing):
            if region.is_reached(nodes):
                yield from region.writes

    def effects(self, reconstructor: Reconstructor) -> list[Effect]:
        """What sees to it, at run time, that a later backward writes again."""
        recorder = reconstructor.context.recorder
        made: list[Effect] = []
        for region in reversed(self.writing):
            written = [value for value in recorder.input_values if id(value) in recorder.written]
            leading = [value for value in (*reconstructor.outputs, *written) if _leads_to(region, value)]
            if leading:
                results = NewTuple([reconstructor.recipe(value) for value in leading])
                writes = NewTuple([_recipe(reconstructor, write) for write in region.writes])
                made.append(Evaluate(CallRecipe(ConstantRecipe(repeat_in_backward), [results, writes])))
        return made


def _leads_to(region: Region, value: TensorValue) -> bool:
    return value.fake.requires_grad and region.is_reached(list(history([value.fake.grad_fn])))


def _recipe(reconstructor: Reconstructor, write: RepeatedWrite) -> NewTuple:
    return NewTuple(
        [reconstructor.recipe(write.target), ConstantRecipe(write.share), reconstructor.recipe(write.added)]
    )
