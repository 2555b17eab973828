"""Runs loop nodes three ways for tests: the reference evaluator, one kernel per node, and fused kernels."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from loop_evaluator import interpret

from stator.base.config import Options
from stator.inductor.buffers import Buffer, Layout, Loops, Lowered
from stator.inductor.codegen.cpp import print_kernel
from stator.inductor.loops.handler import freeze
from stator.inductor.loops.verifier import verify_body
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import Schedule
from stator.runtime.build import build_kernels
from stator.shapes.expr import Symbol

CPU = torch.device("cpu")


def contiguous_strides(size: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


class Graph:
    """Collects buffers and loop nodes as lowering would."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Loops] = []
        self.inputs: dict[str, torch.Tensor] = {}
        self.outputs: list[str] = []

    def input(self, tensor: torch.Tensor, name: str | None = None) -> str:
        name = name or f"arg{len(self.inputs)}"
        layout = Layout(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, CPU)
        self.buffers[name] = Buffer(name, layout, "input")
        self.inputs[name] = tensor
        return name

    def buffer(
        self, size: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None, value: Any = None
    ) -> str:
        name = f"buf{len(self.buffers)}"
        layout = Layout(tuple(size), tuple(strides or contiguous_strides(size)), dtype, CPU)
        self.buffers[name] = Buffer(name, layout, "computed", value)
        return name

    def node(
        self,
        outputs: Sequence[str],
        body: Callable[..., None],
        ranges: Sequence[int],
        reduction: Sequence[int] = (),
    ) -> None:
        """body(ops, index, reduction_index) makes loads and stores."""
        variables = tuple(Symbol(f"i{at}") for at in range(len(ranges)))
        reduced = tuple(Symbol(f"j{at}") for at in range(len(reduction)))
        frozen = freeze(
            lambda ops: body(ops, variables, reduced),
            variables,
            tuple(ranges),
            reduced,
            tuple(reduction),
            lambda name: self.buffers[name].layout.dtype,
        )
        verify_body(frozen, lambda name: self.buffers[name].layout.dtype)
        self.nodes.append(Loops(tuple(outputs), frozen))

    def lowered(self) -> Lowered:
        return Lowered(dict(self.buffers), list(self.nodes), list(self.inputs), list(self.outputs))


def memory_size(layout: Layout) -> int:
    return (
        1 + sum((extent - 1) * stride for extent, stride in zip(layout.size, layout.stride, strict=True))
        if 0 not in layout.size
        else 0
    )


def fresh_memory(graph: Graph) -> dict[str, torch.Tensor]:
    """1-D memory per buffer; inputs copied, computed buffers full of a value that no kernel should leave."""
    memory: dict[str, torch.Tensor] = {}
    for name, buffer in graph.buffers.items():
        layout = buffer.layout
        if name in graph.inputs:
            flat = torch.empty(memory_size(layout), dtype=layout.dtype)
            flat.as_strided(layout.size, layout.stride).copy_(graph.inputs[name])
            memory[name] = flat
        elif isinstance(buffer.value, str):
            memory[name] = memory[buffer.value]
        else:
            memory[name] = torch.full((memory_size(layout),), 77, dtype=layout.dtype)
    return memory


def view(graph: Graph, memory: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    layout = graph.buffers[name].layout
    return memory[name].as_strided(layout.size, layout.stride)


def run_reference(graph: Graph) -> dict[str, torch.Tensor]:
    memory = fresh_memory(graph)
    for node in graph.nodes:
        interpret(node.body, memory)
    return {name: view(graph, memory, name) for name in graph.outputs}


class Compiled:
    """Kernels of several schedules, built together so that the compiler starts once."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Graph, Schedule, list[Any]]] = []
        self.addresses: dict[str, int] = {}

    def add(self, graph: Graph, options: Options | None = None) -> int:
        options = options or Options()
        plan = schedule(graph.lowered(), options)
        sources = [print_kernel(group, graph.buffers, options) for group in plan.steps]
        self.jobs.append((graph, plan, sources))
        return len(self.jobs) - 1

    def build(self) -> None:
        self.addresses = build_kernels([source for _, _, sources in self.jobs for source in sources], threads=1)

    def text(self, job: int) -> str:
        return "\n".join(source.source for source in self.jobs[job][2])

    def run(self, job: int, memory: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
        graph, plan, sources = self.jobs[job]
        memory = fresh_memory(graph) if memory is None else memory
        for group, source in zip(plan.steps, sources, strict=True):
            arguments = [memory[name] for name in (*group.reads, *group.writes)]
            call_kernel(self.addresses[source.symbol], arguments, source.sizes)
        return {name: view(graph, memory, name) for name in graph.outputs}


def call_kernel(address: int, arguments: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
    """Call a kernel for these sizes. Raises IndexError as the launcher does."""
    error = (ctypes.c_int64 * 3)()
    pointers = (ctypes.c_void_p * (len(arguments) + 1))(
        *[argument.data_ptr() for argument in arguments], ctypes.addressof(error)
    )
    numbers = (ctypes.c_int64 * len(sizes))(*sizes)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)(
        ctypes.addressof(pointers), ctypes.addressof(numbers)
    )
    if error[0]:
        raise IndexError(f"index {error[1]} is out of range for size {error[2]}")


def assert_close(
    actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], message: str = "", rounded: bool = False
) -> None:
    """Sums may be taken in another order: errors are relative to the largest term, not to a small result. Integers are
    equal; but if they were `rounded` from floats, few may fall on the other side of a rounding boundary."""
    for name, value in expected.items():
        got = actual[name]
        assert got.dtype is value.dtype
        finite = value[value.isfinite()] if value.is_floating_point() else value
        largest = float(finite.abs().max()) if value.is_floating_point() and finite.numel() else 0.0
        if not value.is_floating_point():
            difference = (got.to(torch.float64) - value.to(torch.float64)).abs()
            allowed = value.numel() // 500 if rounded and value.dtype is not torch.int64 else 0
            assert int((difference > 0).sum()) <= allowed and bool((difference <= 1).all()), f"{name}\n{message}"
            continue
        rtol = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 1e-2, torch.float16: 2e-3}[value.dtype]
        torch.testing.assert_close(
            got,
            value,
            equal_nan=True,
            rtol=rtol,
            atol=1e-5 * largest + 1e-6,
            msg=lambda text, name=name: f"{name}: {text}\n{message}",
        )


def use_private_cache(path: object) -> None:
    os.environ["STATOR_CACHE_DIR"] = str(path)
