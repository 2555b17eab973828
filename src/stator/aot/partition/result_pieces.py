"""Divides a small graph at its results, so that each piece is a step with a single autograd node.

A step gives a result that was computed from another result an autograd node of its own, and each group of inputs, too
(`trace/output_autograd_nodes.py`, `trace/input_groups.py`). On little data such a node costs more than a step. In
pieces, the nodes of the steps have the edges that eager's nodes have.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.base import counters
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.ir.aten_graph import PlainGraphModule

from .call_costs import PieceCounts

CompilePiece = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

# More values between pieces take longer to find than their calls can gain
_MOST_VALUES = 32


@dataclass(frozen=True, slots=True)
class GraphPiece:
    """Some nodes of a graph as a graph of its own.

    inputs: nodes of the whole graph whose values the piece takes, in order. outputs: nodes whose values it returns as a
    tuple.
    """

    module: fx.GraphModule
    inputs: Sequence[fx.Node]
    outputs: Sequence[fx.Node]

    @staticmethod
    def of(gm: fx.GraphModule, nodes: Sequence[fx.Node], setters: Sequence[fx.Node]) -> GraphPiece:
        """setters: nodes that run first and bring torch into the state that the piece has within the whole graph."""
        own = set(nodes)
        graph = fx.Graph()
        used = dict.fromkeys([one for node in nodes for one in node.all_input_nodes])
        inputs = [one for one in used if one not in own]
        copies: dict[fx.Node, fx.Node] = {}
        for one in inputs:
            copies[one] = graph.placeholder(one.name)
            copies[one].meta.update(one.meta)
        for setter in setters:
            graph.node_copy(setter)
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        outputs = [node for node in nodes if any(user not in own for user in node.users)]
        graph.output(tuple([copies[node] for node in outputs]))
        module = PlainGraphModule(gm, graph)
        module.meta.update(gm.meta)
        return GraphPiece(module, inputs, outputs)


@dataclass(frozen=True, slots=True)
class ResultPieces:
    """A graph and its pieces, in an order in which they can run."""

    graph: fx.Graph
    pieces: Sequence[GraphPiece]

    @staticmethod
    def of(gm: fx.GraphModule) -> ResultPieces | None:
        """None where the graph cannot be divided, or does more than compute tensors from its inputs."""
        graph = _without_unused(gm.graph)
        setters = _grad_modes(graph)
        calls = list(setters)
        if not all(map(_only_computes, calls)) or graph.find_nodes(op="get_attr"):
            return None
        blocks = _by_values_led_to(calls)
        if blocks is None:
            return None
        joined = _joined_by_inputs(blocks, setters)
        pieces = _in_order([GraphPiece.of(gm, nodes, setters[nodes[0]]) for nodes in joined], calls)
        crossing = [node for piece in pieces for node in piece.inputs]
        if len(pieces) < 2 or not all(isinstance(_value(node), torch.Tensor) for node in crossing):
            return None
        return ResultPieces(graph, pieces)

    def counts(self) -> list[PieceCounts]:
        return list(map(_counted, self.pieces))

    def compile(self, example_inputs: Sequence[torch.Tensor], compile_piece: CompilePiece) -> Callable[..., Any]:
        """A function of the graph's inputs that runs the compiled pieces and returns the graph's results."""
        placeholders = self.graph.find_nodes(op="placeholder")
        examples = dict(zip(placeholders, example_inputs, strict=True))
        names = {node: f"value_{at}" for at, node in enumerate(self.graph.nodes)}

        def listed(nodes: Iterable[fx.Node]) -> str:
            return "".join([f"{names[node]}, " for node in nodes])

        counters.count("aot_divided", len(self.pieces))
        scope: dict[str, Any] = {}
        lines = []
        for at, piece in enumerate(self.pieces):
            with torch.set_grad_enabled(torch.is_grad_enabled()):  # compiling a piece may switch the mode
                given = [examples.get(node, _value(node)) for node in piece.inputs]
                scope[f"piece_{at}"] = compile_piece(piece.module, given)
            lines.append(f"    {listed(piece.outputs)} = piece_{at}({listed(piece.inputs)})")
        results: Any = self.graph.find_nodes(op="output")[0].args[0]
        exec("\n".join([f"def run({listed(placeholders)}):", *lines, f"    return ({listed(results)})"]), scope)
        return scope["run"]  # type: ignore[no-any-return]


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _requires_grad(node: fx.Node) -> bool:
    return isinstance(value := _value(node), torch.Tensor) and value.requires_grad


def _counted(piece: GraphPiece) -> PieceCounts:
    taken = [_value(node) for node in piece.inputs if node.op != "placeholder"]
    return PieceCounts(
        len(piece.inputs),
        len(piece.outputs),
        sum(map(_requires_grad, piece.inputs)),
        sum([value.numel() * value.element_size() for value in taken]),
    )


def _without_unused(graph: fx.Graph) -> fx.Graph:
    """The graph without calls that compute what nothing reads."""
    used: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in used or not (node.op.startswith("call_") and isinstance(_value(node), torch.Tensor)):
            used.update((node, *node.all_input_nodes))
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in used:
            copies[node] = made.node_copy(node, copies.__getitem__)
    return made


def _grad_modes(graph: fx.Graph) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """The calls that compute, and for each the call before it that switched the grad mode, if any."""
    setter: tuple[fx.Node, ...] = ()
    found: dict[fx.Node, tuple[fx.Node, ...]] = {}
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            setter = () if node.args == (True,) else (node,)  # it was on before
        elif node.op.startswith("call_"):
            found[node] = setter
    return found


def _only_computes(node: fx.Node) -> bool:
    """Whether a call computes a tensor, or several, and neither writes to memory nor changes torch's state."""
    value = _value(node)
    tensors = value if isinstance(value, (tuple, list)) else [value]
    return bool(tensors) and all(type(one) is FakeTensor and not one.fake_storage.version for one in tensors)


def _is_item(node: fx.Node) -> bool:
    """Whether the node takes one of several tensors that an operator returned."""
    return node.target is operator.getitem and not isinstance(_value(node.args[0]), torch.Tensor)  # type: ignore[arg-type]


def _by_values_led_to(calls: Sequence[fx.Node]) -> list[list[fx.Node]] | None:
    """Nodes that lead to the same values. These are results of the graph, and values that several such sets of nodes
    use. So each set computes one of them, or several results of one operator. None for a node that leads to no result,
    or too many sets."""
    own = set(calls)
    values = [node for node in calls if any(user not in own for user in node.users)]
    while len(values) <= _MOST_VALUES:
        led_to = {value: 1 << at for at, value in enumerate(values)}
        for node in reversed(calls):
            for user in node.users:
                led_to[node] = led_to.get(node, 0) | led_to.get(user, 0)
            if not led_to.get(node):
                return None
        for node in calls:
            if _is_item(node):
                led_to[node] = led_to[node.args[0]]  # type: ignore[index]
        known = set(values)
        found = [node for node in calls if node in known or any(led_to[user] != led_to[node] for user in node.users)]
        if len(found) == len(values):
            blocks: defaultdict[int, list[fx.Node]] = defaultdict(list)
            for node in calls:
                blocks[led_to[node]].append(node)
            return list(blocks.values())
        values = found
    return None


def _joined_by_inputs(
    blocks: Iterable[list[fx.Node]], setters: Mapping[fx.Node, tuple[fx.Node, ...]]
) -> list[list[fx.Node]]:
    """The nodes of blocks that are differentiated by the same tensors, together: one autograd node serves them. Nodes
    in different grad modes stay apart."""
    joined: defaultdict[Any, list[fx.Node]] = defaultdict(list)
    for nodes in blocks:
        own = set(nodes)
        used = [one for node in nodes for one in node.all_input_nodes if one not in own]
        by = frozenset([one for one in used if _requires_grad(one)])
        for node in nodes:
            joined[by, bool(setters[node])].append(node)
    order = {node: at for at, node in enumerate(setters)}
    return [sorted(nodes, key=order.__getitem__) for nodes in joined.values()]


def _in_order(pieces: Sequence[GraphPiece], calls: Sequence[fx.Node]) -> list[GraphPiece]:
    """The pieces, each behind those that it takes values of; none where there is no such order. Autograd calls hooks of
    independent results in the order of their nodes, so results are computed in the program's order as far as possible.
    """
    order = {node: at for at, node in enumerate(calls)}
    waiting = sorted(pieces, key=lambda piece: max([order[node] for node in piece.outputs]))
    known: set[fx.Node] = {node for piece in pieces for node in piece.inputs if node.op == "placeholder"}
    ordered: list[GraphPiece] = []
    while ready := next((piece for piece in waiting if known.issuperset(piece.inputs)), None):
        waiting.remove(ready)
        ordered.append(ready)
        known.update(ready.outputs or ())
    return [] if waiting else ordered
