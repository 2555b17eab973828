"""The loops of torch._higher_order_ops: while_loop becomes one node that runs two graphs, and
associative_scan is followed; the others end the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.graph.subgraphs import Subgraph
from stator.dynamo.interpreter.calling import named_handlers
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.subgraphs.branches import Branch
from stator.graph.subgraphs.custom_autograd import graph_target
from stator.graph.subgraphs.loops import LoopRunner
from stator.graph.subgraphs.subgraph_ops import fresh_layout
from stator.prims.layout import numel

from .control_flow import (
    BranchCapture,
    capture_branch,
    check_operands,
    refused,
    requires_grad,
    same_layout,
    same_structure,
)
from .trees import tree_of, value_of

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_MOST_TURNS = 64
_Inputs = list[TensorValue | SymbolicNumber]


@named_handlers.register(("torch._higher_order_ops.while_loop", "while_loop"))
def _while_loop(context: CaptureContext, cond_fn: Value, body_fn: Value, carried_inputs: Value) -> Value:
    name = "while_loop"
    given = list(context.iterate(carried_inputs))
    check_operands(context, name, given)
    carried: list[TensorValue] = []
    tree = tuple([tree_of(context, value, carried) for value in given])
    condition = _follow(context, f"the condition of {name}", cond_fn, tree, carried)
    body = _follow(context, f"the body of {name}", body_fn, tree, carried)
    if len(condition.metas) != 1 or numel(condition.metas[0].shape) != 1:
        raise refused(name, "whose condition gives something else than one number")
    _check_turns(name, tree, carried, body)
    inputs: _Inputs = list({id(one): one for way in (condition, body) for one in way.lifted}.values())
    if torch.is_grad_enabled() and any(requires_grad(one) for one in (*carried, *inputs)):
        raise refused(name, "of tensors that require grad")
    at = {id(value): position for position, value in enumerate(inputs, len(carried))}
    first = tuple(range(len(carried)))
    asks, turns = (Branch(way.graph, (*first, *[at[id(one)] for one in way.lifted])) for way in (condition, body))
    layouts = tuple(fresh_layout(value.fake.meta) for value in carried)  # type: ignore[attr-defined]
    loop = LoopRunner(name, asks, turns, layouts, fresh_layout(condition.metas[0]))
    made = context.record_function(graph_target(loop, name), [*carried, *inputs], {})
    return value_of(context, body.results, list(context.iterate(made)))


def _follow(
    context: CaptureContext, what: str, function: Value, tree: Any, carried: Sequence[TensorValue]
) -> BranchCapture:
    """Capture with placeholders for the carried tensors, which differ in each turn."""
    recorder = context.recorder

    def arguments(level: Subgraph) -> tuple[list[Value], list[TensorValue]]:
        fakes = [recorder.mode.make(fresh_layout(value.fake.meta)) for value in carried]  # type: ignore[attr-defined]
        inside = [recorder.wrap_tensor(fake, level.placeholder(fake)) for fake in fakes]
        return [value_of(context, one, list(inside)) for one in tree], inside

    return capture_branch(context, what, function, carried, arguments)


def _check_turns(name: str, tree: Any, carried: Sequence[TensorValue], body: BranchCapture) -> None:
    results = body.results
    if not same_structure(tuple(results) if isinstance(results, (tuple, list)) else (results,), tree):
        raise refused(name, "whose body gives something else than it takes")
    for value, meta in zip(carried, body.metas, strict=True):
        if not same_layout(value.fake.meta, meta):  # type: ignore[attr-defined]
            raise refused(name, "whose body gives tensors of other sizes, strides or dtypes than it takes")


# ---- associative_scan: Python code of torch's, and followed as such ----


@named_handlers.register(("torch._higher_order_ops.associative_scan", "AssociativeScanOp.__call__"))
def _associative_scan_operator(
    context: CaptureContext, operator: Value, combine_fn: Value, xs: Value, additional_inputs: Value
) -> Value:
    _check_length(context, xs)
    names: dict[str, Any] = operator.python_type(context).__call__.__globals__  # type: ignore[operator]
    function = context.known(names["generic_associative_scan"])
    return context.call(function, [combine_fn, xs], {"additional_inputs": additional_inputs})


def _check_length(context: CaptureContext, xs: Value) -> None:
    """Refuses tensors without elements to scan along the first dimension, or with too many."""
    check_operands(context, "associative_scan", [xs])
    leaves: list[TensorValue] = []
    tree_of(context, xs, leaves)
    context.recorder.numbers.need_constants("associative_scan", [leaf.fake for leaf in leaves])
    sizes = {leaf.fake.shape[0] if leaf.fake.dim() else 0 for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        raise refused("associative_scan", "of tensors of different length, or none")
    if max(sizes) > _MOST_TURNS:
        raise unsupported("long-loop", f"associative_scan of more than {_MOST_TURNS} turns, which runs as in eager")
