"""Prints a program: one line per step, after a head with the memory that the program needs."""

from __future__ import annotations

from typing import Any

from stator.inductor.buffers import Layout, View

from .aliases import typical_bytes
from .arena import plan_arena
from .steps import Allocate, Call, Free, Launch, Program, ReturnValues, Reuse, ReuseIfUnshared


def print_program(program: Program) -> str:
    """The text of `50_program.txt`."""
    arena = plan_arena(program)
    peak = peak_bytes(program)
    head = [
        f"program of {len(program.steps)} steps, {len(program.kernels)} distinct kernels",
        f"intermediate memory: {peak:,} bytes live at most; {arena.bytes:,} in the arena; "
        f"{arena.naive_bytes:,} without reuse",
        "inputs: " + (", ".join(_input(program, name) for name in program.inputs) or "none"),
        "",
    ]
    return "\n".join([*head, *(f"{number:4d}  {_line(step)}" for number, step in enumerate(program.steps)), ""])


def peak_bytes(program: Program) -> int:
    """The most bytes that allocated buffers hold at one time, without the buffers that leave the program."""
    live: dict[str, int] = {}
    peak = 0
    for step in program.steps:
        if isinstance(step, Allocate) and step.name not in program.escaping:
            live[step.name] = typical_bytes(step.layout, program.sizes)
        elif isinstance(step, ReuseIfUnshared) and step.name in program.escaping:
            live.pop(step.old, None)
        elif isinstance(step, ReuseIfUnshared):
            live.pop(step.old, None)
            live[step.name] = typical_bytes(step.layout, program.sizes)
        elif isinstance(step, Reuse) and step.old in live:
            live[step.name] = live.pop(step.old)
        elif isinstance(step, Free):
            live.pop(step.name, None)
        peak = max(peak, sum(live.values())) if isinstance(step, (Allocate, Reuse, ReuseIfUnshared)) else peak
    return peak


def layout_text(layout: Layout) -> str:
    offset = f" at {layout.offset}" if layout.offset != 0 else ""
    return f"{str(layout.dtype).removeprefix('torch.')}{list(layout.size)} stride {list(layout.stride)}{offset}"


def _input(program: Program, name: str) -> str:
    return f"{name} (static)" if name in program.static_inputs else name


def _argument(value: Any) -> str:
    if isinstance(value, View):
        return f"{value.base} as {layout_text(value.layout)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument(item) for item in value)}]"
    return str(value)


def _line(step: Any) -> str:
    match step:
        case Allocate():
            return f"allocate {step.name}: {layout_text(step.layout)}"
        case ReuseIfUnshared():
            memory = f"in the memory of {step.old}, if that is nobody else's"
            return f"take     {step.name}: {layout_text(step.layout)} {memory}"
        case Reuse():
            return f"reuse    {step.name}: {layout_text(step.layout)} in the memory of {step.old}"
        case Free():
            return f"free     {step.name}"
        case Launch():
            return f"launch   {step.kernel}({', '.join([*step.args, *map(str, step.sizes)])})"
        case ReturnValues():
            return f"return   {', '.join(_argument(value) for value in step.values)}"
    assert isinstance(step, Call)
    extern = step.extern
    outputs = ", ".join(str(name) for name in extern.outputs) or "nothing"
    arguments = [*map(_argument, extern.args), *(f"{key}={_argument(value)}" for key, value in extern.kwargs.items())]
    mutates = f" changing {', '.join(extern.mutates)}" if extern.mutates else ""
    return f"call     {outputs} = {extern.name}({', '.join(arguments)}) [{extern.style}]{mutates}"
