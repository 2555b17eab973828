"""Graphs captured with operators in them whose results' sizes depend on data (`meta["data_dependent"]`):
those run in ATen, what stands between them is compiled segment by segment.

Operators on tensors of such sizes are segments of their own, compiled for the sizes that come, so that what computes
on other tensors is compiled once. How graphs are traced and compiled is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from stator.base import counters, logs
from stator.graph.fake.fake_tensor import FakeTensor

from .split_untraceable import (
    MOST_VERSIONS,
    SETTERS,
    CompileWhole,
    GraphPiece,
    Versions,
    in_pieces,
    looks_at_history,
    name_of,
    picks_a_part,
    state_put_back,
    switches_by_context,
)

# Fewer operators than these between operators on tensors of unknown sizes are compiled with those.
_FEWEST = 4
# Different sizes that a segment is compiled for; for others it runs operator by operator.
_MOST_SIZES = 4
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def in_segments(gm: fx.GraphModule, example_inputs: Sequence[Any], compile_whole: CompileWhole) -> Any:
    """Compile a graph; a callable with the same arguments and results. Segments are compiled when they first run.

    Raises StatorError for a graph that cannot be compiled as a whole and has no operator that is to blame.
    """
    nodes = list(gm.graph.nodes)
    first = next((at for at, node in enumerate(nodes) if node.meta.get("data_dependent")), None)
    if first is None or switches_by_context(gm):
        return in_pieces(gm, example_inputs, compile_whole)
    if looks_at_history(nodes, first):
        counters.count("aot_segments:eager")
        told = "a graph with sizes that depend on data and with hooks, or leaves made in it, runs operator by operator"
        logs.log("graph_breaks", "%s", told)
        return gm.forward
    return _Segmented(gm, compile_whole).run


class _Segmented:
    """`steps`: each a part, with what runs it, and the nodes whose values nothing needs behind it."""

    def __init__(self, gm: fx.GraphModule, compile_whole: CompileWhole) -> None:
        nodes = list(gm.graph.nodes)
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        self.steps: list[tuple[GraphPiece, Any, list[fx.Node]]] = []
        setters: list[fx.Node] = []
        parts: list[tuple[GraphPiece, Any]] = []
        for kind, members in _segments(nodes):
            part = GraphPiece.of(gm, members, setters)
            setters += [node for node in members if node.target in SETTERS]
            if kind == "alone":
                counters.count(f"aot_fallback:{name_of(members[0])}")
                logs.log("graph_breaks", "%s runs in ATen between compiled segments of its graph", name_of(members[0]))
                parts.append((part, part.run))
            else:
                most = _MOST_SIZES if kind == "unknown" else MOST_VERSIONS
                parts.append((part, Versions(part, compile_whole, most)))
        needed: set[fx.Node] = set()
        for part, run in reversed(parts):
            done = [node for node in dict.fromkeys((*part.inputs, *(part.outputs or ()))) if node not in needed]
            needed.update(part.inputs)
            self.steps.append((part, run, done))
        self.steps.reverse()
        counters.count("aot_segments", len(parts))

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


def _segments(nodes: Sequence[fx.Node]) -> Iterator[tuple[str, list[fx.Node]]]:
    """What runs together, in order: an operator "alone" with what picks parts of its result, else what is compiled."""
    runs: list[tuple[str, list[fx.Node]]] = []
    taken: set[fx.Node] = set()
    divided = False
    for node in nodes:
        if node.op in ("placeholder", "get_attr") or node in taken:
            continue
        divided = divided or bool(node.meta.get("data_dependent"))
        # autograd's engine goes back through the segments before, which only it can
        if node.meta.get("data_dependent") or (divided and node.target is torch.autograd.grad):
            members = [node, *[user for user in node.users if picks_a_part(user)]]
            taken.update(members)
            runs.append(("alone", members))
            continue
        kind = "unknown" if _is_of_unknown_size(node) else "fixed"
        if not runs or runs[-1][0] != kind:
            runs.append((kind, []))
        runs[-1][1].append(node)
    yield from _merged(runs)


def _merged(runs: list[tuple[str, list[fx.Node]]]) -> list[tuple[str, list[fx.Node]]]:
    """Short runs go to the one before where that is compiled; the output is a run of its own, if it must be."""
    merged: list[tuple[str, list[fx.Node]]] = []
    for at, (kind, members) in enumerate(runs):
        computing = sum(node.op.startswith("call_") and node.target not in SETTERS for node in members)
        last = at == len(runs) - 1
        if merged and kind != "alone" and merged[-1][0] != "alone":
            short = kind == "fixed" and computing < _FEWEST and not (last and computing)
            if short or kind == merged[-1][0]:
                merged[-1][1].extend(members)
                continue
        merged.append((kind, list(members)))
    return merged


def _is_of_unknown_size(node: fx.Node) -> bool:
    """Whether it makes, or takes, a tensor of a size or a number that only the run can tell."""
    return node.op != "output" and (_is_unknown(node) or any(map(_is_unknown, node.all_input_nodes)))


def _is_unknown(node: fx.Node) -> bool:
    return _holds_unknown(node.meta.get("example_value")) or bool(node.meta.get("unknown_number"))


def _holds_unknown(example: Any) -> bool:
    if isinstance(example, FakeTensor):
        return any(type(size) is not int for size in example.meta.shape)
    if isinstance(example, (tuple, list)):
        return any(map(_holds_unknown, example))
    return isinstance(example, _NUMBERS)
