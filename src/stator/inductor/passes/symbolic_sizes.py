"""Makes a copy of a functional graph in which sizes are expressions. Asking a torch.SymInt a question records facts;
expressions answer none by themselves."""

from __future__ import annotations

from collections.abc import Set

from torch import fx

from stator.base.errors import Unsupported
from stator.graph.ir.aten_graph import AtenGraph, LazyGraphModule
from stator.graph.ir.size_bindings import environment_of, size_bindings, symbolic_numbers
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge
from stator.prims.operators.checks import require_sizes
from stator.shapes.conditions import Comparison, Conjunction, Disjunction, is_python
from stator.shapes.expr import Expr, Symbol
from stator.shapes.floats import FloatExpr


def with_expressions(gm: fx.GraphModule) -> tuple[fx.GraphModule, SizeKnowledge]:
    """The graph with expressions in place of symbolic sizes in arguments and metas, and what is known about the sizes.
    A graph without symbols is returned as it is.

    A node whose results bind symbols has meta["promised"], what its results' layouts are in terms of these.

    Raises Unsupported for symbols that neither the graph's inputs nor results bind, and for symbolic truths in
    arguments, other than checks of comparisons of integers.
    """
    environment = environment_of(gm.graph)
    if environment is None:
        return gm, NUMBERS_ONLY
    bindings = size_bindings(gm.graph)
    for symbol, binding in [*bindings.items()]:  # what facts put in its place may be the size of another graph's input
        if isinstance(equal := environment.simplify(symbol), Symbol):
            bindings.setdefault(equal, binding)
    knowledge = SizeKnowledge(environment)
    made = described_graph(gm, knowledge)
    bound = set(bindings)
    for node, copy in zip(gm.graph.nodes, made.graph.nodes, strict=True):
        if "binds" in node.meta:
            bound.update(node.meta["binds"])
            copy.meta["promised"] = knowledge.promised(node.meta["val"], node.meta["binds"])
        _check(copy, bound)
    made.meta.update(gm.meta)
    made.meta["size_bindings"] = bindings
    return made, knowledge


def described_graph(gm: fx.GraphModule, sizes: SizeKnowledge) -> fx.GraphModule:
    """A copy of a graph with expressions in place of symbolic numbers; the graph itself if all sizes are numbers."""
    if sizes.environment is None:
        return gm
    graph = AtenGraph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        copied = copies[node] = graph.node_copy(node, copies.__getitem__)
        copied.args = fx.node.map_aggregate(copied.args, sizes.expression)  # type: ignore[assignment, arg-type]
        copied.kwargs = fx.node.map_aggregate(copied.kwargs, sizes.expression)  # type: ignore[assignment, arg-type]
        copied.meta["val"] = sizes.described(node.meta.get("val"))
    return LazyGraphModule(gm, graph, "AtenGraph")


def _check(node: fx.Node, bound: Set[Symbol]) -> None:
    for value in symbolic_numbers((node.args, node.kwargs, node.meta["val"])):
        if isinstance(value, (Expr, FloatExpr)) and not value.symbols <= bound:
            unbound = ", ".join(sorted(map(str, value.symbols - bound)))
            raise Unsupported("dynamic-shape", f"{node.target} needs the size {unbound}, which no input tells")
        if isinstance(value, (Comparison, Conjunction, Disjunction)):
            if node.target is require_sizes and is_python(value):
                continue
            raise Unsupported("dynamic-shape", f"{node.target} has an argument that compares sizes: {value}")
