"""Operators of torch._higher_order_ops, which take functions.

torch.cond: a Python condition picks the branch while capturing; for a tensor condition both branches become graphs, and
one node runs one of them. while_loop becomes one node that runs two graphs, and associative_scan is followed; the other
loops end the graph. flex_attention: capture follows the Python implementation of the operator, which computes all
scores. (The program imports the operator; stator never does.)

Plain torch hands the operators to a compiler of its own, whose refusals are errors. So a refusal here breaks the graph,
and the operator runs or fails as in plain torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.base.errors import Unsupported
from stator.dynamo.graph.subgraphs import Subgraph, outside_unchanged, own_state
from stator.dynamo.handlers.autograd_calls.autograd_function import level_node
from stator.dynamo.handlers.torch_calls.trees import Opaque, tree_of, value_of
from stator.dynamo.host.naming import class_name
from stator.dynamo.interpreter.calling import calls, named_handlers
from stator.dynamo.values.base import CaptureContext, Raised, Value, unsupported
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.ir.format import format_meta
from stator.graph.subgraphs.branches import Branch, Branches
from stator.graph.subgraphs.custom_autograd import graph_target
from stator.graph.subgraphs.function_transforms import Leaf
from stator.graph.subgraphs.loops import LoopRunner
from stator.graph.subgraphs.subgraph_ops import fresh_layout
from stator.prims.layout import numel, same_strides
from stator.prims.record import TensorMeta

_HINT = "use torch.where if both branches are cheap, or decide outside of the compiled function"


@dataclass(slots=True)
class BranchCapture:
    """A captured branch. lifted: the values that it reads from outside. results: its result, with `Leaf`s for the
    tensors described by `metas`."""

    graph: fx.GraphModule
    lifted: Sequence[TensorValue | SymbolicNumber]
    metas: list[TensorMeta]
    results: Any


@named_handlers.register(("torch._higher_order_ops.wrap", "Wrap.__call__"))
def _wrap(context: CaptureContext, operator: Value, function: Value, *args: Value, **kwargs: Value) -> Value:
    """`wrap(function, ...)` calls the function."""
    return context.call(function, list(args), kwargs)


@calls(torch.cond)
@named_handlers.register(("torch._higher_order_ops.cond", "cond"))
def _cond(
    context: CaptureContext, pred: Value, true_fn: Value, false_fn: Value, operands: Value | None = None
) -> Value:
    given = [] if operands is None else list(context.iterate(operands))
    if pred.is_constant() and pred.python_type(context) in (bool, int, float):
        return context.call(true_fn if context.truth(pred) else false_fn, given, {})
    if not isinstance(pred, TensorValue) or pred.fake.numel() != 1:
        raise refused("torch.cond", f"on {pred.describe(context)}")
    if operands is not None and not isinstance(operands, (TupleValue, ListValue)):
        raise refused("torch.cond", f"with operands that are {operands.describe(context)}")
    check_operands(context, "torch.cond", given)
    true, false = (
        capture_branch(context, f"the {which} branch of torch.cond", function, given, lambda level: (given, []))
        for which, function in (("first", true_fn), ("second", false_fn))
    )
    _check_alike(true, false)
    inputs = list({id(value): value for way in (true, false) for value in way.lifted}.values())
    at = {id(value): position for position, value in enumerate(inputs)}
    first, second = (Branch(way.graph, tuple(at[id(value)] for value in way.lifted)) for way in (true, false))
    target = graph_target(Branches("torch.cond", first, second, true.metas), "cond")
    made = context.record_function(target, [pred, *inputs], {})
    return value_of(context, true.results, list(context.iterate(made)))


def refused(function: str, what: str) -> Unsupported:
    return unsupported("data-dependent-jump", f"{function} {what}, which runs as in eager", _HINT)


def check_operands(context: CaptureContext, function: str, operands: Sequence[Value]) -> None:
    """Raise Unsupported unless the operands are tensors whose sizes follow from those of inputs, or tuples, lists and
    dicts of these."""
    if context.recorder.transforms:
        raise refused(function, "under a function transform")
    for operand in operands:
        found: list[TensorValue] = []
        if not _only_tensors(tree_of(context, operand, found)):
            raise refused(function, "with operands that are not tensors")
        if not all(context.recorder.numbers.has_input_sizes(one.fake) for one in found):
            raise refused(function, "of tensors whose sizes depend on data")


def _only_tensors(tree: Any, others: tuple[type, ...] = ()) -> bool:
    if isinstance(tree, dict):
        return all(_only_tensors(item, others) for item in tree.values())
    if isinstance(tree, (tuple, list)):
        return all(_only_tensors(item, others) for item in tree)
    return type(tree) in (Leaf, *others)


def capture_branch(
    context: CaptureContext,
    what: str,
    function: Value,
    reached: Sequence[Value],
    arguments: Callable[[Subgraph], tuple[Sequence[Value], Sequence[TensorValue]]],
) -> BranchCapture:
    """Capture a call that may run or not, or several times, into a graph of its own. Raises Unsupported unless the
    call returns fresh tensors and changes nothing.

    arguments: given the graph, makes the arguments; also returns those tensors among them that are new.
    reached: the values that the arguments stand for.
    """
    recorder = context.recorder
    freed, drawn = len(recorder.freed), recorder.mode.footprint.draws
    with (
        recorder.subgraph() as level,
        own_state(what, grad_mode=torch.is_grad_enabled()),
        outside_unchanged(context, what, function, *reached),
    ):
        args, new = arguments(level)
        try:
            result = context.call(function, list(args), {})
        except Raised as raised:
            name = class_name(raised.value.python_type(context))
            raise refused(what, f"raises {name}") from raised
        leaves: list[TensorValue] = []
        results = tree_of(context, result, leaves)
        if not leaves or not _only_tensors(results, (int,)):
            raise refused(what, "gives something else than tensors")
        nodes = [level_node(level, leaf, context) for leaf in leaves]
    differentiated = torch.is_grad_enabled() and any(requires_grad(one) for one in (*new, *level.lifted))
    if len(recorder.freed) != freed or (differentiated and any(_uses_autograd(node) for node in level.graph.nodes)):
        raise refused(what, "takes gradients")
    if differentiated and recorder.mode.footprint.draws != drawn:  # the backward computes the branch again
        raise refused(what, "draws random numbers, and has gradients")
    _check_fresh(what, leaves, [*new, *level.lifted], level.graph)
    return BranchCapture(level.finish(nodes), level.lifted, [leaf.fake.meta for leaf in leaves], results)  # type: ignore[attr-defined]


def requires_grad(value: TensorValue | SymbolicNumber) -> bool:
    return isinstance(value, TensorValue) and value.fake.requires_grad


def _uses_autograd(node: fx.Node) -> bool:
    return getattr(getattr(node.target, "graph_callable", None), "uses_autograd", False)


def _check_fresh(
    what: str, leaves: Sequence[TensorValue], lifted: Sequence[TensorValue | SymbolicNumber], graph: fx.Graph
) -> None:
    """Raise Unsupported, like plain torch, if results share memory with the inputs or with each other."""
    seen = {id(value.fake.fake_storage) for value in lifted if isinstance(value, TensorValue)}  # type: ignore[attr-defined]
    for leaf in leaves:
        storage = id(leaf.fake.fake_storage)  # type: ignore[attr-defined]
        if storage in seen or leaf.node is None or leaf.node.graph is not graph:
            raise refused(what, "gives a tensor that shares memory with another")
        seen.add(storage)


def _check_alike(true: BranchCapture, false: BranchCapture) -> None:
    if not same_structure(true.results, false.results):
        raise refused("torch.cond", "whose branches give results of different structure")
    for first, second in zip(true.metas, false.metas, strict=True):
        if not same_layout(first, second):
            met = f"{format_meta(first)} with strides {list(first.stride)} or {format_meta(second)} with strides "
            raise refused("torch.cond", f"whose branches give {met}{list(second.stride)}")


def same_layout(first: TensorMeta, second: TensorMeta) -> bool:
    """Whether one tensor can replace the other."""
    if first.shape != second.shape or first.dtype is not second.dtype or first.device != second.device:
        return False
    return same_strides(first.shape, first.stride, second.stride)


def same_structure(first: Any, second: Any) -> bool:
    """Whether two results hold tensors in equal places, and equal numbers."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(same_structure(first[key], second[key]) for key in first)
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(same_structure, first, second))
    return not isinstance(first, Opaque) and bool(first == second)


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


_MODULE = "torch._higher_order_ops.flex_attention"


@named_handlers.register((_MODULE, "FlexAttentionHOP.__call__"))
def _flex_attention(context: CaptureContext, operator: Value, query: Value, *args: Value, **kwargs: Value) -> Value:
    plain = getattr(sys.modules[_MODULE], "sdpa_dense", None)
    device = query.fake.device.type if isinstance(query, TensorValue) else "cpu"
    if plain is None or context.recorder.transforms or torch.is_autocast_enabled(device):
        raise unsupported("call", "flex_attention under a function transform or autocast")
    tensors = [one for one in (query, *args[:2]) if isinstance(one, TensorValue)]
    if torch.is_grad_enabled() and any(one.fake.requires_grad for one in tensors):  # the operator has its own backward
        raise unsupported("call", "flex_attention on tensors that require grad")
    return context.call(context.known(plain), [query, *args], kwargs)
