"""Random programs of views and in-place writes that eager accepts, built as FX graphs and run at the same time."""

from __future__ import annotations

import operator
from typing import Any

import hypothesis.strategies as st
import torch
from torch import fx

from stator.aot import run_eagerly
from stator.graph.verifier import verify

Call = tuple[str, Any, tuple[Any, ...]]


def views_of(draw: Any, tensor: torch.Tensor) -> Call:
    """A view of a tensor, as (node kind, target, further arguments)."""
    rank = tensor.dim()
    choices: list[Call] = [
        ("call_method", "unsqueeze", (draw(st.integers(0, rank)),)),
        ("call_method", "squeeze", ()),
        ("call_method", "detach", ()),
    ]
    if tensor.is_contiguous():
        choices.append(("call_method", "view", (-1,)))
        choices.append(("call_method", "view", (torch.int32 if tensor.dtype is torch.float32 else torch.float32,)))
    if rank >= 1:
        dim = draw(st.integers(0, rank - 1))
        size = tensor.shape[dim]
        if size:
            start = draw(st.integers(0, size - 1))
            stop = draw(st.integers(start, size))
            step = draw(st.integers(1, 2))
            index = (slice(None),) * dim + (slice(start, stop, step),)
            choices.append(("call_function", operator.getitem, (index,)))
            choices.append(("call_method", "select", (dim, draw(st.integers(0, size - 1)))))
            choices.append(("call_method", "narrow", (dim, start, stop - start)))
            choices.append(("split", dim, (draw(st.integers(1, size)),)))
            choices.append(("unbind", dim, ()))
            choices.append(("call_method", "unfold", (dim, min(2, size), 1)))
    if rank >= 2:
        order = draw(st.permutations(range(rank)))
        choices.append(("call_method", "permute", tuple(order)))
        choices.append(("call_method", "transpose", (0, 1)))
        choices.append(("call_method", "diagonal", (draw(st.integers(-1, 1)), 0, 1)))
    if rank <= 2:
        choices.append(("call_method", "expand", (2, *tensor.shape)))
    if rank == 2:
        choices.append(("call_method", "t", ()))
    return draw(st.sampled_from(choices))


def writes_to(draw: Any, tensor: torch.Tensor) -> Call:
    """An in-place operator that eager accepts on this tensor."""
    number = draw(st.integers(-3, 3))
    choices: list[Call] = [("call_method", "fill_", (float(number),)), ("call_method", "zero_", ())]
    expanded = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    overlapping = torch._debug_has_internal_overlap(tensor) != 0
    if not expanded and not overlapping:
        choices += [
            ("call_method", "add_", (number,)),
            ("call_method", "mul_", (2,)),
            ("call_method", "clamp_", (-1, 1)),
            ("call_method", "neg_", ()),
            ("call_method", "copy_", (torch.arange(tensor.numel()).reshape(tensor.shape) * 1.0,)),
        ]
    return draw(st.sampled_from(choices))


def values_of(draw: Any) -> Call:
    return draw(
        st.sampled_from(
            [
                ("call_method", "add", (1,)),
                ("call_method", "clone", ()),
                ("call_method", "sin", ()),
                ("call_method", "contiguous", ()),
                ("call_method", "sum", (0, True)),
            ]
        )
    )


def combinations(draw: Any, program: Program, position: int) -> tuple[Call, int] | None:
    """An operator of this tensor and another one that broadcasts to it, in place or not."""
    target = program.values[position]
    fitting = [
        index
        for index, other in enumerate(program.values)
        if other.dim() <= target.dim()
        and all(a in (1, b) for a, b in zip(reversed(other.shape), reversed(target.shape), strict=False))
        and not other.dtype.is_complex
    ]
    if not fitting:
        return None
    other = draw(st.sampled_from(fitting))
    name = draw(st.sampled_from(["add_", "mul_", "copy_", "add", "maximum", "where"]))
    if name.endswith("_"):
        shared = program.values[other].untyped_storage()._cdata == target.untyped_storage()._cdata
        if (shared and other != position) or torch._debug_has_internal_overlap(target) != 0:
            return None  # eager refuses partial overlap, or leaves the order of reads and writes open
        if not torch.can_cast(program.values[other].dtype, target.dtype):
            return None
    return ("call_method", name, ()), other


def draw_step(draw: Any, program: Program, kind: str) -> None:
    """Add a view, a write, a combination of two values or a new value."""
    position = draw(st.integers(0, len(program.values) - 1))
    value = program.values[position]
    if kind == "combine":
        combination = combinations(draw, program, position)
        if combination is not None:
            program.combine(position, combination[1], combination[0][1])
        return
    call = {"view": views_of, "write": writes_to}.get(kind, lambda draw, _: values_of(draw))(draw, value)
    if call[1] != "sum" or value.dim():
        program.add(position, call)


def verify_and_run(graph: fx.GraphModule, inputs: Any) -> Any:
    verify(graph)
    return run_eagerly(graph, inputs)


class Program:
    """An FX graph that is built and, to know shapes and strides, run at the same time."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        self.root = torch.nn.Module()
        self.graph = fx.Graph()
        self.values = list(inputs)
        self.nodes = [self.graph.placeholder(f"x{index}") for index in range(len(inputs))]

    def add(self, position: int, call: Call) -> None:
        kind, target, arguments = call
        node, value = self.nodes[position], self.values[position]
        if kind in ("split", "unbind"):
            self.add_parts(node, getattr(value, kind)(*arguments, dim=target), kind, target, arguments)
        elif kind == "call_function":
            self.push(self.graph.call_function(target, (node, *arguments)), target(value, *arguments))
        else:
            self.push(
                self.graph.call_method(target, (node, *(self.literal(arg) for arg in arguments))),
                getattr(value, target)(*arguments),
            )

    def combine(self, position: int, other: int, name: str) -> None:
        nodes, values = (self.nodes[position], self.nodes[other]), (self.values[position], self.values[other])
        if name == "where":
            condition = self.graph.call_method("gt", (nodes[0], 0))
            self.push(self.graph.call_function(torch.where, (condition, *nodes)), torch.where(values[0].gt(0), *values))
        else:
            self.push(self.graph.call_method(name, nodes), getattr(values[0], name)(values[1]))

    def literal(self, argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return argument
        return self.graph.call_method(
            "reshape", (self.graph.call_function(torch.arange, (float(argument.numel()),)), tuple(argument.shape))
        )

    def add_parts(self, node: fx.Node, parts: Any, kind: str, dim: int, arguments: tuple[Any, ...]) -> None:
        whole = self.graph.call_method(kind, (node, *arguments), {"dim": dim})
        for index, part in enumerate(parts[:2]):
            self.push(self.graph.call_function(operator.getitem, (whole, index)), part)

    def push(self, node: fx.Node, value: torch.Tensor) -> None:
        self.nodes.append(node)
        self.values.append(value)

    def finish(self, positions: list[int]) -> fx.GraphModule:
        self.graph.output(tuple(self.nodes[position] for position in positions))
        return fx.GraphModule(self.root, self.graph)


def make_inputs(layout: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    base = torch.randn(24, generator=generator)
    other = torch.randn(3, 4, generator=generator)
    return {
        "plain": [base.view(4, 6), other],
        "strided": [base.view(4, 6).t(), other],
        "offset": [base[4:16].view(3, 4), other],
        "gaps": [base.view(4, 6)[:, ::2], other],
        "twice": [other, other],
        "overlapping": [base[:12].view(3, 4), base[6:18].view(3, 4)],
    }[layout]


def aliasing(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Which tensors share memory or are the same object, written so that two runs can be compared."""
    storages: dict[int, int] = {}
    objects: dict[int, int] = {}
    return [
        (
            storages.setdefault(tensor.untyped_storage()._cdata, position),
            objects.setdefault(id(tensor), position),
        )
        for position, tensor in enumerate(tensors)
    ]
