"""Traces forward and backward together: a graph of torch calls becomes one functional graph of values and gradients.

The trace runs through the autograd engine, on fake tensors. partition/ splits the joint graph.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from stator.base.errors import StatorError, Unsupported, UserPlace
from stator.base.signals import raised_by_signal_handler
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.fake.number_stand_ins import DataDependent
from stator.graph.fake.unknown_sizes import UnknownSizes
from stator.graph.fake.wrapper_subclasses import WrapperGradient, is_wrapper
from stator.graph.functionalization.functionalize import FunctionalTracer, Keep
from stator.graph.functionalization.outputs import describe_outputs
from stator.graph.functionalization.unknown_sizes import UnknownSizeRecorder
from stator.graph.ir.captured_tensors import owned_tensors_replaced
from stator.graph.ir.size_bindings import SizeBindings, input_bindings, is_symbolic, result_bindings
from stator.graph.ir.traced import Traced
from stator.graph.operators.symbolic_gradients import general_gradients
from stator.graph.tracing.tracer import add_numbers, close_graph, placeholder_names, run_function
from stator.prims.layout import preserved_strides
from stator.prims.record import TensorMeta
from stator.shapes.environment import prefer_general
from stator.shapes.expr import Symbol

from .differentiable_values import DifferentiableValues, find_values
from .eager_saved_tensors import NO_SAVES, EagerSaves, find_eager_saves
from .input_groups import InputGroup, find_groups
from .output_autograd_nodes import Link, gradients_between


@dataclass(slots=True)
class Joint:
    """A functional graph of ATen operators that computes the results of a program and its gradients.

    graph: placeholders are the primals (tensor inputs, then captured tensors), then symbolic ints, then the tangents;
        the output is a flat tuple of `value_count` forward values, then the gradients. Nodes of the backward have
        meta["backward"], placeholders that require grad meta["requires_grad"].
    primal_count: the number of placeholders that are primals.
    value_count: the number of forward values: user outputs, bases of aliased outputs, contents of mutated inputs.
    differentiable: positions of the forward values that autograd can differentiate.
    results: positions of the values that the caller receives; views among the outputs, if `links` has them, are counted
        behind the values.
    links: autograd edges between results and earlier results, in the order in which they are made.
    written: for inputs that were written to and that results depend on: position of the contents -> input index.
    groups: primals grouped by the differentiable values that lead to them; empty where all values lead to all primals.
        Only a joint graph with all tangents knows this and the next three facts.
    unreached: primals that require grad and that no value leads to.
    leads_to_made: whether a value leads to leaves that the program made. In `groups` these are one more primal, behind
    the
        others.
    savers: what eager would save.
    tangents: positions of the forward values that have a tangent, in the order of the tangent placeholders.
    gradients: for each primal (or target value) the position of its gradient among the outputs behind the values, or
    None.
    traced: how the values become the results of the program, and what the program writes to.
    summed: positions of values whose autograd node has no other result, so that it receives the sum of the value's
    gradients and nothing else.
    links_effects: whether `links` contains views, or contents written to inputs.
    bindings: where the primals and the ints bind symbols.
    unknown: symbols that the forward's operators bind, because they depend on data.
    """

    graph: fx.GraphModule
    primal_count: int
    value_count: int
    differentiable: tuple[int, ...]
    results: tuple[int, ...]
    links: tuple[Link, ...]
    written: dict[int, int]
    groups: tuple[InputGroup, ...]
    unreached: tuple[int, ...]
    leads_to_made: bool
    savers: EagerSaves
    tangents: tuple[int, ...]
    gradients: tuple[int | None, ...]
    traced: Traced
    summed: frozenset[int]
    links_effects: bool = field(init=False)
    bindings: SizeBindings = field(init=False)
    unknown: tuple[Symbol, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.unknown = unknown_of_forward(self.graph.graph)
        self.bindings = input_bindings(self.graph.graph)
        self.links_effects = bool(self.written) or any(self.is_view(one.position) for one in self.links)

    def link_nodes(self) -> int:
        """The number of values to which a call gives an autograd node of their own, see `output_autograd_nodes`."""
        return sum(bool(one.behind or self.groups) and not self.is_view(one.position) for one in self.links)

    def is_view(self, position: int) -> bool:
        """Whether the position belongs to an output that is a view."""
        return position >= self.value_count


def unknown_of_forward(graph: fx.Graph) -> tuple[Symbol, ...]:
    """The symbols that nodes of the forward bind."""
    return tuple([symbol for symbol, (node, _) in result_bindings(graph).items() if not node.meta.get("backward")])


def trace_joint(
    function: Callable[..., Any],
    example_inputs: Sequence[Any],
    *,
    keep: Keep,
    captured: Sequence[torch.Tensor] = (),
    merge_equal: bool = False,
    wanted: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    stops: Sequence[int] = (),
    by: frozenset[int] | None = None,
    unknown: UnknownSizes | None = None,
) -> Joint:
    """Trace a GraphModule of torch calls, or any callable, in the present grad mode, and differentiate it.

    The first arguments are those of `graph.tracer.trace`. wanted: the forward values that get a tangent; None for all
    differentiable ones. targets: forward values to differentiate by, instead of the primals. by: the primals to
    differentiate by; None for all. stops: see `gradients_between`.
    Raises Unsupported for what cannot be traced, CompileError when the traced code itself fails.
    """
    tracer = _JointTracer(keep)
    tracer.unknown = None if unknown is None else UnknownSizeRecorder(tracer, unknown)
    leaves, spec = pytree.tree_flatten(list(example_inputs))
    names = placeholder_names(function, leaves)
    grad_mode = torch.is_grad_enabled()  # leaving inference mode would switch it on
    with ExitStack() as stack:
        stack.callback(tracer.forget)
        stack.enter_context(torch._C._InferenceMode(False))
        stack.enter_context(torch.set_grad_enabled(grad_mode))
        if torch.is_anomaly_enabled():  # anomaly mode reads numbers, which fake tensors lack
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        stack.enter_context(_without_saved_tensors_hooks())
        primals: list[FakeTensor] = []
        with torch.enable_grad():
            fakes = [
                _add_primal(tracer, leaf, name, primals, merge_equal) if isinstance(leaf, torch.Tensor) else leaf
                for leaf, name in zip(leaves, names, strict=True)
            ]
            placed = {
                id(tensor): _add_primal(tracer, tensor, f"captured_{index}", primals, merge_equal)
                for index, tensor in enumerate(captured)
            }
        tracer.requiring = frozenset(index for index, primal in enumerate(primals) if primal.requires_grad)
        for index in tracer.requiring:
            tracer.input_nodes[index].meta["requires_grad"] = True
        numbers = add_numbers(tracer, leaves, names)
        if placed:
            stack.enter_context(owned_tensors_replaced(function, placed))
        with tracer.facts_located(), tracer:
            before = torch.is_grad_enabled()
            try:
                result = run_function(function, pytree.tree_unflatten(fakes, spec), tracer)
            finally:
                torch._C._set_grad_enabled(before)
            joint = _finish(tracer, primals, result, _Wanted(wanted, targets, tuple(stops), by))
            joint.traced.numbers = numbers
            return joint


@contextmanager
def _refused_by_autograd() -> Iterator[None]:
    """Errors of autograd end the capture: a saved value was overwritten, a formula is missing, or a view that one of
    several results is was written to."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, StatorError) and not raised_by_signal_handler(error):
            raise Unsupported("backward", f"autograd refuses to differentiate the outputs: {error}") from error
        raise


@contextmanager
def _without_saved_tensors_hooks() -> Iterator[None]:
    """Suspend the caller's saved-tensor hooks: they are for the compiled forward, not for the trace."""
    hooks = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which gradients to trace; see `trace_joint`."""

    positions: Sequence[int] | None
    targets: Sequence[int] | None
    stops: tuple[int, ...]
    by: frozenset[int] | None


# Operators whose formula of autograd takes a step for each column or each chunk of rows: the graph would grow with a
# size. Autograd runs the formula where the graph is compiled in parts around the operator.
LOOPS_IN_BACKWARD = frozenset((
    "aten::linalg_householder_product", "aten::ormqr", "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
))  # fmt: skip

# Lookups that may ask for a sparse gradient of their table: the position and the name of that argument.
SPARSE_GRADIENTS = {
    torch.ops.aten.embedding.default: (4, "sparse"),
    torch.ops.aten._embedding_bag.default: (5, "sparse"),
    torch.ops.aten.gather.default: (3, "sparse_grad"),
}


def _refuse_loops(func: OpOverload, args: tuple[Any, ...]) -> None:
    if any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
        raise Unsupported("gradient-loop", f"the backward of {func} is a loop over a size")


def _refuse_sparse_gradients(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse in the forward, because the backward does not know the operator."""
    at, name = SPARSE_GRADIENTS[func]
    sparse = args[at] if len(args) > at else kwargs.get(name, False)
    if sparse and args[0].requires_grad and torch.is_grad_enabled():
        raise Unsupported("gradient-layout", f"the gradient of the table of {func} is sparse")


class _JointTracer(FunctionalTracer):
    """A tracer that marks the nodes recorded while `in_backward`."""

    def __init__(self, keep: Keep) -> None:
        super().__init__(keep)
        self.in_backward = False
        self.requiring: frozenset[int] = frozenset()  # primals that require grad before the program writes
        self.entries: dict[int, Any] = {}  # the first grad_fn of inputs that are no leaves, by id(fake)
        self.begun: list[tuple[int, fx.Node]] = []  # the program's nodes, with autograd's next sequence number then

    def begin(self, node: fx.Node) -> None:
        super().begin(node)
        if not self.in_backward:
            self.begun.append((torch.autograd._get_sequence_nr(), node))

    def differentiated(self, sequence_number: int) -> fx.Node | None:
        """The program's node that made an autograd node with this number."""
        at = bisect_right(self.begun, sequence_number, key=itemgetter(0))
        return self.begun[at - 1][1] if at else None

    def place_at_hand(self) -> UserPlace | None:
        """In the backward, the line that is differentiated."""
        if not self.in_backward:
            return self.place
        current = torch._C._current_autograd_node()
        made = None if current is None else self.differentiated(current._sequence_nr())
        return None if made is None else made.meta.get("place")

    def forget(self) -> None:
        super().forget()
        self.entries.clear()
        self.inputs = []

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in SPARSE_GRADIENTS and not self.in_backward:
            _refuse_sparse_gradients(func, args, kwargs)
        if func._schema.name in LOOPS_IN_BACKWARD and not self.in_backward:
            _refuse_loops(func, args)
        return super().dispatch(func, args, kwargs)

    def _node(self, *arguments: Any) -> fx.Node:
        node = super()._node(*arguments)
        if self.in_backward:
            node.meta["backward"] = True
        return node


class _Entry(torch.autograd.Function):
    """Gives a non-leaf tensor a history, so that in-place writes to it behave as in eager."""

    @staticmethod
    def forward(ctx: Any, primal: torch.Tensor, holder: list[FakeTensor]) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # keep None apart from zeros
        return holder[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def _add_primal(
    tracer: _JointTracer, real: torch.Tensor, name: str, primals: list[FakeTensor], merge_equal: bool
) -> FakeTensor:
    """Add a placeholder. Appends the tensor to differentiate by to `primals`; returns the program's argument."""
    known = tracer.inputs.copy() if merge_equal else ()
    fake = tracer.add_input(real, name, merge_equal)
    if any(earlier is fake for earlier in known):  # identical to an earlier input, which gets the whole gradient
        primals.append(tracer.bind(tracer.make(fake.meta), tracer.input_nodes[-1]))
        return fake
    if not real.requires_grad:
        primals.append(fake)
    elif real.is_leaf:
        primals.append(fake.requires_grad_(True))  # type: ignore[arg-type]
    else:
        primal = tracer.bind(tracer.make(fake.meta, requires_grad=True), fake.node)
        primals.append(primal)
        with torch.enable_grad():
            entered = _Entry.apply(primal, [fake])
        assert entered is fake and fake.grad_fn is not None
        tracer.entries[id(fake)] = fake.grad_fn
    return fake


def _finish(tracer: _JointTracer, primals: list[FakeTensor], result: Any, wanted: _Wanted) -> Joint:
    leaves, spec = pytree.tree_flatten(result)
    leaves = [tracer.constant(leaf) if _is_real(leaf) else leaf for leaf in leaves]
    with _refused_by_autograd():
        described = describe_outputs(tracer, leaves, differentiable=True)
    result_sizes, missing = described.unknown_sizes(tracer)
    known = [handle if _is_differentiable(tracer, handle) else None for handle in described.handles]
    known += [None] * len(missing)
    values = find_values(described, known, leaves)
    leads, links = _NO_LEADS, values.links
    if wanted.positions is None:
        leads = _leads(tracer, primals, values)
    if leads.groups:  # give each value a node of its own; the base of a view comes first
        linked = {one.position for one in links}
        links = (*[Link(at, ()) for at in values.differentiable if at not in linked], *links)
    else:  # one node stands for all values that no result lies behind
        kept = {*values.written, *range(values.count, len(values.handles))}
        links = tuple([one for one in links if one.behind or one.position in kept])
    tangents = values.differentiable if wanted.positions is None else tuple(sorted(wanted.positions))
    metas = [value.meta for value in described.values]
    gradients = _differentiate(tracer, primals, values.handles, tangents, metas, wanted)
    computed = [gradient for gradient in gradients if gradient is not None]
    graph, constants = close_graph(tracer, (*[value.node for value in described.values], *missing, *computed))
    numbers = iter(range(len(computed)))
    traced = described.traced(tracer, graph, constants, spec)
    traced.result_sizes = result_sizes
    return Joint(
        graph,
        len(tracer.inputs),
        values.count,
        values.differentiable,
        values.results,
        links,
        values.written,
        leads.groups,
        leads.unreached,
        leads.to_made,
        leads.savers,
        tangents,
        tuple([None if gradient is None else next(numbers) for gradient in gradients]),
        traced,
        frozenset([at for at in tangents if len(values.handles[at].grad_fn._input_metadata) == 1]),  # type: ignore
    )


@dataclass(frozen=True, slots=True)
class _Leads:
    """What the values lead to; see `Joint`."""

    groups: tuple[InputGroup, ...]
    unreached: tuple[int, ...]
    to_made: bool
    savers: EagerSaves


_NO_LEADS = _Leads((), (), False, NO_SAVES)


def _leads(tracer: _JointTracer, primals: Sequence[FakeTensor], values: DifferentiableValues) -> _Leads:
    requiring = {index: primals[index] for index in tracer.requiring}
    handles = values.differentiated
    groups, unreached = find_groups(handles, requiring, len(primals))
    if len(groups) == 1 and set(groups[0].positions) == set(values.differentiable):
        groups = ()
    savers = find_eager_saves(tuple(handles.values()), tracer.input_storages)
    to_made = len(primals) not in unreached
    return _Leads(groups, tuple([at for at in unreached if at < len(primals)]), to_made, savers)


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)


def _is_differentiable(tracer: _JointTracer, handle: FakeTensor | None) -> bool:
    """Whether, for autograd, a value depends on a tensor that requires grad."""
    return handle is not None and handle.grad_fn is not None and handle.grad_fn is not tracer.entries.get(id(handle))


def _differentiate(
    tracer: _JointTracer,
    primals: Sequence[FakeTensor],
    handles: Sequence[FakeTensor | None],
    positions: Sequence[int],
    metas: Sequence[TensorMeta],
    wanted: _Wanted,
) -> list[fx.Node | None]:
    """Record the backward. Returns a node or None for the gradient of each primal, or of each target."""
    sought_by = tracer.requiring if wanted.by is None else wanted.by & tracer.requiring
    asked = [index in sought_by for index in range(len(primals))]
    differentiated = [primal for primal, one in zip(primals, asked, strict=True) if one]
    tangents = {position: _add_tangent(tracer, metas[position], index) for index, position in enumerate(positions)}
    if not positions or not differentiated:  # the values lead at most to leaves that the program made
        return [None] * len(primals)
    roots: Any = [handles[position] for position in positions]
    sought: Any = differentiated if wanted.targets is None else [handles[target] for target in wanted.targets]
    given = {id(handles[position]): tangent for position, tangent in tangents.items()}
    stops: Any = [(handles[position], given.get(id(handles[position]))) for position in wanted.stops]
    tracer.origin = tracer.place = None
    tracer.in_backward = True
    # tensors that outlive the backward: a write to one would be lost
    lasting = [*tracer.inputs, *tangents.values(), *[handle for handle in handles if handle is not None]]
    versions = [fake.fake_storage.version for fake in lasting]
    with _autocast_off():
        try:
            symbolic = is_symbolic([tuple(primal.shape) for primal in primals])
            with general_gradients(roots) if symbolic else prefer_general(), _refused_by_autograd():
                found = gradients_between(roots, list(tangents.values()), sought, stops)
        except DataDependent as error:
            if error.autograd_node is not None:
                error.origin = tracer.differentiated(error.autograd_node)
            raise
    if versions != [fake.fake_storage.version for fake in lasting]:
        raise Unsupported("deferred-effect", "a backward writes to an input, a result or the gradient of one")
    remaining = iter(found)
    if wanted.targets is not None:
        asked = [True] * len(found)
    gradients: list[fx.Node | None] = []
    for index, one in enumerate(asked):
        gradient = next(remaining) if one else None
        if gradient is not None and is_wrapper(gradient):
            raise WrapperGradient(index, gradient)
        if gradient is not None and not isinstance(gradient, FakeTensor):
            raise Unsupported("gradient-layout", f"a gradient is a {type(gradient).__name__} of {gradient.layout}")
        gradients.append(None if gradient is None else tracer.current(gradient))
    return gradients


def _add_tangent(tracer: FunctionalTracer, meta: TensorMeta, index: int) -> FakeTensor:
    """A placeholder behind the primals, with the layout of a gradient that eager computes elementwise."""
    last = next(node for node in reversed(tracer.graph.nodes) if node.op == "placeholder")
    with tracer.graph.inserting_after(last):
        node = tracer.graph.placeholder(f"tangent_{index}")
    stride = preserved_strides(meta.shape, meta.stride)
    node.meta["val"] = TensorMeta(meta.shape, stride, meta.dtype, meta.device)
    return tracer.bind(tracer.make(node.meta["val"]), node)


@contextmanager
def _autocast_off() -> Iterator[None]:
    """Turn autocast off: a backward runs outside of the autocast region of its forward."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def overwritten(joint: Joint) -> frozenset[int]:
    """Inputs that are written to past autograd, and whose old contents no gradient depends on: running statistics."""
    output = next(iter(reversed(joint.graph.graph.nodes)))
    needed: set[fx.Node] = set()
    todo = [node for node in output.args[0][joint.value_count :] if isinstance(node, fx.Node)]  # type: ignore[index]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += _inputs_of(node)
    placeholders = [node for node in joint.graph.graph.nodes if node.op == "placeholder"]
    differentiable = set(joint.differentiable)
    return frozenset(
        index
        for index, position in joint.traced.mutated
        if position not in differentiable and placeholders[index] not in needed
    )


def _inputs_of(node: fx.Node) -> list[fx.Node]:
    """What a node depends on. Of batch norm in training all but the new statistics depends on the batch alone."""
    if node.target is operator.getitem and node.args[1] in (0, 1, 2):
        source: Any = node.args[0]
        if source.target is torch.ops.aten._native_batch_norm_legit_functional.default and source.args[5]:
            return [part for part in source.args[:3] if isinstance(part, fx.Node)]
    return node.all_input_nodes
