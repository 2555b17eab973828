"""The loops of torch._higher_order_ops: while_loop becomes one node that runs two graphs; map and scan, whose number of
turns is a size, are followed turn by turn. associative_scan is Python code of torch's, and followed as such.

What is refused here runs as in eager: see control_flow.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.graph.subgraphs import Subgraph
from stator.dynamo.handlers.polyfills.tensor_loops import mapped, mapped_flat, scanned, scanned_flat, with_more
from stator.dynamo.interpreter.calling import named_handlers
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.subgraphs.branches import Branch
from stator.graph.subgraphs.custom_autograd import graph_target
from stator.graph.subgraphs.loops import LoopRunner
from stator.graph.subgraphs.subgraph_ops import fresh_layout
from stator.prims.layout import numel

from .control_flow import BranchCapture, check_operands, follow_way, refused, same_layout, same_structure
from .trees import tree_of, value_of

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_MOST_TURNS = 64
_STACKED_ALONG_DIM = torch.__version__ >= "2.13"  # what scan makes; along the first dimension before
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
    if torch.is_grad_enabled() and any(_requires_grad(one) for one in (*carried, *inputs)):
        raise refused(name, "of tensors that require grad")
    at = {id(value): position for position, value in enumerate(inputs, len(carried))}
    first = tuple(range(len(carried)))
    asks, turns = (Branch(way.graph, (*first, *[at[id(one)] for one in way.lifted])) for way in (condition, body))
    layouts = tuple(fresh_layout(value.fake.meta) for value in carried)  # type: ignore[attr-defined]
    loop = LoopRunner(name, asks, turns, layouts, fresh_layout(condition.metas[0]))
    made = context.record_function(graph_target(loop, name), [*carried, *inputs], {})
    return value_of(context, body.results, list(context.iterate(made)))


def _requires_grad(value: TensorValue | SymbolicNumber) -> bool:
    return isinstance(value, TensorValue) and value.fake.requires_grad


def _follow(
    context: CaptureContext, what: str, function: Value, tree: Any, carried: Sequence[TensorValue]
) -> BranchCapture:
    """With stand-ins for the carried tensors, which are others in each turn."""
    recorder = context.recorder

    def arguments(level: Subgraph) -> tuple[list[Value], list[TensorValue]]:
        fakes = [recorder.mode.make(fresh_layout(value.fake.meta)) for value in carried]  # type: ignore[attr-defined]
        inside = [recorder.wrap_tensor(fake, level.placeholder(fake)) for fake in fakes]
        return [value_of(context, one, list(inside)) for one in tree], inside

    return follow_way(context, what, function, carried, arguments)


def _check_turns(name: str, tree: Any, carried: Sequence[TensorValue], body: BranchCapture) -> None:
    results = body.results
    if not same_structure(tuple(results) if isinstance(results, (tuple, list)) else (results,), tree):
        raise refused(name, "whose body gives something else than it takes")
    for value, meta in zip(carried, body.metas, strict=True):
        if not same_layout(value.fake.meta, meta):  # type: ignore[attr-defined]
            raise refused(name, "whose body gives tensors of other sizes, strides or dtypes than it takes")


# ---- loops of so many turns as a size says ----


@named_handlers.register(("torch._higher_order_ops.map", "map"))
def _map(context: CaptureContext, f: Value, xs: Value, *args: Value) -> Value:
    _check_length(context, "map", xs, 0)
    return context.call(context.known(mapped), [f, xs, *args], {})


@named_handlers.register(("torch._higher_order_ops.scan", "scan"))
def _scan(
    context: CaptureContext,
    combine_fn: Value,
    init: Value,
    xs: Value,
    *,
    dim: Value | None = None,
    reverse: Value | None = None,
) -> Value:
    at = 0 if dim is None else context.constant_of(dim, "the dimension of scan")
    backwards = ConstantValue(False) if reverse is None else reverse
    check_operands(context, "scan", [init])
    rank = _check_length(context, "scan", xs, at)
    stacked = at % rank if _STACKED_ALONG_DIM else 0
    given = [combine_fn, init, xs, ConstantValue(at), backwards, ConstantValue(stacked)]
    return context.call(context.known(scanned), given, {})


# ---- the operators themselves, called by the program ----


@named_handlers.register(("torch._higher_order_ops.while_loop", "WhileLoopOp.__call__"))
def _while_loop_operator(
    context: CaptureContext,
    operator: Value,
    cond_fn: Value,
    body_fn: Value,
    carried_inputs: Value,
    additional_inputs: Value,
) -> Value:
    bound = context.known(with_more)
    cond_fn, body_fn = (context.call(bound, [one, additional_inputs], {}) for one in (cond_fn, body_fn))
    return _while_loop(context, cond_fn, body_fn, carried_inputs)


@named_handlers.register(("torch._higher_order_ops.map", "MapImpl.__call__"))
def _map_operator(context: CaptureContext, operator: Value, f: Value, xs: Value, pos_args: Value) -> Value:
    _check_length(context, "map", xs, 0)
    return context.call(context.known(mapped_flat), [f, xs, pos_args], {})


@named_handlers.register(("torch._higher_order_ops.scan", "ScanOp.__call__"))
def _scan_operator(
    context: CaptureContext, operator: Value, combine_fn: Value, init: Value, xs: Value, additional_inputs: Value
) -> Value:
    check_operands(context, "scan", [init])
    _check_length(context, "scan", xs, 0)
    return context.call(context.known(scanned_flat), [combine_fn, init, xs, additional_inputs], {})


@named_handlers.register(("torch._higher_order_ops.associative_scan", "AssociativeScanOp.__call__"))
def _associative_scan_operator(
    context: CaptureContext, operator: Value, combine_fn: Value, xs: Value, additional_inputs: Value
) -> Value:
    """Python code of torch's, and followed as such."""
    _check_length(context, "associative_scan", xs, 0)
    names: dict[str, Any] = operator.python_type(context).__call__.__globals__  # type: ignore[operator]
    function = context.known(names["generic_associative_scan"])
    return context.call(function, [combine_fn, xs], {"additional_inputs": additional_inputs})


def _check_length(context: CaptureContext, name: str, xs: Value, dim: Any) -> int:
    """Refuses what has no slices along `dim`, or too many. How many dimensions the first tensor has."""
    check_operands(context, name, [xs])
    leaves: list[TensorValue] = []
    tree_of(context, xs, leaves)
    ranks = [leaf.fake.dim() for leaf in leaves]
    if type(dim) is not int or not leaves or not all(-rank <= dim < rank for rank in ranks):
        raise refused(name, "of tensors without this dimension")
    sizes = {leaf.fake.shape[dim] for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        raise refused(name, "of tensors of different length, or none")
    if max(sizes) > _MOST_TURNS:
        raise unsupported("long-loop", f"{name} of more than {_MOST_TURNS} turns, which runs as in eager")
    return ranks[0]


@named_handlers.register(("torch._higher_order_ops.utils", "_maybe_compile_and_run_fn"))
def _compiled_by_torch(context: CaptureContext, *args: Value) -> Value:
    raise unsupported("function-transform", "an operator of torch._higher_order_ops, which runs as in eager")
