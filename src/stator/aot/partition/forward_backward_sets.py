"""Which nodes of a joint graph must run in the forward, which in the backward, and which in either.
budget.py decides what is worth keeping; partition.py builds the two graphs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx
from torch._ops import OpOverload

from stator.base.errors import CompileError
from stator.graph.ir.memory import memory_root
from stator.graph.ir.schema import has_effects
from stator.prims.record import TensorMeta
from stator.shapes.expr import Symbol


class JointGraph(Protocol):
    """The facts of a joint graph that partitioning reads.

    graph: placeholders are the primals, then symbolic ints, then the tangents; the output is a flat tuple of
    `value_count` forward values and then gradients. Nodes recorded while autograd ran have meta["backward"].
    """

    @property
    def graph(self) -> fx.GraphModule: ...
    @property
    def primal_count(self) -> int: ...
    @property
    def value_count(self) -> int: ...
    @property
    def differentiable(self) -> tuple[int, ...]: ...  # positions of forward values
    @property
    def unknown(self) -> tuple[Symbol, ...]: ...  # the symbols that nodes of the forward bind
    @property
    def traced(self) -> Any: ...  # of which `mutated` is read: (input index, output position)


@dataclass(frozen=True, slots=True)
class ForwardBackwardSets:
    """A joint graph, divided.

    forward: nodes that eager's forward computes, as far as used; random operators even if unused.
    backward: nodes that can only run in the backward, in order: they depend on a tangent, or draw random numbers there.
    Nodes in neither depend on the forward alone, but eager's backward computes them: they may run on either side.
    """

    nodes: tuple[fx.Node, ...]
    primals: tuple[fx.Node, ...]
    numbers: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    values: tuple[Any, ...]
    gradients: tuple[fx.Node, ...]
    forward: frozenset[fx.Node]
    backward: tuple[fx.Node, ...]

    def crossings(self) -> list[tuple[fx.Node, fx.Node | None]]:
        """Values of the forward that the backward reads, with the reading node (None: the value is a gradient)."""
        own = {*self.backward, *self.tangents}
        found: list[tuple[fx.Node, fx.Node | None]] = []
        for user in self.backward:
            found += [(used, user) for used in user.all_input_nodes if used not in own]
        return found + [(gradient, None) for gradient in self.gradients if gradient not in own]


def divide_joint(joint: JointGraph) -> ForwardBackwardSets:
    """Tell forward from backward. Raises CompileError when a forward value depends on the backward."""
    nodes = tuple(joint.graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    primals, others = placeholders[: joint.primal_count], placeholders[joint.primal_count :]
    numbers = [node for node in others if type(node.meta["val"]) is torch.SymInt]
    tangents = others[len(numbers) :]
    outputs: Any = nodes[-1].args[0]
    values, gradients = tuple(outputs[: joint.value_count]), tuple(outputs[joint.value_count :])
    running = [node for node in nodes if must_run(node)]
    pinned = _descendants((*tangents, *(node for node in running if is_backward(node))))
    needed = ancestors((*gradients, *running))
    kept = [node for node in needed if node.op == "call_function" and node not in pinned and not is_backward(node)]
    forward = ancestors((*(value for value in values if isinstance(value, fx.Node)), *kept))
    for node in forward & pinned:
        raise CompileError("aot", f"a forward value depends on {node.name}, which only the backward can compute")
    backward = tuple(node for node in nodes if node in needed and node in pinned and node.op == "call_function")
    inputs = tuple(primals), tuple(numbers), tuple(tangents)
    return ForwardBackwardSets(nodes, *inputs, values, gradients, frozenset(forward), backward)


def read_by_backward(sides: ForwardBackwardSets) -> list[fx.Node]:
    """The memory of the forward that eager's backward reads, in graph order."""
    read: set[fx.Node] = set()
    waiting = [used for used, _ in sides.crossings()]
    seen: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        root = memory_root(node)
        if (root in sides.forward and can_be_saved(root)) or root.op == "placeholder":
            read.add(root)
        else:
            waiting.extend(node.all_input_nodes)
    return [node for node in sides.nodes if node in read]


def can_be_saved(node: fx.Node) -> bool:
    """Whether the forward can hand the value to the backward: it is one tensor."""
    return node.op != "get_attr" and isinstance(node.meta["val"], TensorMeta)


def runs_once(node: fx.Node) -> bool:
    """Whether a node may not run again: it would draw other numbers, or communicate once more."""
    return has_effects(node.target, node.args, node.kwargs)


def is_backward(node: fx.Node) -> bool:
    """Whether the node was recorded while autograd ran."""
    return bool(node.meta.get("backward"))


def must_run(node: fx.Node) -> bool:
    """Whether the node has an effect although nothing uses its result, or tells sizes that depend on data."""
    if "binds" in node.meta:
        return True
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return not target._schema.returns or runs_once(node)


def ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and all nodes that they are computed from."""
    found = set(nodes)
    waiting = list(found)
    while waiting:
        for used in waiting.pop().all_input_nodes:
            if used not in found:
                found.add(used)
                waiting.append(used)
    return found


def _descendants(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and all nodes computed from them, except the graph's output."""
    found = set(nodes)
    waiting = list(found)
    while waiting:
        for user in waiting.pop().users:
            if user not in found and user.op != "output":
                found.add(user)
                waiting.append(user)
    return found
