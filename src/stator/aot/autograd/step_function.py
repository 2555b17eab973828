"""The autograd function around a compiled step: keeps what the backward of a call needs, and enters the backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import ref

import torch

from stator.aot.partition.partition import SavedInput
from stator.aot.runtime.saved_state import NOTHING_FREED
from stator.aot.trace.input_groups import HiddenFromAutograd, nothing
from stator.aot.trace.output_autograd_nodes import refuse_hooks
from stator.graph.subgraphs.generators import states_of
from stator.runtime.autograd_state import below_autograd
from stator.runtime.launch import (
    UNCHECKED_VERSION,
    are_distinct,
    lie_at,
    make_step_call,
    memory,
    references,
    step_forward,
    versions,
)

from .autograd_step import CompiledStep, asks_for_all, is_observed

is_grad_enabled = torch.is_grad_enabled
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
graph_task_id = torch._C._current_graph_task_id


class StepFunction(torch.autograd.Function):
    """Ties a `CompiledStep` to autograd: apply(step, *primals) -> the forward values."""

    @staticmethod
    def forward(ctx: Any, step: CompiledStep, *primals: torch.Tensor) -> tuple[Any, ...]:
        if step.devices:
            ctx.states = states_of(step.devices)
        numbers: tuple[Any, ...] = ()
        if step.number_count:
            primals, numbers = primals[: -step.number_count], primals[-step.number_count :]
        if step.leads_to_made:
            primals = primals[:-1]
        apart: set[int] = set()  # ids of primals that autograd does not see
        if step.joint.unreached:
            given, primals = primals, tuple([one.tensor if type(one) is HiddenFromAutograd else one for one in primals])
            apart = {id(one) for one, was in zip(primals, given, strict=True) if was is not one}
        copies = {index: _before_writing(step, index, primals[index]) for index in step.mutated}
        results = step.forward(*primals, *numbers)
        if step.sizes_of is not None:
            ctx.sizes = step.sizes_of((*primals, *numbers), results)
        values = _distinct(results[: step.value_count], apart)
        ctx.results = () if step.groups else references(values, step.results)  # groups: once values have nodes
        ctx.step = step
        ctx.materialize_grads = False
        if step.groups:  # values get nodes of their own: see input_groups.py
            ctx.mark_non_differentiable(*[value for value in values if isinstance(value, torch.Tensor)])
            values += (nothing.detach(),)
            results = list(results)
            for at in step.saved_value_places:  # no cycle
                results[at] = results[at].detach()
        elif step.constant_positions:
            ctx.mark_non_differentiable(*_constants(step, values))
        if step.saved:
            ctx.save_for_backward(*step.select_saved(primals, results))
        if step.placed:
            ctx.memory = memory(primals)
        # For a backward that is differentiated. Written inputs are replaced with copies, because they may get
        # the history of this step.
        ctx.primals, ctx.versions = list(primals), versions(primals)
        for index, copy in copies.items():
            ctx.primals[index], ctx.versions[index] = copy
        return values

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        step: CompiledStep = ctx.step
        of_values = [(at, tangents[at]) for at in step.joint.differentiable]
        positions = tuple([at for at, tangent in of_values if tangent is not None])
        present = [tangent for _, tangent in of_values if tangent is not None]
        if not present:  # no value of this step has a tangent
            return (None,) * len(ctx.needs_input_grad)
        del tangents, of_values
        found = step.gradients(ctx, step.request(positions, is_observed(ctx), step.asked_by(ctx)), present)
        if not keeps_graph():  # as autograd does
            ctx.drop_saved()
        others = (None,) * (step.leads_to_made + step.number_count)
        return (None, *found, *others)


class OrdinaryStepFunction(torch.autograd.Function):
    """`StepFunction` for the most frequent steps, see `CompiledStep.is_ordinary`. Every statement here delays small
    programs."""

    @staticmethod
    def forward(ctx: Any, step: CompiledStep, *primals: torch.Tensor) -> tuple[Any, ...]:
        if step.devices:
            ctx.states = states_of(step.devices)
        results = step.forward(*primals)
        ctx.materialize_grads, ctx.step = False, step
        if step.sizes_of is not None:
            ctx.sizes = step.sizes_of(primals, results)
        if step.number_count:
            primals = primals[: -step.number_count]
        if step.value_count == 1:  # most steps, such as losses: without loops over the results
            value = results[0]
            values: tuple[Any, ...] = (value,)
            ctx.results = [(0, ref(value), value._version)]
        else:
            values = _distinct(results[: step.value_count])
            ctx.results = references(values, step.results)
            if step.constant_positions:
                ctx.mark_non_differentiable(*_constants(step, values))
        ctx.primals, ctx.versions = primals, versions(primals)
        if step.saved:
            ctx.to_save = step.select_saved(primals, results)  # as save_for_backward does
        if step.placed:
            ctx.memory = memory(primals)
        return values

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        step: CompiledStep = ctx.step
        given = tangents
        if step.constant_positions:
            tangents = tuple([given[at] for at in step.joint.differentiable])
        if (
            tangents[0] is None
            or (len(tangents) > 1 and any(tangent is None for tangent in tangents))
            or (ctx.linked is not None and ctx.linked.observed)
            or is_grad_enabled()
            or keeps_graph()
            or not asks_for_all(ctx, step.last_edge)
            or ctx.freed is not NOTHING_FREED
            or (ctx.memory and not lie_at(ctx.primals, ctx.memory[0]))
        ):
            return StepFunction.backward(ctx, *given)
        arguments = [*ctx.saved(), *tangents] if step.saved else [*tangents]
        if not step.frees_all:
            ctx.freed = 0, graph_task_id(), step.frees
            step.free(ctx, step.frees, arguments)
        elif step.frees:
            ctx.freed = 0, graph_task_id(), step.frees
            ctx.drop_saved()
            ctx.primals = ctx.memory = ()
        if step.sizes_of is not None:
            found = step.whole.at(ctx.sizes)(arguments)  # type: ignore[union-attr, arg-type]
            return (*found, *(None,) * step.number_count) if step.number_count else found  # type: ignore[return-value]
        return step.whole(arguments)  # type: ignore[operator, return-value, arg-type]


class NativeStepFunction(OrdinaryStepFunction):
    """`OrdinaryStepFunction` with a forward in C, for steps without numbers. One object, `record`, keeps the step,
    primals, versions and results."""

    forward = staticmethod(step_forward or OrdinaryStepFunction.forward)


def _note_hooks(step_node: Any, tensor: Any) -> None:
    """`Tensor.register_hook` calls this for the first hook on a result."""
    hooks = tensor._backward_hooks
    if len(step_node.step.joint.differentiable) > 1:
        tensor._backward_hooks = {0: partial(_call_hooks, hooks)}
    torch._C._FunctionBase._register_hook_dict(step_node, tensor)  # type: ignore[attr-defined]
    tensor._backward_hooks = hooks
    step_node.hooks = {**step_node.hooks, tensor.output_nr: hooks}
    if step_node.linked is not None:
        step_node.linked.hooks[tensor.output_nr] = hooks


def _call_hooks(hooks: dict[int, Any], gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Call the hooks of one of several results. If only other results have gradients, eager calls no hooks. Autograd's
    own hooks for several tensors are called then, too: they wait for all nodes that run."""
    for hook in list(hooks.values()):
        if gradient is not None or getattr(hook, "__module__", None) == "torch.autograd.graph":
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
    return gradient


def _saved(step_node: Any) -> Sequence[Any]:
    return step_node.saved_tensors  # type: ignore[no-any-return]


def _saved_of_native(step_node: Any) -> list[Any]:
    return step_node.record.saved(step_node.saved_tensors)  # type: ignore[no-any-return]


def _drop_saved_of_native(step_node: Any) -> None:
    step_node.record.drop_hidden()
    step_node.maybe_clear_saved_tensors()


def _describe_nodes(function: type[StepFunction] | type[OrdinaryStepFunction]) -> None:
    """Default attributes of the nodes of calls, which most calls leave as they are.

    apply: what the engine calls, without a look at other ways to define a backward.

    hooks: on results, by position. groups: nodes of the groups of inputs. value_nodes: the nodes before these, by
    position.
    progress: of running backwards. sizes: the values of symbols. saved(): the values that the backward reads, until
    `drop_saved` frees them.
    """
    node_type: Any = function._backward_cls  # type: ignore[union-attr]
    node_type.apply = function.backward
    node_type.states = node_type.memory = node_type.groups = node_type.sizes = ()
    node_type.linked = node_type.kept = None
    node_type.hooks = node_type.value_nodes = node_type.progress = {}
    node_type.freed = NOTHING_FREED
    node_type.saved, node_type.drop_saved = _saved, node_type.maybe_clear_saved_tensors
    node_type._register_hook_dict = _note_hooks
    node_type.register_prehook = node_type.register_hook = refuse_hooks


_describe_nodes(StepFunction)
_describe_nodes(OrdinaryStepFunction)
_describe_nodes(NativeStepFunction)
_NATIVE_NODE: Any = NativeStepFunction._backward_cls  # type: ignore[attr-defined]
_NATIVE_NODE.saved, _NATIVE_NODE.drop_saved = _saved_of_native, _drop_saved_of_native
_NATIVE_NODE.step = property(attrgetter("record.step"))
_NATIVE_NODE.primals = property(
    attrgetter("record.primals"), lambda node, tensors: setattr(node.record, "primals", tensors)
)
_NATIVE_NODE.versions = property(attrgetter("record.versions"))
_NATIVE_NODE.results = property(attrgetter("record.results"))

# skip the handling of functorch and of setup_context
apply_step = super(torch.autograd.Function, StepFunction).apply
apply_ordinary_step = super(torch.autograd.Function, OrdinaryStepFunction).apply
_apply_native_step = super(torch.autograd.Function, NativeStepFunction).apply


def call_of_ordinary_step(step: CompiledStep) -> Callable[..., Sequence[Any]]:
    """A function of the primals of an ordinary step, and of numbers behind them, that returns its values."""
    if step_forward is None or step.number_count or step.sizes_of is not None:
        return partial(apply_step if step.mutated else apply_ordinary_step, step)
    saved = tuple([one.index if isinstance(one, SavedInput) else ~one.position for one in step.saved])
    return make_step_call(
        _apply_native_step,
        step,
        step.forward,
        step.value_count,
        step.results,
        saved,
        placed=bool(step.placed),
        states=partial(states_of, step.devices) if step.devices else None,
        distinct=_distinct,
        constants=tuple(step.constant_positions),
        written=tuple(step.mutated),
        general=partial(apply_step, step),
    )


def _constants(step: CompiledStep, values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among the values that cannot be differentiated."""
    found = [values[position] for position in step.constant_positions]
    return [value for value in found if isinstance(value, torch.Tensor)]


def _before_writing(step: CompiledStep, index: int, primal: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The old contents and version of a primal that the program writes to, for a backward that is differentiated."""
    if index in step.overwritten and not primal.requires_grad:
        return primal, UNCHECKED_VERSION
    with torch.enable_grad():
        return primal.clone(), 0


def _distinct(values: Sequence[Any], apart: Collection[int] = ()) -> tuple[Any, ...]:
    """The values as distinct tensors, also distinct from the tensors whose ids are in `apart`.

    A result that is also the new contents of an input occurs twice. Autograd would take a tensor of `apart` for a fresh
    result and drop its requires_grad.
    """
    if not apart and are_distinct(values):
        return tuple(values)
    seen = set(apart)
    made = []
    for value in values:
        if isinstance(value, torch.Tensor) and id(value) in seen:
            with below_autograd():  # below autograd the alias is no view
                value = torch.ops.aten.alias.default(value)
        seen.add(id(value))
        made.append(value)
    return tuple(made)
