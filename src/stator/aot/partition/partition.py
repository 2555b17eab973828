"""Splits one joint graph into a forward and a backward graph, given the values kept between them.
budget.py decides which values are worth keeping.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.base import counters
from stator.base.errors import CompileError
from stator.graph.ir.aten_graph import AtenGraph, LazyGraphModule, copy_with_strides
from stator.graph.ir.memory import memory_root
from stator.graph.ir.size_bindings import (
    environment_of,
    result_bindings,
    size_bindings,
    symbols_of_graph,
)
from stator.prims.layout import is_dense, numel, surely
from stator.prims.record import TensorMeta
from stator.shapes.environment import Environment
from stator.shapes.sym_node import to_sym_int

from .budget import choose_saved
from .forward_backward_sets import ForwardBackwardSets, JointGraph, ancestors, divide_joint, runs_once
from .liveness import demand_order

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class SavedInput:
    """The tensor given to the forward as input `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class SavedOutput:
    """Output `position` of the forward graph; one of its values if below the number of values."""

    position: int


Saved = SavedInput | SavedOutput


@dataclass(frozen=True, slots=True)
class Partition:
    """forward: from the joint graph's primals to its values, then the saved values that are no values, then the ints of
    `JointGraph.unknown`.

    backward: placeholders are the saved values in the order of `saved`, then the tangents; outputs are the gradients.
    Both graphs have their name as meta["part"]. Of the backward, meta["again"] names the forward operators that it runs
    again, and meta["held"] lists the placeholders that others keep alive anyway: inputs of the forward, and tangents.
    The placeholder of a saved value is called `saved_` and the value's name in the joint graph. Symbolic ints are the
    last placeholders of both graphs: in the backward those symbols that its other placeholders do not bind.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: tuple[Saved, ...]


def saved_names(parts: Partition) -> list[str]:
    """The placeholders of the backward that are saved values."""
    nodes = parts.backward.graph.nodes
    return [str(node.target) for node, _ in zip(nodes, parts.saved, strict=False)]


def partition(joint: JointGraph, memory_budget: float = 1.0) -> Partition:
    """Split a joint graph into a forward and a backward graph.

    memory_budget: from 1 (the default: keep what makes both together fastest) to 0 (the lowest peak that computing
    values again can give), linear in bytes of the estimated peak. Raises ValueError outside of that range.
    """
    sides = divide_joint(joint)
    choice = choose_saved(joint, sides, memory_budget)
    counters.largest("memory:saved", choice.saved_bytes)
    return split_joint(joint, sides, choice.saved)


def split_joint(joint: JointGraph, sides: ForwardBackwardSets, saved: Iterable[fx.Node]) -> Partition:
    """Build both graphs. The backward computes again whatever it needs of the forward that is not in `saved`.

    saved: primals, and forward values that own their memory (`memory_root` of themselves). Raises CompileError when
    the backward would have to draw random numbers again.
    """
    handed = _Handover(joint, sides)
    backward = _Backward(joint, sides, handed)
    wanted = set(saved)
    for node in sides.nodes:
        if node in wanted:
            backward.receive(node)
    backward.build()
    forward = _forward(joint, sides, handed)
    return Partition(forward, backward.module(), tuple(handed.saved))


class _Handover:
    """Decides how each saved value reaches the backward, so that no write to it goes unnoticed.

    A value that the caller can see is handed over as that very tensor: autograd then notices writes, as in eager. Where
    that is impossible, a copy is handed over.
    """

    def __init__(self, joint: JointGraph, sides: ForwardBackwardSets) -> None:
        self.primals = {node: index for index, node in enumerate(sides.primals)}
        self.values = sides.values
        self.extra: list[tuple[fx.Node, bool]] = []  # outputs behind the values: (node, whether to copy it)
        self.saved: list[Saved] = []
        self.mutated = frozenset(index for index, _ in joint.traced.mutated)
        written = {position for _, position in joint.traced.mutated}
        self.shown: dict[fx.Node, list[int]] = {}  # memory -> positions of the values that lie there
        self.overwritten: set[fx.Node] = set()  # memory that becomes the new contents of an input
        for position, value in enumerate(sides.values):
            if isinstance(value, fx.Node):
                root = memory_root(value)
                self.shown.setdefault(root, []).append(position)
                if position in written:
                    self.overwritten.add(root)

    def hand_over(self, node: fx.Node) -> fx.Node:
        """Save `node`; returns the node that is handed over: `node` itself, or a view of all its memory."""
        index = self.primals.get(node)
        if index is not None and index not in self.mutated:
            self.saved.append(SavedInput(index))
            return node
        positions = self.shown.get(node, [])
        if index is None and not positions:
            self._append(node, copy=False)
            return node
        if index is None and len(set(map(self.values.__getitem__, positions))) == 1 and node not in self.overwritten:
            shown = self.values[positions[0]]
            if shown is node or _shows_everything(shown, node):
                self.saved.append(SavedOutput(positions[0]))
                return shown
        self._append(node, copy=True)
        return node

    def layout_of(self, shown: fx.Node) -> TensorMeta:
        """The layout in which the backward receives a handed-over value."""
        given = self.primals.get(shown)
        meta = shown.meta["val"]
        return meta if given is not None and given not in self.mutated else _as_fresh(meta)

    def _append(self, node: fx.Node, copy: bool) -> None:
        self.saved.append(SavedOutput(len(self.values) + len(self.extra)))
        self.extra.append((node, copy))


class _Backward:
    """The backward graph under construction: saved values, then tangents, then nodes on demand, in order."""

    def __init__(self, joint: JointGraph, sides: ForwardBackwardSets, handed: _Handover) -> None:
        self.joint, self.sides, self.handed = joint, sides, handed
        self.graph: fx.Graph = AtenGraph()
        self.made: dict[fx.Node, fx.Node] = {}
        self.recovered: list[tuple[fx.Node, fx.Node]] = []  # (saved node, placeholder of the view of its memory)

    def receive(self, node: fx.Node) -> None:
        shown = self.handed.hand_over(node)
        placeholder = self.graph.placeholder(f"saved_{node.name}")
        placeholder.meta["val"] = self.handed.layout_of(shown)
        self.made[shown] = placeholder
        if shown is not node:
            self.recovered.append((node, placeholder))

    def build(self) -> None:
        order = self._needed()
        for node in order:
            if node.op == "placeholder" and node not in self.made:
                self.receive(node)
        for tangent in self.sides.tangents:
            self.made[tangent] = self._copy(tangent)
        for node, placeholder in self.recovered:
            self.made[node] = _recover(self.graph, node, placeholder)
        for node in order:
            if node not in self.made:
                self.made[node] = self._copy(node)
        _finish(self.graph, [self.made[gradient] for gradient in self.sides.gradients])
        bind_free_symbols(self.graph, environment_of(self.joint.graph.graph))

    def _needed(self) -> list[fx.Node]:
        """The nodes that the gradients need and that are not handed over, each as late as possible."""
        order = demand_order(self.sides, {*self.made, *(node for node, _ in self.recovered), *self.sides.tangents})
        for node in order:
            if node in self.sides.forward and runs_once(node):
                text = f"{node.name} draws random numbers; it cannot be computed again for the backward"
                raise CompileError("aot", text)
        return order

    def _is_again(self, node: fx.Node) -> bool:
        made = self.made[node]
        return made.op == "call_function" and made.target is node.target and node.target is not operator.getitem

    def _copy(self, node: fx.Node) -> fx.Node:
        copied = self.graph.node_copy(node, self.made.__getitem__)
        if node.op == "placeholder":
            copied.meta["val"] = node.meta["val"]
        if node in self.sides.forward:
            copied.meta.pop("binds", None)  # the forward hands the sizes over
        return copied

    def module(self) -> fx.GraphModule:
        module = _module(self.joint, self.graph, "backward")
        inputs = [position for position, saved in enumerate(self.handed.saved) if isinstance(saved, SavedInput)]
        count = len(self.handed.saved)
        module.meta["again"] = tuple(
            str(node.target)
            for node in self.made
            if node.op == "call_function"
            and node in self.sides.forward
            and memory_root(node) is node
            and self._is_again(node)
        )
        module.meta["held"] = (*inputs, *range(count, count + len(self.sides.tangents)))
        return module


def _forward(joint: JointGraph, sides: ForwardBackwardSets, handed: _Handover) -> fx.GraphModule:
    graph = AtenGraph()
    made: dict[fx.Node, fx.Node] = {}
    needed = ancestors((*(node for node, _ in handed.extra), *sides.forward))
    needed.update(sides.primals, sides.numbers)
    for node in sides.nodes:
        if node in needed:
            made[node] = graph.node_copy(node, made.__getitem__)
    outputs = [fx.map_arg(value, made.__getitem__) for value in sides.values]
    for node, copy in handed.extra:
        outputs.append(_copied(graph, made[node]) if copy else made[node])
    environment = environment_of(graph)
    outputs += [to_sym_int(environment, symbol) for symbol in joint.unknown]  # type: ignore[arg-type]
    _finish(graph, outputs)
    module = _module(joint, graph, "forward")
    first = len(sides.values)
    module.meta["free_layouts"] = frozenset(first + at for at, (_, copy) in enumerate(handed.extra) if not copy)
    return module


def bind_free_symbols(graph: fx.Graph, environment: Environment | None) -> None:
    """Add an int placeholder, behind the others, for each symbol that no placeholder binds. environment: what is known
    about the symbols; None if there are none."""
    if environment is None:
        return
    found = symbols_of_graph(graph)
    needed = found.union(*[environment.simplify(symbol).symbols for symbol in found])  # facts have replaced some
    free = needed - size_bindings(graph).keys() - result_bindings(graph).keys()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for symbol in sorted(free, key=str):
        with graph.inserting_after(last):
            last = graph.placeholder(str(symbol))
        last.meta["val"] = to_sym_int(environment, symbol)


def _finish(graph: fx.Graph, outputs: list[Any]) -> None:
    output = graph.output(tuple(outputs))
    output.meta["val"] = tuple(value.meta["val"] if isinstance(value, fx.Node) else value for value in outputs)


def _module(joint: JointGraph, graph: fx.Graph, name: str) -> fx.GraphModule:
    module = LazyGraphModule(joint.graph, graph, name)  # generates its Python code on demand
    module.meta["part"] = name
    return module


def _copied(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A copy with the strides of the original, on which views of it may depend."""
    meta = node.meta["val"]
    if is_dense(meta.shape, meta.stride):
        copied = graph.call_function(aten.clone.default, (node,))
        copied.meta["val"] = _as_fresh(meta)
        return copied
    return copy_with_strides(graph, node, meta)


def _as_fresh(meta: TensorMeta) -> TensorMeta:
    return TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device)


def _recover(graph: fx.Graph, node: fx.Node, shown: fx.Node) -> fx.Node:
    """A saved value, from a view of all its memory."""
    meta = node.meta["val"]
    recovered = graph.call_function(aten.as_strided.default, (shown, list(meta.shape), list(meta.stride)))
    recovered.meta["val"] = TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device, 0, 0)
    return recovered


def _shows_everything(view: fx.Node, root: fx.Node) -> bool:
    """Whether every element of `root` can be reached through `view`, which starts at the same element."""
    one, other = view.meta["val"], root.meta["val"]
    if one.dtype is not other.dtype or not surely(numel(one.shape) == numel(other.shape)):
        return False
    return is_dense(one.shape, one.stride) and is_dense(other.shape, other.stride)
