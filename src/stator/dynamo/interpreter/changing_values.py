"""Values that likely differ from call to call where a frame is left at a graph break. The code behind the break is
compiled for many of them at once."""

from __future__ import annotations

import torch

from stator.dynamo.guards.source import LocalSource, SizeSource, Source, variable_of
from stator.dynamo.ir.capture_result import BreakReason
from stator.dynamo.values.base import Value
from stator.dynamo.values.containers.sequences import AppendOnlyList, changes_length
from stator.dynamo.values.symbolic_numbers import is_open
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.shapes.sym_node import SymbolicNode

from .frame import Frame


def varying_places(frame: Frame, reason: BreakReason) -> frozenset[str | int]:
    """The variables, and the positions on the stack, of lists and tuples whose lengths change from call to call. A list
    to which a turn of a loop appends is as long as the loop, whose number of turns changes."""
    in_turn = reason.kind == "varying-loop"
    places: list[tuple[str | int, Value | None]] = [*frame.locals.items(), *enumerate(frame.stack)]
    return frozenset(
        place
        for place, value in places
        if value is not None
        and (
            (value.source is not None and changes_length(frame.context, value.source))
            or (in_turn and type(value) is AppendOnlyList and value.appended)
        )
    )


def changing_locals(frame: Frame) -> dict[Source, int]:
    """The numbers and sizes in the variables that change from call to call, so that code behind the break is compiled
    for many of them at once. The value is the number of changes seen."""
    in_place = {name for name, value in frame.locals.items() if value.source == LocalSource(name)}
    changes = frame.context.changing.items()
    found = {source: count for source, count in changes if variable_of(source) in in_place}
    for name, value in frame.locals.items():
        if isinstance(value, TensorValue):
            for dim, size in enumerate(value.fake.shape):
                if type(size) is torch.SymInt and type(size.node) is SymbolicNode and size.node.has_hint():
                    found.setdefault(SizeSource(LocalSource(name), dim), 0)
        elif is_open(value) and value.kind in (int, float):
            found.setdefault(LocalSource(name), 0)
    return found
