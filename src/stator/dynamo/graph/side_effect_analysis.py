"""Side effects of a graph: written memory, random number generators, communication with other processes. Capture notes
the effects of each operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from stator.graph.fake.fake_mode import flat_tensors
from stator.graph.ir.schema import argument, is_random_call, op_info

aten = torch.ops.aten


class Footprint:
    """The effects of a graph.

    written: storages of fake tensors, by id.
    drawn_on: devices whose generators the graph draws from. draws: the number of operators that draw.
    speaks: whether other processes take part.
    """

    __slots__ = ("drawn_on", "draws", "speaks", "written")

    def __init__(self) -> None:
        self.written: dict[int, Any] = {}
        self.drawn_on: set[torch.device] = set()
        self.draws = 0
        self.speaks = False

    def note(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the effects of an operator that capture runs on fake tensors."""
        notes = _notes.get(func)
        if notes is None:
            notes = _notes[func] = _notes_on(func)
        for one in notes:
            one(self, func, args, kwargs)

    def write(self, written: list[Any]) -> None:
        for fake in flat_tensors(written):
            self.written[id(fake.fake_storage)] = fake.fake_storage


_Note = Callable[[Footprint, OpOverload, tuple[Any, ...], dict[str, Any]], None]
_notes: dict[OpOverload, tuple[_Note, ...]] = {}

# (input, weight, bias, running_mean, running_var, training, ...): in training they write the statistics, which their
# schemas do not say
_BATCH_NORMS = frozenset(
    (
        aten.batch_norm.default,
        aten.native_batch_norm.default,
        aten._batch_norm_impl_index.default,
        aten.cudnn_batch_norm.default,
        aten.miopen_batch_norm.default,
    )
)


def _notes_on(func: OpOverload) -> tuple[_Note, ...]:
    info = op_info(func)
    found: list[_Note] = []
    if info.mutates:
        found.append(_writes)
    if func in _BATCH_NORMS:
        found.append(_writes_statistics)
    if info.random:
        found.append(_draws)
    if info.communicates:
        found.append(_speaks)
    return tuple(found)


def _writes(seen: Footprint, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    info = op_info(func)
    seen.write([argument(info, args, kwargs, where) for where in info.mutates])


def _writes_statistics(seen: Footprint, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    info = op_info(func)
    if argument(info, args, kwargs, 5):
        statistics = flat_tensors([argument(info, args, kwargs, 3), argument(info, args, kwargs, 4)])
        seen.write(statistics)
        for fake in statistics:
            fake.fake_storage.version += 1  # their known contents are out of date


def _draws(seen: Footprint, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not is_random_call(func, args, kwargs):
        return
    tensors = flat_tensors([*args, *kwargs.values()])
    device = torch.device(kwargs.get("device") or (tensors[0].device if tensors else torch.get_default_device()))
    if device.type != "meta":  # the meta device has no generator
        seen.drawn_on.add(device)
        seen.draws += 1


def _speaks(seen: Footprint, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    seen.speaks = True
