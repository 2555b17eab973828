"""`torch.autograd.grad` and `backward` in captured code: a node of the graph runs the engine, and `backward` writes
`.grad` like an attribute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource
from stator.dynamo.host.torch_overrides import plain_attribute
from stator.dynamo.interpreter.calling import calls, tensor_methods
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.fake.wrapper_subclasses import is_wrapper, storages_of
from stator.graph.operators.symbolic_gradients import history

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@calls(torch.autograd.grad)
def _grad(
    context: CaptureContext,
    outputs: Value,
    inputs: Value,
    grad_outputs: Value | None = None,
    retain_graph: Value | None = None,
    create_graph: Value | None = None,
    only_inputs: Value | None = None,
    allow_unused: Value | None = None,
    is_grads_batched: Value | None = None,
    materialize_grads: Value | None = None,
) -> Value:
    if is_grads_batched is not None and context.truth(is_grads_batched):
        raise unsupported("autograd", "torch.autograd.grad with is_grads_batched")
    roots, wanted = _tensors(context, outputs), _tensors(context, inputs)
    run = _Run(context, roots, create_graph, retain_graph)
    run.refuse_outer_history(wanted)
    named = {
        "grad_outputs": grad_outputs,
        "allow_unused": allow_unused,
        "materialize_grads": materialize_grads,
    }
    return run.record(wanted, {name: value for name, value in named.items() if value is not None})


@tensor_methods.register("backward")
def _tensor_backward(
    context: CaptureContext,
    tensor: Value,
    gradient: Value | None = None,
    retain_graph: Value | None = None,
    create_graph: Value | None = None,
    inputs: Value | None = None,
) -> Value:
    return _backward(context, tensor, gradient, retain_graph, create_graph, inputs=inputs)


@calls(torch.autograd.backward)
def _backward(
    context: CaptureContext,
    tensors: Value,
    grad_tensors: Value | None = None,
    retain_graph: Value | None = None,
    create_graph: Value | None = None,
    grad_variables: Value | None = None,
    inputs: Value | None = None,
) -> Value:
    if grad_variables is not None and not context.is_none(grad_variables):
        raise unsupported("autograd", "torch.autograd.backward with grad_variables")
    run = _Run(context, _tensors(context, tensors), create_graph, retain_graph)
    leaves = run.leaves()
    if inputs is not None and not context.is_none(inputs):
        chosen = _tensors(context, inputs)
        if not all(any(one is leaf for leaf in leaves) for one in chosen):
            raise unsupported("autograd", "backward(inputs=...) with a tensor that is no leaf of this graph")
        leaves = chosen
    if not leaves:
        any_graph = any(tensor.fake.requires_grad for tensor in run.roots)
        raise unsupported("autograd" if any_graph else "torch-error", "a backward that reaches no tensor")
    before = {id(storage) for value in context.recorder.by_fake.values() for storage in storages_of(value.fake)}
    named = {} if grad_tensors is None else {"grad_outputs": grad_tensors}
    found = run.record(leaves, {**named, "allow_unused": ConstantValue(True)})
    for leaf, gradient in zip(leaves, context.iterate(found), strict=True):
        if isinstance(gradient, TensorValue):
            _accumulate(context, leaf, gradient, run.creates, before)
    return ConstantValue(None)


def _tensors(context: CaptureContext, value: Value) -> list[TensorValue]:
    items = [value] if isinstance(value, TensorValue) else list(context.iterate(value))
    found = [item for item in items if isinstance(item, TensorValue)]
    if len(found) != len(items):
        raise unsupported("autograd", "the engine is given something that is no tensor")
    if any(is_wrapper(item.fake) for item in found):
        raise unsupported("tensor-subclass", "a backward from or to a tensor that is made of other tensors")
    return found


class _Run:
    """One run of the engine over the history of `roots`."""

    def __init__(
        self, context: CaptureContext, roots: list[TensorValue], create_graph: Value | None, retain_graph: Value | None
    ) -> None:
        if context.later is not None:
            raise unsupported("autograd", f"a backward inside {context.later.what}")
        self.context = context
        self.roots = roots
        self.creates = create_graph is not None and context.truth(create_graph)
        keeps = retain_graph is not None and not context.is_none(retain_graph)
        self.retains = context.truth(retain_graph) if keeps and retain_graph is not None else self.creates
        self.nodes = list(history([root.fake.grad_fn for root in roots]))
        for value in context.recorder.input_values:
            if value.fake.requires_grad:
                self._rely_on_no_hooks(value)

    def _rely_on_no_hooks(self, value: TensorValue) -> None:
        owner = self.context.recorder.owners.get(id(value), value)
        for name in _HOOKS:
            hooks = plain_attribute(owner.obj, name)
            if hooks:
                raise unsupported(
                    "autograd", f"a backward that reaches {value.describe(self.context)}, which has hooks"
                )
            # None before the first hook; empty after the last one was removed, and on results of compiled code
            kind, expected = (GuardKind.EQUALS, None) if hooks is None else (GuardKind.LENGTH, 0)
            source = AttrSource(value.source, name) if owner is value else owner.plain_source(name)  # type: ignore[arg-type]
            self.context.guard(source, kind, expected)

    def leaves(self) -> list[TensorValue]:
        """The frame's leaves that gradients flow to, in the order of the graph's inputs."""
        reached = {id(value) for value in self._reached()}
        return [value for value in self.context.recorder.input_values if id(value) in reached]

    def _reached(self) -> Iterator[TensorValue]:
        for node in self.nodes:
            fake = getattr(node, "variable", None)
            if fake is None:
                continue
            value = self.context.recorder.by_fake.get(id(fake))
            if value is None or value.obj is None or value.is_moved:
                raise unsupported("autograd", "a backward that leads out of the captured code or to a leaf made in it")
            yield value

    def refuse_outer_history(self, wanted: list[TensorValue]) -> None:
        """Raise Unsupported if gradients may flow through operations from before the captured code: a tensor that came
        in with a history may have been computed from the others."""
        outer = [value for value in wanted if value.obj is not None]
        for node in self.nodes:
            fake = getattr(node, "variable", None)
            known = fake is None or id(fake) in self.context.recorder.by_fake
            if not known and not (len(outer) == 1 and not outer[0].fake.is_leaf and len(wanted) == 1):
                raise unsupported("autograd", "gradients that may flow through what happened before the captured code")

    def record(self, wanted: list[TensorValue], named: dict[str, Value]) -> Value:
        kwargs: dict[str, Value] = {
            **named,
            "retain_graph": ConstantValue(self.retains),
            "create_graph": ConstantValue(self.creates),
        }
        args: list[Value] = [TupleValue(list(self.roots)), TupleValue(list(wanted))]
        made = self.context.record_function(torch.autograd.grad, args, kwargs)
        if not self.retains:
            self.context.recorder.freed.update((id(node), node) for node in self._runs(wanted) if _saves_tensors(node))
        return made

    def _runs(self, wanted: list[TensorValue]) -> Iterator[Any]:
        """The autograd nodes that lead to these tensors, which run."""
        ends = {id(value.fake.grad_fn) for value in wanted if value.fake.grad_fn is not None}
        leaves = {id(value.fake) for value in wanted}
        ends.update(id(node) for node in self.nodes if id(getattr(node, "variable", None)) in leaves)
        runs: dict[int, bool] = {}
        todo = list(self.nodes)
        while todo:
            node = todo[-1]
            behind = [edge[0] for edge in node.next_functions if edge[0] is not None]
            waiting = [] if id(node) in runs else [one for one in behind if id(one) not in runs]
            todo += waiting
            if not waiting:
                runs[id(node)] = any(id(one) in ends or runs[id(one)] for one in behind)
                todo.pop()
        return (node for node in self.nodes if runs[id(node)])


def _saves_tensors(node: Any) -> bool:
    """Whether a backward frees anything in the node."""
    return any(name.startswith("_raw_saved") for name in dir(node))


def _accumulate(
    context: CaptureContext, leaf: TensorValue, gradient: TensorValue, creates: bool, shared: set[int]
) -> None:
    """Like torch's AccumulateGrad, take the gradient or add it in place to the existing gradient."""
    known = leaf.get_attr(context, "grad")
    if isinstance(known, TensorValue):
        if known.fake.requires_grad or gradient.fake.requires_grad or creates:
            raise unsupported("autograd", "gradients that require grad are added up")
        context.record_method("add_", [known, gradient], {})
        return
    storage = id(gradient.fake.fake_storage)  # type: ignore[attr-defined]
    if creates or storage in shared or not _laid_out_like(gradient.fake, leaf.fake):
        gradient = _own_copy(context, gradient, leaf, creates)
    shared.add(storage)
    leaf.set_grad(context, gradient)


def _laid_out_like(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    return gradient.stride() == leaf.stride()


def _own_copy(context: CaptureContext, gradient: TensorValue, leaf: TensorValue, creates: bool) -> TensorValue:
    """A copy in memory of its own, with the layout of the leaf."""
    if creates:
        raise unsupported("autograd", "a backward that creates a graph in `.grad`")
    empty = context.record_function(torch.empty_like, [leaf], {"requires_grad": ConstantValue(False)})
    copied = context.record_method("copy_", [empty, gradient], {})
    assert isinstance(copied, TensorValue)
    return copied


@tensor_methods.register("requires_grad_")
def _requires_grad(context: CaptureContext, tensor: TensorValue, requires_grad: Value | None = None) -> Value:
    if context.recorder.transforms:
        raise unsupported("tensor-method", "requires_grad_() under a function transform, which torch refuses")
    return _set_requires_grad(context, tensor, ConstantValue(True) if requires_grad is None else requires_grad)


@tensor_methods.register("requires_grad")  # an assignment, which torch also allows under a function transform
def _set_requires_grad(context: CaptureContext, tensor: TensorValue, requires_grad: Value) -> Value:
    """Does nothing if the tensor has this setting already; changes only tensors that the captured code made."""
    wanted = context.truth(requires_grad)
    if context.later is not None:
        raise unsupported("deferred-fact", f"requires_grad_() in {context.later.what}")
    if tensor.fake.requires_grad is wanted:
        return tensor
    if tensor.input is not None or not tensor.fake.is_leaf:
        raise unsupported(
            "tensor-method",
            f"requires_grad_() on {tensor.describe(context)}",
            "set requires_grad outside of the compiled function",
        )
    made = context.record_method("requires_grad_", [tensor, ConstantValue(wanted)], {})
    context.recorder.made_leaves[id(tensor.fake)] = context.end_step()
    return made


@tensor_methods.register("detach_")
def _detach(context: CaptureContext, tensor: TensorValue) -> Value:
    """In place only for tensors that the captured code made, because a compiled graph cannot change the history of an
    input."""
    if tensor.input is not None and tensor.fake.requires_grad:
        raise unsupported("tensor-method", f"detach_() on {tensor.describe(context)}", "use detach()")
    return context.record_method("detach_", [tensor], {})


@calls(torch.detach_)
def _detach_function(context: CaptureContext, tensor: Value) -> Value:
    if not isinstance(tensor, TensorValue):
        raise unsupported("torch-argument", f"{tensor.describe(context)} as the argument of torch.detach_")
    return context.call_tensor_method(tensor, "detach_", [], {})
