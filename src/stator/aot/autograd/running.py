"""Running a compiled step: its forward, tied to its backward; and what the caller gets, tied to what it comes from.

What nodes between results compute is known in autograd_step.py, when they do in output_autograd_nodes.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.aot.runtime.replay import makers
from stator.aot.trace.groups import NotLedTo, apply_group, nobody
from stator.aot.trace.joint import Joint
from stator.aot.trace.output_autograd_nodes import Link, Linked, link, refer_to
from stator.graph.ir.traced import Fresh, History, Output, Traced, ViewOfInput, ViewOfOutput

from .autograd_step import CompiledStep
from .step_function import StepFunction

_apply = super(torch.autograd.Function, StepFunction).apply  # without the preparations for functions of other kinds


def runner(step: CompiledStep) -> Callable[..., Sequence[Any]]:
    """Takes the primals of a step and gives its forward values, tied to its backward, then views that are linked (None
    for other outputs).

    Inputs that others were computed from after they were written to are written here (`effects_left`). It raises
    RuntimeError inside of transforms of torch.func.
    """

    def run_plain(*primals: torch.Tensor) -> Sequence[Any]:
        try:
            return _apply(step, *primals)  # type: ignore[no-any-return]
        except RuntimeError:
            _say_why(step, primals)
            raise

    def run(*primals: torch.Tensor) -> Sequence[Any]:
        try:
            values = _values(step, primals)
        except RuntimeError:
            _say_why(step, primals)
            raise
        return _tied(step, values, primals, {}) if step.joint.links else values

    return run_plain if step.is_plain and not step.joint.links else run


def _say_why(step: CompiledStep, primals: Sequence[torch.Tensor]) -> None:
    if torch._C._are_functorch_transforms_active():
        StepFunction.apply(step, *primals)  # raises what says it


def _values(step: CompiledStep, primals: Sequence[torch.Tensor]) -> Sequence[Any]:
    """What the autograd function of the step gives; its node does not lead to inputs that nothing depends on."""
    if not step.joint.unreached and not step.leads_to_made:
        return _apply(step, *primals)  # type: ignore[no-any-return]
    arguments: list[Any] = list(primals)
    for index in step.joint.unreached:
        arguments[index] = NotLedTo(primals[index])
    if step.leads_to_made:
        arguments.append(nobody)
    return _apply(step, *arguments)  # type: ignore[no-any-return]


def run_step_of_shown(step: CompiledStep, places: Sequence[int], *tensors: torch.Tensor) -> Sequence[Any]:
    """As `runner` makes it, where results at these places were computed before, in another step: the tensors behind the
    primals are those, and what is computed from such results is computed from them for autograd."""
    primals = tensors[: -len(places)]
    values = _values(step, primals)
    shown = dict(zip(places, tensors[-len(places) :], strict=True))
    return _tied(step, values, primals, shown) if step.joint.links else values


def _tied(
    step: CompiledStep, values: Sequence[Any], primals: Sequence[torch.Tensor], shown: Mapping[int, torch.Tensor]
) -> Sequence[Any]:
    """shown: results that are there already, by position."""
    joint = step.joint
    holder = None
    if joint.groups:
        *values, holder = values
    seer = holder if holder is not None else values[joint.differentiable[0]] if joint.differentiable else None
    node = None if seer is None else seer.grad_fn
    if node is None:  # nothing requires grad
        return _linked(joint, None, None, values, primals, shown) if joint.links_effects else values
    linked = node.linked = Linked()
    seen = _linked(joint, step, linked, values, primals, shown, holder)
    linked.watch({at: seen[at] for at in step.stops})
    if shown or joint.links_effects or joint.groups:
        node.results = refer_to(seen, joint.results)
    return seen if joint.links_effects else seen[: joint.value_count]


def views_of_views(joint: Joint, inner: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """What runs the graph of a program whose results for autograd are views of inputs, some of them of others: gives
    the forward values, then these views (`effects_left`)."""

    def run(*inputs: torch.Tensor) -> Sequence[Any]:
        return tuple(_linked(joint, None, None, inner(*inputs), inputs, {}))

    return run


def _linked(
    joint: Joint,
    step: CompiledStep | None,
    linked: Linked | None,
    values: Sequence[Any],
    primals: Sequence[torch.Tensor],
    shown: Mapping[int, torch.Tensor],
    holder: torch.Tensor | None = None,
) -> list[Any]:
    """What autograd knows the values by, and views behind them: one after the other, each with edges to those before
    it. Without a step nothing is differentiable.

    holder: keeps the node of the call, where the values have none.
    """
    seen = [*values, *[None] * len(joint.traced.outputs)]
    for position, tensor in shown.items():
        seen[position] = tensor
    places: Mapping[int, list[torch.Tensor]] = {}
    nodes: dict[int, weakref.ref[Any]] = {}
    if step is not None and holder is not None:
        places = _before_groups(step, holder, primals)
    for one in joint.links:
        at = one.position
        if at in shown:
            continue
        if joint.is_view(at):
            seen[at] = _view(joint, one)(primals, seen, seen)
            continue
        if step is not None and linked is not None and (at in places or seen[at].requires_grad):
            behind = [seen[earlier] for earlier in one.behind]
            link(step.gradients_between, linked, at, seen[at], behind, holder, places.get(at, ()))
            nodes[at] = weakref.ref(seen[at].grad_fn)
        index = joint.written.get(at)
        if index is not None:
            with torch.enable_grad():
                seen[at] = primals[index].copy_(values[at])
    if holder is not None:
        step_node: Any = holder.grad_fn
        step_node.value_nodes = nodes
    return seen


def _before_groups(
    step: CompiledStep, holder: torch.Tensor, primals: Sequence[torch.Tensor]
) -> dict[int, list[torch.Tensor]]:
    """Nodes for the groups of inputs: the places before them, for each value."""
    places: dict[int, list[torch.Tensor]] = {position: [] for position in step.joint.differentiable}
    nodes, leaves = [], (*primals, nobody)
    for index, group in enumerate(step.joint.groups):
        place = apply_group((holder,), index, *[leaves[at] for at in group.primals])
        nodes.append(weakref.ref(place.grad_fn))
        for position in group.positions:
            places[position].append(place)
    step_node: Any = holder.grad_fn
    step_node.groups = nodes
    return places


def _view(joint: Joint, one: Link) -> Callable[..., Any]:
    """Makes a view from its base; from the view right behind it, where it is a view of a view that the caller gets."""
    count, outputs = joint.value_count, joint.traced.outputs
    output: Any = outputs[one.position - count]
    for earlier in one.behind:
        if joint.is_view(earlier):
            base: Any = outputs[earlier - count]
            begun = base.geometry.steps
            if output.geometry.steps[: len(begun)] == begun and _place(base) == _place(output):
                rest = replace(output.geometry, steps=output.geometry.steps[len(begun) :])
                return makers[ViewOfOutput](ViewOfOutput(earlier, rest))
    return makers[type(output)](output)


def _place(output: ViewOfInput | ViewOfOutput) -> tuple[bool, int]:
    return (True, output.index) if isinstance(output, ViewOfInput) else (False, output.position)


def effects_left(joint: Joint) -> Traced:
    """What remains to be done with what a `runner` returns."""
    count, traced = joint.value_count, joint.traced
    if not joint.links_effects:
        return traced
    made = {one.position for one in joint.links if joint.is_view(one.position)}
    outputs: list[Output] = [Fresh(at) if at in made else output for at, output in enumerate(traced.outputs, count)]
    mutated = [(index, position) for index, position in traced.mutated if position not in joint.written]
    histories = tuple(History.FOLLOWED if at in made else one for at, one in enumerate(traced.histories, count))
    return replace(traced, mutated=mutated, outputs=outputs, histories=histories)
