"""The loops of torch._higher_order_ops: while_loop becomes one node that runs two graphs; map and scan, whose number of
turns is a size, are followed turn by turn. associative_scan is Python code of torch's, and followed as such.

What is refused here runs as in eager: see control_flow.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from stator.graph.branches import Branch
from stator.graph.differentiated import graph_target
from stator.graph.loops import Loop
from stator.graph.parts import fresh_layout
from stator.prims.layout import numel

from ..calling import named_handlers
from ..polyfills.tensor_loops import mapped, mapped_flat, scanned, scanned_flat, with_more
from ..subgraphs import Subgraph
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue
from ..values.numbers import NumberValue
from ..values.tensors import TensorValue
from .control_flow import Way, check_operands, follow_way, refused, same_layout, same_structure
from .trees import tree_of, value_of

if TYPE_CHECKING:
    from ..tracer import Tracer

_MOST_TURNS = 64
_STACKED_ALONG_DIM = torch.__version__ >= "2.13"  # what scan makes; along the first dimension before
_Inputs = list[TensorValue | NumberValue]


@named_handlers.register(("torch._higher_order_ops.while_loop", "while_loop"))
def _while_loop(tracer: Tracer, cond_fn: Value, body_fn: Value, carried_inputs: Value) -> Value:
    name = "while_loop"
    given = list(tracer.iterate(carried_inputs))
    check_operands(tracer, name, given)
    carried: list[TensorValue] = []
    tree = tuple([tree_of(tracer, value, carried) for value in given])
    condition = _follow(tracer, f"the condition of {name}", cond_fn, tree, carried)
    body = _follow(tracer, f"the body of {name}", body_fn, tree, carried)
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
    loop = Loop(name, asks, turns, layouts, fresh_layout(condition.metas[0]))
    made = tracer.record_function(graph_target(loop, name), [*carried, *inputs], {})
    return value_of(tracer, body.results, list(tracer.iterate(made)))


def _requires_grad(value: TensorValue | NumberValue) -> bool:
    return isinstance(value, TensorValue) and value.fake.requires_grad


def _follow(tracer: Tracer, what: str, function: Value, tree: Any, carried: Sequence[TensorValue]) -> Way:
    """With stand-ins for the carried tensors, which are others in each turn."""
    recorder = tracer.recorder

    def arguments(level: Subgraph) -> tuple[list[Value], list[TensorValue]]:
        fakes = [recorder.mode.make(fresh_layout(value.fake.meta)) for value in carried]  # type: ignore[attr-defined]
        inside = [recorder.wrap_tensor(fake, level.placeholder(fake)) for fake in fakes]
        return [value_of(tracer, one, list(inside)) for one in tree], inside

    return follow_way(tracer, what, function, carried, arguments)


def _check_turns(name: str, tree: Any, carried: Sequence[TensorValue], body: Way) -> None:
    results = body.results
    if not same_structure(tuple(results) if isinstance(results, (tuple, list)) else (results,), tree):
        raise refused(name, "whose body gives something else than it takes")
    for value, meta in zip(carried, body.metas, strict=True):
        if not same_layout(value.fake.meta, meta):  # type: ignore[attr-defined]
            raise refused(name, "whose body gives tensors of other sizes, strides or dtypes than it takes")


# ---- loops of so many turns as a size says ----


@named_handlers.register(("torch._higher_order_ops.map", "map"))
def _map(tracer: Tracer, f: Value, xs: Value, *args: Value) -> Value:
    _check_length(tracer, "map", xs, 0)
    return tracer.call(tracer.known(mapped), [f, xs, *args], {})


@named_handlers.register(("torch._higher_order_ops.scan", "scan"))
def _scan(
    tracer: Tracer,
    combine_fn: Value,
    init: Value,
    xs: Value,
    *,
    dim: Value | None = None,
    reverse: Value | None = None,
) -> Value:
    at = 0 if dim is None else tracer.constant_of(dim, "the dimension of scan")
    backwards = ConstantValue(False) if reverse is None else reverse
    check_operands(tracer, "scan", [init])
    rank = _check_length(tracer, "scan", xs, at)
    stacked = at % rank if _STACKED_ALONG_DIM else 0
    given = [combine_fn, init, xs, ConstantValue(at), backwards, ConstantValue(stacked)]
    return tracer.call(tracer.known(scanned), given, {})


# ---- the operators themselves, called by the program ----


@named_handlers.register(("torch._higher_order_ops.while_loop", "WhileLoopOp.__call__"))
def _while_loop_operator(
    tracer: Tracer, operator: Value, cond_fn: Value, body_fn: Value, carried_inputs: Value, additional_inputs: Value
) -> Value:
    bound = tracer.known(with_more)
    cond_fn, body_fn = (tracer.call(bound, [one, additional_inputs], {}) for one in (cond_fn, body_fn))
    return _while_loop(tracer, cond_fn, body_fn, carried_inputs)


@named_handlers.register(("torch._higher_order_ops.map", "MapImpl.__call__"))
def _map_operator(tracer: Tracer, operator: Value, f: Value, xs: Value, pos_args: Value) -> Value:
    _check_length(tracer, "map", xs, 0)
    return tracer.call(tracer.known(mapped_flat), [f, xs, pos_args], {})


@named_handlers.register(("torch._higher_order_ops.scan", "ScanOp.__call__"))
def _scan_operator(
    tracer: Tracer, operator: Value, combine_fn: Value, init: Value, xs: Value, additional_inputs: Value
) -> Value:
    check_operands(tracer, "scan", [init])
    _check_length(tracer, "scan", xs, 0)
    return tracer.call(tracer.known(scanned_flat), [combine_fn, init, xs, additional_inputs], {})


@named_handlers.register(("torch._higher_order_ops.associative_scan", "AssociativeScanOp.__call__"))
def _associative_scan_operator(
    tracer: Tracer, operator: Value, combine_fn: Value, xs: Value, additional_inputs: Value
) -> Value:
    """Python code of torch's, and followed as such."""
    _check_length(tracer, "associative_scan", xs, 0)
    names: dict[str, Any] = operator.python_type(tracer).__call__.__globals__  # type: ignore[operator]
    function = tracer.known(names["generic_associative_scan"])
    return tracer.call(function, [combine_fn, xs], {"additional_inputs": additional_inputs})


def _check_length(tracer: Tracer, name: str, xs: Value, dim: Any) -> int:
    """Refuses what has no slices along `dim`, or too many. How many dimensions the first tensor has."""
    check_operands(tracer, name, [xs])
    leaves: list[TensorValue] = []
    tree_of(tracer, xs, leaves)
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
def _compiled_by_torch(tracer: Tracer, *args: Value) -> Value:
    raise unsupported("function-transform", "an operator of torch._higher_order_ops, which runs as in eager")
