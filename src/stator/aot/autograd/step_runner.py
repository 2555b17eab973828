"""Runs a compiled step: ties the forward's values to the backward, and results to the results they come from."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.aot.runtime.replay import maker
from stator.aot.trace.input_groups import HiddenFromAutograd, apply_group, dummy_leaf
from stator.aot.trace.joint import Joint
from stator.aot.trace.output_autograd_nodes import Link, LinkedResults, add_link_node
from stator.graph.ir.traced import Fresh, History, Output, Traced, ViewOfInput, ViewOfOutput
from stator.runtime.launch import references

from .autograd_step import CompiledStep
from .step_function import apply_ordinary_step, apply_step, call_of_ordinary_step

_set_version = torch._C._autograd._unsafe_set_version_counter


def runner(step: CompiledStep) -> Callable[..., Sequence[Any]]:
    """A function of the primals of a step that returns its forward values, tied to its backward, then linked views
    (None for other outputs).

    It also writes the inputs that results depend on after the write (see `effects_left`). It must not be called inside
    transforms of torch.func.
    """

    if step.is_ordinary:
        return _linked_runner(step) if step.joint.links else call_of_ordinary_step(step)

    count = step.joint.primal_count

    def run(*primals: torch.Tensor) -> Sequence[Any]:
        values = _values(step, primals)
        return _tied(step, values, primals, {}) if step.joint.links else values

    def run_with_numbers(*inputs: Any) -> Sequence[Any]:
        primals, numbers = inputs[:count], inputs[count:]
        values = _values(step, primals, numbers)
        return _tied(step, values, primals, {}, numbers) if step.joint.links else values

    return run_with_numbers if step.number_count else run


def _linked_runner(step: CompiledStep) -> Callable[..., Sequence[Any]]:
    """`runner` of an ordinary step with links. Every statement in it delays small programs."""
    first, stops = step.joint.differentiable[0], step.stops
    call = call_of_ordinary_step(step)
    links = [
        (one.position, (None, len(one.behind), (None,) * (len(one.behind) + 1)), one.behind)
        for one in step.joint.links
        if one.behind
    ]

    def run(*primals: torch.Tensor) -> Sequence[Any]:
        values: Sequence[Any] = call(*primals)
        node: Any = values[first].grad_fn
        if node is None:  # nothing requires grad
            return values
        linked = node.linked = LinkedResults(step.gradients_between)
        for position, behind_call, behind in links:
            value = values[position]
            before = value._version
            add_link_node(linked, position, behind_call, value, *[values[at] for at in behind], dummy_leaf)
            _set_version((value,), (before,))  # the link counted a write that did not happen
        linked.tensors = {at: weakref.ref(values[at]) for at in stops}  # whose nodes report the first hook
        return values

    return run


def _values(step: CompiledStep, primals: Sequence[torch.Tensor], numbers: Sequence[int] = ()) -> Sequence[Any]:
    """The results of the step's autograd function. Its node does not lead to inputs that no value depends on.

    numbers: the symbolic ints among the inputs.
    """
    if step.is_ordinary and not step.mutated:
        return apply_ordinary_step(step, *primals, *numbers)  # type: ignore[no-any-return]
    if not step.joint.unreached and not step.leads_to_made:
        return apply_step(step, *primals, *numbers)  # type: ignore[no-any-return]
    arguments: list[Any] = list(primals)
    for index in step.joint.unreached:
        arguments[index] = HiddenFromAutograd(primals[index])
    if step.leads_to_made:
        arguments.append(dummy_leaf)
    return apply_step(step, *arguments, *numbers)  # type: ignore[no-any-return]


def run_step_of_shown(step: CompiledStep, places: Sequence[int], *tensors: torch.Tensor) -> Sequence[Any]:
    """Like `runner`, where another step has already computed the results at `places`. These results come behind the
    primals. For autograd, values that depend on such results are computed from them."""
    primals = tensors[: -len(places)]
    values = _values(step, primals)
    shown = dict(zip(places, tensors[-len(places) :], strict=True))
    return _tied(step, values, primals, shown) if step.joint.links else values


def _tied(
    step: CompiledStep,
    values: Sequence[Any],
    primals: Sequence[torch.Tensor],
    shown: Mapping[int, torch.Tensor],
    numbers: Sequence[int] = (),
) -> Sequence[Any]:
    """shown: results that exist already, by position."""
    joint = step.joint
    holder = None
    if joint.groups:
        *values, holder = values
    seer = holder if holder is not None else values[joint.differentiable[0]] if joint.differentiable else None
    node = None if seer is None else seer.grad_fn
    if node is None:  # nothing requires grad
        return _linked(joint, None, values, primals, shown, numbers=numbers) if joint.links_effects else values
    linked = node.linked = LinkedResults(step.gradients_between)
    seen = _linked(joint, linked, values, primals, shown, _before_groups(step, holder, primals, values), numbers)
    if step.stops:
        linked.watch({at: seen[at] for at in step.stops})
    if shown or joint.links_effects or joint.groups:
        node.results = references(seen, joint.results)
    return seen if joint.links_effects else seen[: joint.value_count]


def views_of_views(joint: Joint, inner: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Runs a graph whose differentiable results are only views of inputs, some of them views of other results. Returns
    the forward values, then these views (see `effects_left`)."""

    def run(*inputs: torch.Tensor) -> Sequence[Any]:
        count = joint.primal_count
        return tuple(_linked(joint, None, inner(*inputs), inputs[:count], {}, numbers=inputs[count:]))

    return run


def _linked(
    joint: Joint,
    linked: LinkedResults | None,
    values: Sequence[Any],
    primals: Sequence[torch.Tensor],
    shown: Mapping[int, torch.Tensor],
    groups: _Groups = (None, {}),
    numbers: Sequence[Any] = (),
) -> list[Any]:
    """The values and the views behind them as autograd knows them, made in order, each with edges to earlier ones.
    Without `linked` nothing is differentiable."""
    holder, places = groups
    count, written = joint.value_count, joint.written
    seen = [*values, *[None] * len(joint.traced.outputs)] if joint.links_effects or shown else [*values]
    for position, tensor in shown.items():
        seen[position] = tensor
    nodes: dict[int, weakref.ref[Any]] = {}
    for one in joint.links:
        at = one.position
        if at in shown:
            continue
        if at >= count:
            seen[at] = _view(joint, one)((*primals, *numbers), seen, seen)
            continue
        value, behind = seen[at], one.behind
        if linked is not None and (at in places or (behind and value.requires_grad)):
            ends = places.get(at, ())
            if behind or not ends:
                ends = (*[seen[earlier] for earlier in behind], dummy_leaf, *ends)
            before = value._version
            add_link_node(linked, at, (holder, len(behind), (None,) * len(ends)), value, *ends)
            _set_version((value,), (before,))  # the link counted a write that did not happen
            if holder is not None:
                nodes[at] = weakref.ref(value.grad_fn)
        if at in written:
            with torch.enable_grad():
                seen[at] = primals[written[at]].copy_(values[at])
    if holder is not None:
        step_node: Any = holder.grad_fn
        step_node.value_nodes = nodes
    return seen


# A tensor that keeps the node of the call alive, where the values have nodes of their own; and for each value the
# tensors of the nodes of the groups of inputs
_Groups = tuple[torch.Tensor | None, Mapping[int, Sequence[torch.Tensor]]]


def _before_groups(
    step: CompiledStep, holder: torch.Tensor | None, primals: Sequence[torch.Tensor], values: Sequence[Any]
) -> _Groups:
    """Makes the nodes of the groups of inputs."""
    if holder is None:
        return None, {}
    places: dict[int, list[torch.Tensor]] = {position: [] for position in step.joint.differentiable}
    nodes, leaves = [], (*primals, dummy_leaf)
    devices = [values[position].device for position in step.joint.differentiable]
    device = next((one for one in devices if one.type != "cpu"), devices[0])
    holders = (holder,)
    for index, group in enumerate(step.joint.groups):
        place = apply_group(holders, index, device, *[leaves[at] for at in group.primals])
        nodes.append(weakref.ref(place.grad_fn))
        for position in group.positions:
            places[position].append(place)
    step_node: Any = holder.grad_fn
    step_node.groups = nodes
    return holder, places


def _view(joint: Joint, one: Link) -> Callable[..., Any]:
    """A function that makes a view from its base, or from the view right behind it, if the caller receives that too."""
    count, outputs = joint.value_count, joint.traced.outputs
    output: Any = outputs[one.position - count]
    for earlier in one.behind:
        if joint.is_view(earlier):
            base: Any = outputs[earlier - count]
            begun = base.geometry.steps
            if output.geometry.steps[: len(begun)] == begun and _place(base) == _place(output):
                rest = replace(output.geometry, steps=output.geometry.steps[len(begun) :])
                return maker(ViewOfOutput(earlier, rest), joint.bindings, joint.traced.result_sizes)
    return maker(output, joint.bindings, joint.traced.result_sizes)


def _place(output: ViewOfInput | ViewOfOutput) -> tuple[bool, int]:
    return (True, output.index) if isinstance(output, ViewOfInput) else (False, output.position)


def effects_left(joint: Joint) -> Traced:
    """The effects that remain to be applied to what a `runner` returns."""
    count, traced = joint.value_count, joint.traced
    if not joint.links_effects:
        return traced
    made = {one.position for one in joint.links if joint.is_view(one.position)}
    outputs: list[Output] = [Fresh(at) if at in made else output for at, output in enumerate(traced.outputs, count)]
    mutated = [(index, position) for index, position in traced.mutated if position not in joint.written]
    histories = tuple(History.FOLLOWED if at in made else one for at, one in enumerate(traced.histories, count))
    return replace(traced, mutated=mutated, outputs=outputs, histories=histories)
