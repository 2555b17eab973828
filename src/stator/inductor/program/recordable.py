"""Whether a program can be recorded as a CUDA graph, and what recording has to know about its inputs.

The work of a recording runs again without the host. So nothing may happen on the host between launches: no data is
read, no tensor of the host is used, no other process takes part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from stator.graph.ir.schema import op_info
from stator.graph.subgraphs.subgraph_ops import SubgraphOp
from stator.inductor.buffers import Extern
from stator.inductor.devices import library_reads_ends
from stator.runtime.cuda.graph_inputs import InputDescription

from .steps import Call, Program

_READS_DATA = frozenset(
    (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, getattr(torch.Tag, "cudagraph_unsafe", None))
)
_OWN_READERS = frozenset(("stator.require.default", "stator.tolist.default"))


def recording_device(program: Program) -> torch.device | None:
    """The CUDA device of a program; None if it uses none."""
    devices = {buffer.layout.device for buffer in program.buffers.values() if buffer.layout.device.type == "cuda"}
    return min(devices, key=str) if devices else None


def why_not_recorded(program: Program, device: torch.device, places: Mapping[str, Any]) -> str | None:
    """Why a program cannot be recorded on a device, or None. places: where the user's program calls the operators that
    nodes, by name, stand for."""
    for name, buffer in program.buffers.items():
        other = buffer.layout.device
        if other != device and not (buffer.kind == "constant" and buffer.layout.size == ()):
            kind = "an input" if buffer.kind == "input" else "a tensor"
            return f"{kind} ({name}) is on {other}"
    for step in program.steps:
        if isinstance(step, Call) and (reason := _reason(step.extern) or _reads_ends(step.extern, program)):
            place = next((places[name] for name in step.extern.origins if places.get(name)), None)
            return f"{reason} ({place})" if place else reason
    return None


def _reason(extern: Extern) -> str | None:
    target, arguments = extern.target, list(_flat((extern.args, extern.kwargs)))
    if isinstance(target, SubgraphOp):
        return "it chooses on the host which of its graphs to run"
    if not isinstance(target, OpOverload):
        return f"{extern.name} is a function of Python"
    if op_info(target).communicates:
        return f"{extern.name} communicates with other processes"
    if extern.binds or str(target) in _OWN_READERS or not _READS_DATA.isdisjoint(target.tags):
        return f"{extern.name} waits for data of the device"
    if any(isinstance(one, torch.Generator) for one in arguments):
        return f"{extern.name} draws from a generator of the program"
    return None


def _reads_ends(extern: Extern, program: Program) -> str | None:
    result = program.buffers[extern.outputs[0]].layout if extern.outputs and extern.outputs[0] else None
    if extern.target is not torch.ops.aten._grouped_mm.default or result is None or extern.args[2:3] in ((), (None,)):
        return None
    return f"{extern.name} waits for data of the device" if library_reads_ends(result.dtype, result.device) else None


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value


def describe_inputs(program: Program) -> InputDescription:
    """What recording has to know about the inputs of a program."""
    position = {name: at for at, name in enumerate(program.inputs)}
    sizes = {(one.position, -1 if one.dim is None else one.dim) for one in program.size_bindings.values()}
    sizes |= {(at, -1) for name, at in position.items() if name not in program.buffers}
    return InputDescription(
        tensors=tuple([position[name] for name in program.tensor_inputs]),
        parameters=frozenset(position[name] for name in program.static_inputs),
        written=frozenset(position[name] for name in _written(program) if name in position),
        sizes=tuple(sorted(sizes)),
        boxed=program.boxed,
    )


def _written(program: Program) -> set[str]:
    """The inputs that get new contents. Memory of inputs that end with the call does not count."""
    found = {
        buffer.value
        for buffer in program.buffers.values()
        if buffer.kind == "computed" and isinstance(buffer.value, str)
    }
    for step in program.steps:
        if isinstance(step, Call):
            found.update(step.extern.mutates)
    return found
