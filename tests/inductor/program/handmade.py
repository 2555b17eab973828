"""Small lowered graphs and schedules made by hand, with C++ kernels to match, for tests of the plan and of the host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from stator.inductor.buffers import Buffer, Extern, Layout, Loops, Lowered, View
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule.groups import Group, Schedule
from stator.shapes.expr import Symbol


def layout(*size: int, dtype: torch.dtype = torch.float32, stride: tuple[int, ...] | None = None) -> Layout:
    if stride is None:
        stride = torch.empty(size, device="meta").stride()
    return Layout(size, stride, dtype, torch.device("cpu"))


def add_body(reads: tuple[str, ...], write: str, count: int, *, shifted: bool = False) -> LoopBody:
    """write[i] = sum of the reads at i (the last read at count-1-i when shifted)."""
    i = Symbol("i0")
    ops: list[Op] = []
    for number, name in enumerate(reads):
        at = IndexRef(1) if shifted and number == len(reads) - 1 else IndexRef(0)
        ops.append(Op("load", (name, at, None, 0.0), torch.float32))
    total = Ref(0)
    for number in range(1, len(reads)):
        ops.append(Op("add", (total, Ref(number)), torch.float32))
        total = Ref(len(ops) - 1)
    ops.append(Op("store", (write, IndexRef(0), total, None, None), None))
    return LoopBody((i,), (count,), (), (), (i + 0, count - 1 - i), tuple(ops))


def add_kernel(reads: int, count: int) -> KernelSource:
    symbol = f"add{reads}_{count}"
    total = " + ".join(f"((const float *)p[{k}])[i]" for k in range(reads)) or "1.0f"
    loop = f"for (long i = 0; i < {count}; ++i) ((float *)p[{reads}])[i] = {total};"
    text = f'extern "C" void {symbol}(void *const *p) {{ {loop} }}'
    return KernelSource(symbol, symbol, text, "cpp")


@dataclass
class Graph:
    """Builds a Lowered, its Schedule and its kernels step by step; every buffer is float32."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[Group | Extern] = field(default_factory=list)
    kernels: dict[str, KernelSource] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)

    def input(self, name: str, *size: int) -> str:
        self.buffers[name] = Buffer(name, layout(*size), "input")
        self.inputs.append(name)
        return name

    def constant(self, name: str, value: torch.Tensor) -> str:
        shape = Layout(tuple(value.shape), value.stride(), value.dtype, value.device)
        self.buffers[name] = Buffer(name, shape, "constant", value)
        return name

    def add(self, write: str, *reads: str, shifted: bool = False, mutates: str | None = None) -> str:
        """A kernel write = sum of reads, elementwise."""
        size = self.buffers[reads[0]].layout.size
        count = torch.Size(size).numel()
        self.buffers[write] = Buffer(write, layout(*size), "computed", mutates)
        loops = Loops((write,), add_body(reads, write, count, shifted=shifted))
        group = Group(f"group{len(self.steps)}", (loops,), (count,), frozenset(), reads, (write,))
        self.steps.append(group)
        self.kernels[group.name] = add_kernel(len(reads), count)
        return write

    def call(self, outputs: tuple[str | None, ...], sizes: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        style = kwargs.pop("style", "returns")
        mutates = kwargs.pop("mutates", ())
        for name, size in zip(outputs, sizes, strict=True):
            if name is not None:
                self.buffers[name] = Buffer(name, size if isinstance(size, Layout) else layout(*size))
        self.steps.append(Extern(outputs, target, args, kwargs, style, mutates))

    def move_to_gpu(self) -> None:
        for name, buffer in self.buffers.items():
            self.buffers[name] = replace(buffer, layout=replace(buffer.layout, device=torch.device("cuda", 0)))
        self.kernels = {name: replace(kernel, language="triton") for name, kernel in self.kernels.items()}

    def finish(self, *outputs: Any) -> tuple[Lowered, Schedule, dict[str, KernelSource]]:
        nodes = [member for step in self.steps for member in (step.members if isinstance(step, Group) else (step,))]
        return Lowered(self.buffers, nodes, self.inputs, list(outputs)), Schedule(tuple(self.steps)), self.kernels


__all__ = ["Graph", "View", "add_body", "add_kernel", "layout"]
