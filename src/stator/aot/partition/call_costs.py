"""Decides whether a training graph on little data is too small to gain: estimates the microseconds that its calls cost,
operator by operator and as a compiled step. What computing costs is in costs.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.graph.ir.memory import memory_root
from stator.graph.ir.schema import op_info
from stator.graph.ir.size_bindings import has_symbols
from stator.prims.operators.recurrent_layer import recurrent_layer
from stator.prims.record import TensorMeta

from .costs import MOVES, bytes_of, is_library_call
from .forward_backward_sets import JointGraph, ancestors, is_backward
from .partition import Partition

# Above so many bytes of a tensor, fusion gains more than calls cost
LITTLE_DATA = 1 << 15

# Above so many bytes of a tensor, loops such as those of reductions gain alone
MUCH_DATA = 1 << 18
_GAINING = frozenset(("reduction", "index"))  # tags of operators

# Microseconds of one call or object of each kind. `python -m benchmarks.call_costs` measures small programs on tensors
# of few elements, fits these numbers by least squares of relative errors, and prints this table. Only ratios matter.
#
# By operators, "number" is an operator of tensors and a Python number, of which ATen makes a tensor; "library" is a
# product, a factorization or whatever else is no loop; "other" any other. "inner": an operator behind the first that a
# call of the program made. "node": an autograd node.
OPERATORS_FORWARD: Mapping[str, float] = {"inner": 0.2, "library": 2.8, "number": 3.5, "other": 1.9, "view": 1.6}
OPERATORS_BACKWARD: Mapping[str, float] = {"library": 2.7, "node": 3.3, "number": 2.8, "other": 0.5, "view": 0.3}
# Of a compiled step, "step" is its autograd function itself, "link" the autograd node of a result, "group" that of a
# group of inputs.
STEP_FORWARD: Mapping[str, float] = {
    "step": 2.0,
    "input": 0.8,
    "result": 1.1,
    "saved": 0.5,
    "library": 2.8,
    "link": 4.6,
    "group": 7.1,
}
STEP_BACKWARD: Mapping[str, float] = {
    "step": 6.2,
    "tangent": 0.4,
    "gradient": 3.0,
    "library": 4.0,
    "link": 16.0,
    "group": 28.0,
}


@dataclass(frozen=True, slots=True)
class Calls:
    """What runs in a forward and its backward, by kind: operator by operator, and as a compiled step."""

    operators_forward: Counter[str]
    operators_backward: Counter[str]
    step_forward: Counter[str]
    step_backward: Counter[str]

    def by_operators(self) -> tuple[float, float]:
        """Microseconds of the forward and of the backward, operator by operator."""
        return _cost(self.operators_forward, OPERATORS_FORWARD), _cost(self.operators_backward, OPERATORS_BACKWARD)

    def as_step(self) -> tuple[float, float]:
        """Microseconds of the forward and of the backward of a compiled step."""
        return _cost(self.step_forward, STEP_FORWARD), _cost(self.step_backward, STEP_BACKWARD)


def too_small(joint: JointGraph, calls: Calls) -> str | None:
    """Why the forward and the backward are too small for a compiled step to gain anything; None if they are not."""
    nodes = [node for node in joint.graph.graph.nodes if node.op == "call_function"]
    if any(map(_gains_alone, nodes)) and any(is_backward(node) and not _is_view(node) for node in nodes):
        return None
    forward = sum(not is_backward(node) for node in nodes)
    if forward <= 1 and sum(is_backward(node) and memory_root(node) is node for node in nodes) <= 1:
        return "one operator in the forward, and one at most in the backward"
    if any(map(_is_many_operators_in_eager, nodes)):
        return None
    loops = list(map(is_backward, _fusible(nodes)))
    nothing_to_fuse = loops in ([], [True])  # one in the backward: a sum of gradients
    if not nothing_to_fuse and has_symbols(joint.graph.graph):
        return None  # other calls may bring more data
    if (0 if nothing_to_fuse else max(map(bytes_of, joint.graph.graph.nodes))) > LITTLE_DATA:
        return None
    if gains(calls):
        return None
    by_operators, as_step = calls.by_operators(), calls.as_step()
    return (
        f"calls of its operators take about {by_operators[0]:.0f} us in the forward and {by_operators[1]:.0f} us in "
        f"the backward, those of a compiled step {as_step[0]:.0f} us and {as_step[1]:.0f} us"
    )


def _fusible(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Loops that may fuse with others. A fill, which reads nothing, and a copy of what library calls made fuse with
    none."""
    loops = {one for one in nodes if one.all_input_nodes and not _is_view(one) and not is_library_call(one)}

    def reads_loops(node: fx.Node) -> bool:
        return any(memory_root(source) in loops for source in node.all_input_nodes)

    return [one for one in nodes if one in loops and (not _moves(one) or reads_loops(one))]


def gains(calls: Calls) -> bool:
    """Whether a compiled step costs less than calls of the operators."""
    return _weighted(calls.as_step()) <= _weighted(calls.by_operators())


def _weighted(microseconds: tuple[float, float]) -> float:
    """The forward counts twice, because it may run alone."""
    return 2 * microseconds[0] + microseconds[1]


def count_calls(joint: JointGraph, parts: Partition, links: int, groups: int) -> Calls:
    """links, groups: autograd nodes of results and of groups of inputs, which a compiled step makes besides its own."""
    nodes = [node for node in joint.graph.graph.nodes if node.op == "call_function"]
    step_forward = Counter(
        step=1,
        input=joint.primal_count,
        result=joint.value_count,
        saved=len(parts.forward.graph.find_nodes(op="output")[0].args[0]) - joint.value_count,
        library=_library_calls(parts.forward.graph),
        link=links,
        group=groups,
    )
    step_backward = Counter(
        step=1,
        tangent=len(parts.backward.graph.find_nodes(op="placeholder")) - len(parts.saved),
        saved=len(parts.saved),
        gradient=len(set(parts.backward.graph.find_nodes(op="output")[0].all_input_nodes)),
        library=_library_calls(parts.backward.graph),
        link=links,
        group=groups,
    )
    forward = [node for node in nodes if not is_backward(node)]
    first = _first_of_calls(forward)
    operators_forward = Counter(map(_kind, first))
    operators_forward["inner"] = len(forward) - len(first)
    operators_backward = Counter(_kind(node) for node in nodes if is_backward(node))
    outputs: Any = joint.graph.graph.find_nodes(op="output")[0].args[0]
    passed = ancestors([outputs[at] for at in joint.differentiable])  # a condition on data has no part in gradients
    operators_backward["node"] = sum(node in passed for node in first)
    return Calls(operators_forward, operators_backward, step_forward, step_backward)


def _first_of_calls(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """The operators, without those behind the first that one call of the program made: parts of its decomposition."""
    found = []
    before: fx.Node | None = None
    for node in nodes:
        origin = node.meta.get("origin")
        if origin is None or origin is not before or is_library_call(node):
            found.append(node)
        before = origin
    return found


def _cost(counts: Mapping[str, int], table: Mapping[str, float]) -> float:
    return sum(table.get(kind, 0.0) * count for kind, count in counts.items())


def _kind(node: fx.Node) -> str:
    if _is_view(node):
        return "view"
    if is_library_call(node):
        return "library"
    assert isinstance(node.target, OpOverload)
    of_number = "pointwise" in op_info(node.target).record.tags and any(isinstance(one, Number) for one in node.args)
    return "number" if of_number else "other"


def _is_view(node: fx.Node) -> bool:
    """Whether the node computes nothing: a view, or an item of an operator's results."""
    return not isinstance(node.target, OpOverload) or memory_root(node) is not node


def _is_many_operators_in_eager(node: fx.Node) -> bool:
    """Whether eager computes this operator of ours step by step. ATen calls oneDNN for an LSTM, once a layer."""
    if node.target is not recurrent_layer:
        return False
    kind, given = node.args[:2]
    return kind != "lstm" or given.meta["val"].dtype not in (torch.float32, torch.bfloat16)  # type: ignore[union-attr]


def _gains_alone(node: fx.Node) -> bool:
    """Whether our loops take less time than eager's: for reductions, pooling, scans and gathers of much data on CPUs,
    mostly with their gradients, too."""
    meta = node.meta.get("val")
    first = meta[0] if isinstance(meta, (tuple, list)) else meta
    if is_backward(node) or not isinstance(node.target, OpOverload) or not isinstance(first, TensorMeta):
        return False
    much = max(map(bytes_of, (node, *node.all_input_nodes))) > MUCH_DATA
    return much and first.device.type == "cpu" and not _GAINING.isdisjoint(op_info(node.target).record.tags)


def _moves(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and op_info(node.target).name in MOVES


def _library_calls(graph: fx.Graph) -> int:
    return sum(node.op == "call_function" and is_library_call(node) for node in graph.nodes)
