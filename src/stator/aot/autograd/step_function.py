"""The autograd function around a compiled step: what a call holds for its backward, and how the backward is entered."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from stator.aot.partition.partition import SavedInput
from stator.aot.runtime.replaced_data import places_of
from stator.aot.runtime.saved_state import ANY, NOTHING, versions_of
from stator.aot.trace.groups import NotLedTo
from stator.aot.trace.output_autograd_nodes import refer_to, refuse_hooks
from stator.graph.subgraphs.generators import states_of
from stator.runtime.host import below_autograd

from .autograd_step import CompiledStep, looked_at


class StepFunction(torch.autograd.Function):
    """Ties a `Step` to autograd: apply(step, *primals) -> the forward values."""

    @staticmethod
    def forward(ctx: Any, step: CompiledStep, *primals: torch.Tensor) -> tuple[Any, ...]:
        if step.is_plain:  # small programs, where fixed costs are seen: the same as below, without what they lack
            ctx.materialize_grads, ctx.step = False, step
            value = step.forward(*primals)[0]
            ctx.results = [(0, weakref.ref(value), value._version)]
            try:
                if len(primals) == 1:  # a comprehension is a call
                    ctx.primals = [(primals[0], primals[0]._version)]
                else:
                    ctx.primals = [(primal, primal._version) for primal in primals]
            except RuntimeError:  # of tensors made in inference mode
                ctx.primals = versions_of(primals)
            return (value,)
        if step.devices:
            ctx.states = states_of(step.devices)
        if step.leads_to_made:
            primals = primals[:-1]
        apart: set[int] = set()  # primals that autograd is not told of, by id
        if step.joint.unreached:
            given, primals = primals, tuple([one.tensor if type(one) is NotLedTo else one for one in primals])
            apart = {id(one) for one, was in zip(primals, given, strict=True) if was is not one}
        copies = {index: _before_writing(step, index, primals[index]) for index in step.mutated}
        results = step.forward(*primals)
        if step.is_single:  # the most frequent, and where fixed costs are seen
            value = results[0]
            values: tuple[Any, ...] = (value,)
            ctx.results = [(0, weakref.ref(value), value._version)]
        else:
            values = _distinct(results[: step.joint.value_count], apart)
            ctx.results = refer_to(values, step.results)
        ctx.step = step
        ctx.set_materialize_grads(False)
        if step.groups:  # values get nodes of their own: see groups.py
            ctx.mark_non_differentiable(*[value for value in values if isinstance(value, torch.Tensor)])
            values += (torch.empty(0, device="cpu"),)
            results = [one.detach() if isinstance(one, torch.Tensor) else one for one in results]  # no cycle
        elif step.constant_positions:
            constant = [values[position] for position in step.constant_positions]
            ctx.mark_non_differentiable(*[value for value in constant if isinstance(value, torch.Tensor)])
        if step.saved:
            ctx.save_for_backward(
                *[
                    primals[saved.index] if isinstance(saved, SavedInput) else results[saved.position]
                    for saved in step.saved
                ]
            )
        if step.placed:
            ctx.places = places_of(primals)
        # for a backward that is differentiated itself; not what this very program writes to: it may get our history
        known = versions_of(primals)
        for index, copy in copies.items():
            known[index] = copy
        ctx.primals = known
        return values

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        step: CompiledStep = ctx.step
        of_values = [(at, tangents[at]) for at in step.joint.differentiable]
        positions = tuple([at for at, tangent in of_values if tangent is not None])
        present = [tangent for _, tangent in of_values if tangent is not None]
        if not present:  # what leads here was computed without it
            return (None,) * len(ctx.needs_input_grad)
        del tangents, of_values
        found = step.gradients(ctx, step.request(positions, looked_at(ctx)), present)
        return (None, *found, None) if step.leads_to_made else (None, *found)


def _note_hooks(step_node: Any, tensor: torch.Tensor) -> None:
    """What `Tensor.register_hook` calls when the first hook is registered on a result."""
    torch._C._FunctionBase._register_hook_dict(step_node, tensor)  # type: ignore[attr-defined]
    step_node.hooks = {**step_node.hooks, tensor.output_nr: tensor._backward_hooks}


def _describe_nodes() -> None:
    """What nodes of calls have that most of them have no own of. hooks: those on results, by position. groups: nodes of
    the groups of inputs. value_nodes: those before them, by position. progress: of backwards that are running."""
    node_type: Any = StepFunction._backward_cls  # type: ignore[attr-defined]
    node_type.states = node_type.places = node_type.groups = ()
    node_type.linked = node_type.kept = node_type.differentiated = None
    node_type.hooks = node_type.value_nodes = node_type.progress = {}
    node_type.freed = NOTHING
    node_type._register_hook_dict = _note_hooks
    node_type.register_prehook = node_type.register_hook = refuse_hooks


_describe_nodes()


def _before_writing(step: CompiledStep, index: int, primal: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What a primal that the program writes to is now, for a backward that is differentiated, and its version."""
    if index in step.overwritten and not primal.requires_grad:
        return primal, ANY
    with torch.enable_grad():
        return primal.clone(), 0


def _distinct(values: Sequence[Any], apart: set[int]) -> tuple[Any, ...]:
    """The values as objects of their own: one that is also the new content of an input is there twice. And none that is
    one of `apart`, by id: autograd would take the very tensor for a fresh one, and no longer let it require grad."""
    if not apart and (len(values) == 1 or len(set(map(id, values))) == len(values)):
        return tuple(values)
    seen = set(apart)
    made = []
    for value in values:
        if isinstance(value, torch.Tensor) and id(value) in seen:
            with below_autograd():  # nobody's view
                value = torch.ops.aten.alias.default(value)
        seen.add(id(value))
        made.append(value)
    return tuple(made)
