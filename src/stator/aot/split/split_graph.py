"""Compiles a graph in pieces, around operators that cannot be traced and run in ATen between the pieces."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from stator.base import counters, logs
from stator.base.errors import MissingToolchain, StatorError, Unsupported, WrongAssumption
from stator.graph.tracing.symbolic_inputs import symbolic_placeholders

from .graph_pieces import SETTERS, CompileWhole, GraphPiece, PieceVersions, computes, name_of, state_put_back

# Layouts of its inputs that a piece is compiled for; for others it runs operator by operator.
_MOST_LAYOUTS = 8


def compile_in_pieces(gm: fx.GraphModule, example_inputs: Sequence[Any], compile_whole: CompileWhole) -> Any:
    """Compile a graph as a whole where possible, else in pieces; a callable with equal arguments and results.

    Pieces behind the first one compile when they first run. Raises StatorError for a graph that cannot be compiled as a
    whole, if no operator can be named as the cause.
    """
    nodes = list(gm.graph.nodes)
    try:
        return compile_whole(gm, example_inputs)
    except (MissingToolchain, WrongAssumption):
        raise
    except StatorError as error:
        # the graph may compile with fixed sizes, and in parts between sizes that depend on data
        if symbolic_placeholders(gm) or any(node.meta.get("data_dependent") for node in nodes):
            raise Unsupported("dynamic-shape", str(error)) from error
        culprit = _culprit(error, nodes)
        if culprit is None or _switches_by_context(gm) or _looks_at_history(nodes):
            raise
        name = name_of(culprit)
        message = f"{name} runs in ATen between compiled parts of its graph. {str(error).splitlines()[0]}"
        logs.warn_once(f"aot:split:{name}", f"stator: {message}")
        return _SplitGraph(gm, _alike(culprit, nodes), example_inputs, compile_whole).run


def _culprit(error: StatorError, nodes: Sequence[fx.Node]) -> fx.Node | None:
    """The operator that could not be traced; the error may name its copy in another graph."""
    origin: Any = error.origin
    if not isinstance(origin, fx.Node) or not computes(origin):
        return None
    for node in nodes:
        if node.name == origin.name and node.op == origin.op and node.target == origin.target:
            return node
    return None


def _alike(culprit: fx.Node, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """All calls of a custom operator, so that the graph of many layers is not traced once for each; else the node."""
    custom = isinstance(culprit.target, (OpOverload, OpOverloadPacket))
    return [node for node in nodes if node.target is culprit.target] if custom else [culprit]


def _looks_at_history(nodes: Sequence[fx.Node]) -> bool:
    """Whether a node makes a tensor a leaf: the tensor's history may span several pieces."""
    return any(
        (node.op == "call_method" and node.target in _OF_HISTORY) or node.kwargs.get("requires_grad") is True
        for node in nodes
    )


_OF_HISTORY = frozenset(("requires_grad_", "detach_"))


def _switches_by_context(gm: fx.GraphModule) -> bool:
    """Whether the graph switches modes by entering and leaving contexts, which a piece cannot repeat."""
    entering = ("_enter_", "_exit_", "enter_", "exit_")
    return any(
        node.op == "call_function"
        and node.target not in SETTERS
        and str(getattr(node.target, "__name__", "")).startswith(entering)
        for node in gm.graph.nodes
    )


class _SplitGraph:
    """`steps`: each a piece, the function that runs it, and the nodes whose values are dead behind it."""

    def __init__(
        self,
        gm: fx.GraphModule,
        apart: Collection[fx.Node],
        example_inputs: Sequence[Any],
        compile_whole: CompileWhole,
    ) -> None:
        nodes = list(gm.graph.nodes)
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        self.steps: list[tuple[GraphPiece, Callable[..., Any], list[fx.Node]]] = []
        compile_part = partial(compile_in_pieces, compile_whole=compile_whole)
        setters: list[fx.Node] = []
        parts: list[tuple[GraphPiece, Callable[..., Any]]] = []
        for kind, members in _runs(nodes, apart):
            part = GraphPiece.of(gm, members, setters)
            setters += [node for node in members if node.target in SETTERS]
            if kind == "alone":
                counters.count(f"aot_fallback:{name_of(members[0])}")
                logs.log("graph_breaks", "%s runs in ATen between compiled parts of its graph", name_of(members[0]))
                parts.append((part, part.run))
                continue
            versions = PieceVersions(part, compile_part, _MOST_LAYOUTS)
            if not parts:  # compile the first piece now, so that an error of the toolchain is raised now
                versions.version_for(part.load(dict(zip(self.placeholders, example_inputs, strict=True))))
            parts.append((part, versions))
        needed: set[fx.Node] = set()
        for part, run in reversed(parts):
            done = [node for node in dict.fromkeys((*part.inputs, *(part.outputs or ()))) if node not in needed]
            needed.update(part.inputs)
            self.steps.append((part, run, done))
        self.steps.reverse()
        counters.count("aot_split", len(parts))

    def run(self, *args: Any) -> Any:
        values: dict[fx.Node, Any] = dict(zip(self.placeholders, args, strict=True))
        with state_put_back():
            for part, run, done in self.steps:
                arguments = part.load(values)
                for node in done:
                    values.pop(node, None)
                results = run(*arguments)
                if part.outputs is None:
                    return results
                del arguments
                part.store(results, values)
                for node in done:
                    values.pop(node, None)
        raise AssertionError("a graph without an output")


def _runs(nodes: Sequence[fx.Node], apart: Collection[fx.Node]) -> list[tuple[str, list[fx.Node]]]:
    """Runs of nodes in order: an operator "alone" with the nodes that pick its results, else nodes to compile."""
    runs: list[tuple[str, list[fx.Node]]] = []
    taken: set[fx.Node] = set()
    divided = False
    for node in nodes:
        if node.op in ("placeholder", "get_attr") or node in taken:
            continue
        divided = divided or node in apart
        # only autograd's engine goes back through earlier pieces
        if node in apart or (divided and node.target is torch.autograd.grad):
            members = [node, *[user for user in node.users if picks_a_part(user)]]
            taken.update(members)
            runs.append(("alone", members))
            continue
        if not runs or runs[-1][0] == "alone":
            runs.append(("compiled", []))
        runs[-1][1].append(node)
    return runs


def picks_a_part(node: fx.Node) -> bool:
    """Whether the node takes one of several results of an operator, which needs no compilation."""
    if node.op != "call_function" or len(node.args) != 2:
        return False
    if node.target is operator.getitem:
        return type(node.args[1]) is int
    return node.target is getattr and callable(getattr(torch.Tensor, str(node.args[1]), len))
