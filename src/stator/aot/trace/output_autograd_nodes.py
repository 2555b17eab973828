"""Results of a graph that has several, as autograd knows them: as nodes of their own.

One autograd function makes all results of a compiled graph, so that autograd sees no way from one to another. Behind it
each result gets a node that leads to the results it was computed from. Usually nothing flows there: the compiled
backward knows what flows inside of it. When somebody looks (hooks, retained gradients, `torch.autograd.grad` by a
result), each node computes what reaches the results right behind it, autograd sums up, shows and changes that as in
eager, and the rest of the backward starts from there. What is compiled for that is not known here.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from stator.aot.runtime.node_hooks import behind, hooks_of
from stator.runtime.host import below_autograd

from .autograd_reachability import NOTHING, Edge, reached
from .groups import nobody, note_tangent, runs, will_run
from .multi_output_nodes import Handle, OtherResult, differentiable_place

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Link:
    """Something that the caller gets, or a forward value that it is made from, and what it was computed from.

    position: of a forward value, which gets a node of its own; or, counted on behind those, of an output that is a
    view, which has one. behind: positions of the results that it was computed from without another result in between.
    """

    position: int
    behind: tuple[int, ...]


def find_links(
    handles: Sequence[Handle | None], results: Iterable[int], bases: Mapping[int, int] | None = None
) -> tuple[Link, ...]:
    """The links of forward values, those behind a value before it: of all results if there are several values, so that
    hooks of one are not called when only others have gradients.

    handles: what autograd knows the values by, and views behind them; None for those that it does
    not. results: positions of what the caller gets. bases: for views what has to be there before.
    """
    places: dict[tuple[Any, int], int] = {}
    for position in results:
        handle = handles[position]
        if handle is not None:
            places.setdefault((handle.grad_fn, handle.output_nr), position)
    starts: dict[int, Any] = {at: handle.grad_fn for at, handle in enumerate(handles) if handle is not None}
    if len(starts) < 2:
        return ()

    def ends_at(edge: Edge) -> tuple[int, bool]:
        place = places.get(edge)
        return NOTHING if place is None else (1 << place, False)

    masks = reached(starts.values(), passes=ends_at)
    behind = {at: tuple([to for to in places.values() if masks[start] >> to & 1]) for at, start in starts.items()}
    linked = {at for at, found in behind.items() if found}.union(places.values())
    before = {view: (base,) for view, base in (bases or {}).items() if base in linked}
    ordered: dict[int, Link] = {}

    def place(position: int) -> None:
        if position not in ordered:
            for earlier in (*behind[position], *before.get(position, ())):
                place(earlier)
            ordered[position] = Link(position, behind[position])

    # in the order of eager's nodes, in which autograd calls hooks of what does not depend on another
    for position in sorted(linked, key=lambda at: starts[at]._sequence_nr() if at in starts else -1):
        place(position)
    return tuple(ordered.values())


def gradients_between(
    roots: Sequence[Handle],
    tangents: Sequence[torch.Tensor],
    sought: Sequence[Handle],
    stops: Sequence[tuple[Handle, torch.Tensor | None]],
    create_graph: bool = False,
) -> list[torch.Tensor | None]:
    """Gradients of the roots, which have these tangents, by the tensors that are sought.

    stops: tensors on the way with the gradient that flows on from there, whatever arrives; None: nothing does. For one
    that is sought, what arrives is returned. Hooks that a stop has are not called, so to speak: what arrives has not
    been through them, and what flows on has.
    """
    arrived: dict[int, torch.Tensor] = {}
    with ExitStack() as stack:
        for stop, tangent in stops:
            stack.enter_context(_stopped(stop, partial(_replaced, arrived, id(stop), tangent)))
        outputs: Any = list(map(differentiable_place, roots))
        inputs: Any = list(map(differentiable_place, sought))
        found = torch.autograd.grad(outputs, inputs, tangents, create_graph=create_graph, allow_unused=True)
    stopped = {id(stop) for stop, _ in stops if not isinstance(stop, OtherResult)}  # of those it tells what arrives
    return [
        arrived.get(id(one)) if id(one) in stopped else gradient for one, gradient in zip(sought, found, strict=True)
    ]


@contextmanager
def _stopped(tensor: Any, hook: Callable[[torch.Tensor | None], torch.Tensor | None]) -> Iterator[None]:
    """With this hook in the place of those that the tensor has."""
    if isinstance(tensor, OtherResult):
        with tensor.hooked(hook):
            yield
        return
    hooks = tensor._backward_hooks
    before = {} if hooks is None else dict(hooks)
    for key in before:
        del hooks[key]
    handle: RemovableHandle = tensor.register_hook(hook)
    try:
        yield
    finally:
        handle.remove()
        if before:
            hooks.update(before)


def _replaced(
    arrived: dict[int, torch.Tensor], key: int, tangent: torch.Tensor | None, gradient: torch.Tensor | None
) -> torch.Tensor | None:
    if gradient is None:
        return None
    arrived[key] = gradient
    return torch.zeros_like(gradient) if tangent is None else tangent


def with_hooked(stops: Iterable[int], hooked: Sequence[int], targets: Sequence[int] | None) -> tuple[int, ...]:
    """The stops, and the results that the program has hooked: their tangents have been through these hooks."""
    return tuple({*stops, *set(hooked).difference(targets or ())})


# A result by its position, which is not kept alive, and its version
Reference = tuple[int, "weakref.ref[torch.Tensor]", int]


def refer_to(values: Sequence[Any], positions: Iterable[int]) -> list[Reference]:
    return [(at, weakref.ref(values[at]), values[at]._version) for at in positions]


def unchanged(references: Iterable[Reference]) -> dict[int, torch.Tensor]:
    """The results that are still what they were, by position."""
    found = {}
    for position, reference, version in references:
        tensor = reference()
        if tensor is not None and tensor._version == version and tensor.grad_fn is not None:
            found[position] = tensor
    return found


class Linked:
    """What the nodes of one call share.

    tensors: the results that others were computed from; they are not kept alive. hooks: of results that were hooked, by
    position, the dictionary that autograd has their hooks from, which outlives the result, as the hooks do. nodes:
    those of what is hooked or hidden, and which of their results it is; they live as long as something that was
    computed from there. node_hooked: positions of results of those that have hooks themselves. of_views: of results
    that autograd's own nodes make, the dictionaries of the hooks of these, which live as long as the node. hidden:
    positions of what nobody gets, though the program has hooked it. beside: of results of one operator, the positions
    of all of them. parts: views of inputs that nobody gets, beside others.
    """

    __slots__ = (
        "_hooked", "_looked_at", "_task", "beside", "hidden", "hooks", "node_hooked", "nodes", "of_views", "partial",
        "parts", "places", "tensors",
    )  # fmt: skip

    def __init__(
        self, hooked: Collection[int], beside: Mapping[int, Collection[int | None]], partial: frozenset[int]
    ) -> None:
        """hooked: those that the program has hooked. partial: views beside others that nobody gets and that are not
        kept."""
        self.beside, self.partial = beside, partial
        self.parts: dict[int, torch.Tensor] = {}
        self.tensors: dict[int, weakref.ref[torch.Tensor]] = {}
        self.hooks: dict[int, dict[Any, Any]] = {}
        self.nodes: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.node_hooked: set[int] = set()
        self.of_views: dict[int, list[weakref.ref[dict[Any, Any]]]] = {}
        self.places: dict[int, torch.Tensor] = {}
        self._hooked = frozenset(hooked)
        self.hidden: frozenset[int] = frozenset()
        self._task: int | None = None
        self._looked_at = False

    def watch(self, tensors: Mapping[int, Any], hidden: Collection[int], others: Collection[int]) -> None:
        """To be called when these have their nodes, before the caller gets them: all that others were computed from.
        hidden: those nobody gets, though the program has hooked them; others: nor these."""
        self.hidden = frozenset(hidden)
        for position, tensor in tensors.items():
            is_link = isinstance(tensor.grad_fn, _LINK_NODE)
            if position in self.hidden or position in others:
                self.nodes[position] = weakref.ref(tensor.grad_fn), tensor.output_nr
                continue
            self.tensors[position] = weakref.ref(tensor)
            if is_link and tensor.grad_fn.linked is self:  # which says so when the first hook comes
                continue
            if is_link:
                self.nodes[position] = weakref.ref(tensor.grad_fn), tensor.output_nr
            else:
                self.of_views[position] = hooks_of(tensor.grad_fn)
            if tensor._backward_hooks is None:  # as the first hook would
                tensor._backward_hooks = OrderedDict()
                tensor.grad_fn._register_hook_dict(tensor)
            self.hooks[position] = tensor._backward_hooks

    def has_hooks(self, node: Any, number: int, hooks: dict[Any, Any]) -> None:
        """The first hook was registered on the result of this number of the node."""
        self.hooks[node.positions[number]] = hooks
        self._note(node)

    def node_has_hooks(self, node: Any) -> None:
        """A hook of the node itself is registered."""
        self.node_hooked.update(self._note(node))

    def _note(self, node: Any) -> list[int]:
        """All results of the node: its hooks are called when one of them has a gradient."""
        reference = weakref.ref(node)
        found = {at: (reference, number) for number, at in enumerate(node.positions) if at is not None}
        self.nodes.update(found)
        return list(found)

    def look(self) -> bool:
        """Whether somebody looks at gradients of these results in the backward that is running; decided once in each,
        when the first gradient comes that has a result behind it."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task, self._looked_at = task, self.are_looked_at()
        return self._looked_at

    @property
    def looked_at(self) -> bool:
        """The same for those in front of whom it was decided; False where it did not have to be."""
        return self._looked_at and self._task == torch._C._current_graph_task_id()

    def stand_ins(self, but: Collection[int]) -> dict[int, torch.Tensor]:
        """For what is hidden, and for results other than `but` that hooks see: tensors that have their places for
        autograd, and no contents; where these places can still be had."""
        found = {at: part for at, part in self.parts.items() if self._is_hooked_beside(at)}
        for position, (reference, number) in self.nodes.items():
            hooks = self._hooks_at(position)
            node = reference()
            if node is not None and hooks and position not in but:
                kept = self.places.get(position)
                at = number - node.positions[:number].count(None)
                try:
                    found[position] = node.saved_tensors[at] if kept is None else kept
                except RuntimeError as error:  # which says that a second backward needs them; it may be the first
                    raise RuntimeError(
                        "stator: the gradients of a compiled graph are to be differentiated again (create_graph=True) "
                        "past its gradient hooks, whose places were freed by a backward before this one; pass "
                        "retain_graph=True there, or run this part eagerly (stator.disable)"
                    ) from error
                found[position]._backward_hooks = hooks
        return found

    def _is_hooked_beside(self, part: int) -> bool:
        others = [at for at in self.beside[part] if at is not None]
        return any(map(self.hooks.get, others)) or not set(others).isdisjoint(self._hooked_views())

    def _hooks_at(self, position: int) -> dict[Any, Any] | None:
        """Hooks that are called for this result, or what says that there are some."""
        hooks = self.hooks.get(position)
        if hooks:
            return hooks
        others = self.beside.get(position, ())
        if (
            position in self.hidden
            or position in self.node_hooked
            or any(self.hooks.get(at) for at in others if at is not None)
        ):
            return _SOME
        return None

    def keep_places(self, positions: Sequence[int], places: Sequence[torch.Tensor]) -> None:
        """Until the running backward, which frees it before those behind it have run, ends."""
        if not self.places:
            torch.autograd.Variable._execution_engine.queue_callback(self.places.clear)
        self.places.update(zip(positions, places, strict=True))

    def hooked_in_passing(self, but: Collection[int]) -> bool:
        """Whether the caller hooked another of the results than these."""
        but = set(but) - self.partial  # there are no stand-ins for what is beside them
        if any(len(hooks) > (at in self._hooked) for at, hooks in self.hooks.items() if at not in but):
            return True
        return any(at not in but and self.nodes[at][0]() is not None for at in self.node_hooked) or any(
            at not in but for at in self._hooked_views()
        )

    def _hooked_views(self) -> list[int]:
        return [at for at, found in self.of_views.items() if any(reference() for reference in found)]

    def _leads_on(self, position: int) -> bool:
        """Whether something was computed from this result, or from another one of its operator."""
        return position in self.tensors or position in self.beside

    def are_looked_at(self) -> bool:
        if self.node_hooked or any(hooks and self._leads_on(at) for at, hooks in self.hooks.items()):
            return True
        if self.of_views and self._hooked_views():
            return True
        for node in (reference() for reference, _ in self.nodes.values()):  # some are of the call that made the result
            if node is not None and node.linked is not None and node.linked.node_hooked:
                return True
        alive = [tensor for tensor in (reference() for reference in self.tensors.values()) if tensor is not None]
        if any(tensor.retains_grad for tensor in alive):
            return True
        if will_run(_everywhere()):  # a backward to all leaves: there are no others whose gradient is asked for
            return False
        # one that leads to what is asked for runs, and so does one that is asked for itself
        return any(will_run(tensor.grad_fn) for tensor in alive if tensor.grad_fn is not None)


# Hooks of what is hidden, as those see them who ask whether there are any.
_SOME = OrderedDict({-1: "of the program"})


_NOBODYS_NODE: list[Any] = []


def _everywhere() -> Any:
    if not _NOBODYS_NODE:
        with torch.enable_grad():
            _NOBODYS_NODE.append(nobody.view_as(nobody).grad_fn.next_functions[0][0])  # type: ignore[union-attr]
    return _NOBODYS_NODE[0]


# above(step_node, positions, tangents) -> what reaches the results right behind the values at these positions, which
# are of one operator
Above = Callable[[Any, Sequence[int], Sequence[torch.Tensor]], Sequence[torch.Tensor | None]]

# What keeps the node of the call, where it is not the first that the value's leads to; how many results are behind the
# values; and to how many places each value leads
Call = tuple[torch.Tensor | None, int, tuple[int, ...]]


class _LinkFunction(torch.autograd.Function):
    """apply(above, linked, positions, call, *values, *results behind them, nobody, *places before groups): the
    values, with a node of their own: the results of one operator, each where that gave it. None, in `positions` too,
    stands for those that nobody gets. The places are there where the values have no node that leads to inputs (see
    `groups`).

    It saves the values' places for autograd, not their contents: see `stand_ins`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        above: Above,
        linked: Linked | None,
        positions: Sequence[int | None],
        call: Call,
        *tensors: Any,
    ) -> Any:
        ctx.above, ctx.linked, ctx.positions, ctx.call = above, linked, positions, call
        ctx.set_materialize_grads(False)
        values = tensors[: len(positions)]
        given = [value for value in values if value is not None]
        ctx.mark_dirty(*given)
        ctx.save_for_backward(*given)
        return values if len(values) > 1 else values[0]

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        holder, behind, places = ctx.call
        flowing = [(at, one) for at, one in zip(ctx.positions, tangents, strict=True) if at is not None]
        gradients: Sequence[Any] = [None] * (len(ctx.needs_input_grad) - 4 - len(tangents) - sum(places))
        if torch.is_grad_enabled() and ctx.linked is not None and not _keeps_graph():
            # where a backward before this one has freed it, hooks say so that need it
            with suppress(RuntimeError):
                ctx.linked.keep_places([at for at, _ in flowing], ctx.saved_tensors)
        present = [(at, one) for at, one in flowing if one is not None]
        if behind and present and ctx.linked.look():
            step_node = ctx.next_functions[0][0] if holder is None else holder.grad_fn
            gradients = [*ctx.above(step_node, *map(tuple, zip(*present, strict=True))), None]
        if places:
            for at, tangent in flowing:
                note_tangent(holder.grad_fn, at, tangent)
        found = dict(flowing)
        passed_on = [one for (_, one), count in zip(flowing, places, strict=False) for _ in range(count)]
        return None, None, None, None, *map(found.get, ctx.positions), *gradients, *passed_on


_apply = super(torch.autograd.Function, _LinkFunction).apply  # without the preparations for functions of other kinds


def link(
    above: Above,
    linked: Linked | None,
    values: Mapping[int, torch.Tensor],
    positions: Sequence[int | None],
    behind: Sequence[Any],
    holder: torch.Tensor | None = None,
    places: Mapping[int, Sequence[torch.Tensor]] | None = None,
) -> None:
    """Give values a node of their own, in place, with edges to the tensors they were computed from, and to the places
    of each.

    values: by position. positions: of the results of one operator, in the order in which it gives them; None for those
    that are no values. holder: keeps the node of the call, where that is not the values'.
    """
    versions = [value._version for value in values.values()]
    found = [None if at is None else values[at] for at in positions]
    leading = [] if not places else [places.get(at, ()) for at in positions if at is not None]
    _push_saving(_layout, without_contents)
    try:
        _apply(
            above,
            linked,
            positions,
            (holder, len(behind), tuple([len(one) for one in leading])),
            *found,
            *behind,
            *((nobody,) if behind or not (holder is None or any(leading)) else ()),
            *[place for one in leading for place in one],
        )
    finally:
        _pop_saving()
    torch._C._autograd._unsafe_set_version_counter(tuple(values.values()), tuple(versions))  # nothing was written


_LINK_NODE: Any = _LinkFunction._backward_cls  # type: ignore[attr-defined]


def _note_hooks(node: Any, tensor: torch.Tensor) -> None:
    """What `Tensor.register_hook` calls when the first hook is registered on a result."""
    torch._C._FunctionBase._register_hook_dict(node, tensor)  # type: ignore[attr-defined]
    if node.linked is not None:
        node.linked.has_hooks(node, tensor.output_nr, tensor._backward_hooks)


def _note_look(register: Callable[..., Any]) -> Callable[..., Any]:
    """A method of nodes that registers a hook, which sees the gradient there."""

    def registered(node: Any, hook: Callable[..., Any]) -> Any:
        if node.linked is not None:
            node.linked.node_has_hooks(node)
        return register(node, hook)

    return registered


def hook_hidden(tensor: torch.Tensor, hook: Callable[[torch.Tensor | None], torch.Tensor | None]) -> None:
    """Hook a result of a link that nobody gets, without anybody's being told that it is hooked."""
    node: Any = tensor.grad_fn
    tensor._backward_hooks = OrderedDict({0: hook})
    torch._C._FunctionBase._register_hook_dict(node, tensor)  # type: ignore[attr-defined]


_LINK_NODE._register_hook_dict = _note_hooks
_LINK_NODE.register_prehook = _note_look(_LINK_NODE.register_prehook)
_register_behind = _note_look(_LINK_NODE.register_hook)
_LINK_NODE.register_hook = lambda node, hook: _register_behind(node, behind(hook))
_push_saving = torch._C._autograd._push_saved_tensors_default_hooks
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_pop_saving = torch._C._autograd._pop_saved_tensors_default_hooks
_Layout = tuple[tuple[int, ...], torch.dtype, torch.device]


def _layout(tensor: torch.Tensor) -> _Layout:
    return tensor.shape, tensor.dtype, tensor.device


def without_contents(layout: _Layout) -> torch.Tensor:
    """A tensor of this shape that takes the memory of one element."""
    shape, dtype, device = layout
    return torch.empty_strided(shape, (0,) * len(shape), dtype=dtype, device=device)


class _NotLookedAt(torch.autograd.Function):
    """apply(step_node, results, count, *gradients, *results): the gradients, which must not be differentiated by the
    results.

    They were computed from the inputs of the graph once more; autograd sees no way from them to its results.
    """

    @staticmethod
    def forward(ctx: Any, step_node: Any, results: Sequence[Reference], count: int, *tensors: Any) -> Any:
        ctx.linked, ctx.hooks, ctx.results, ctx.count = step_node.linked, step_node.hooks, results, count
        ctx.set_materialize_grads(False)
        gradients = tensors[:count]
        with below_autograd():  # nobody's views
            found = [gradient if gradient is None else aten.alias.default(gradient) for gradient in gradients]
        constant = [
            one
            for one, gradient in zip(found, gradients, strict=True)
            if one is not None and not gradient.requires_grad
        ]
        ctx.mark_non_differentiable(*constant)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        results = unchanged(ctx.results).values()
        hooked = any(ctx.hooks.values()) or (ctx.linked is not None and ctx.linked.hooked_in_passing(()))
        if hooked or _asked(results) or any(result._backward_hooks or result.retains_grad for result in results):
            raise RuntimeError(
                "stator: a backward of a compiled graph is differentiated again, and somebody looks at the gradient of "
                "a result (hooks, a retained gradient, torch.autograd.grad) which was dropped, or whose gradients "
                "could not be compiled; run this part eagerly (stator.disable)"
            )
        return None, None, None, *tangents, *[None] * (len(ctx.needs_input_grad) - 3 - ctx.count)


def _asked(results: Iterable[torch.Tensor]) -> bool:
    """Whether the running backward ends at one of these results: it does not go on to what made it."""
    nodes = [result.grad_fn for result in results if result.grad_fn is not None]
    return any(
        will_run(node) and not any(will_run(edge[0]) for edge in node.next_functions if edge[0] is not None)
        for node in nodes
    )


class _HooksInside(torch.autograd.Function):
    """apply(step_node, results, run, *gradients): the gradients, of a program that has hooked what is no result.

    They were computed from the inputs once more. Such a hook would see parts where eager's sees a sum, if they are
    differentiated together with the results themselves, or by them; or with gradients of another run of the program.
    """

    @staticmethod
    def forward(ctx: Any, step_node: Any, results: Sequence[Reference], run: Any, *gradients: Any) -> Any:
        ctx.step_node, ctx.results, ctx.run = step_node, results, run
        ctx.set_materialize_grads(False)
        with below_autograd():  # nobody's views
            found = [one if one is None else aten.alias.default(one) for one in gradients]
        pairs = zip(found, gradients, strict=True)
        ctx.mark_non_differentiable(*[one for one, given in pairs if one is not None and not given.requires_grad])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        nodes = [result.grad_fn for result in unchanged(ctx.results).values()]
        task = torch._C._current_graph_task_id()
        before = getattr(ctx.step_node, "hooks_run", (task, ctx.run))
        ctx.step_node.hooks_run = task, ctx.run
        if runs(ctx.step_node) or any(map(will_run, nodes)) or (before[0] == task and before[1] is not ctx.run):
            raise RuntimeError(
                "stator: a backward of a compiled graph is differentiated again together with its results, or by them, "
                "or with another backward of the same results, and the graph has gradient hooks on what is no result "
                "that cannot see the sum of these; run this part eagerly (stator.disable)"
            )
        return None, None, None, *tangents


def hooks_inside(step_node: Any, results: Sequence[Reference], run: Any, gradients: Sequence[Any]) -> Sequence[Any]:
    """The gradients, which raise when they are differentiated in a backward that results of the graph are part of, or
    gradients with another `run`."""
    found: Sequence[Any] = _HooksInside.apply(step_node, results, run, *gradients)
    return found


def not_looked_at(step_node: Any, results: Sequence[Reference], gradients: Sequence[Any]) -> Sequence[Any]:
    """The gradients, which raise when they are differentiated in a backward that looks at results of the graph."""
    if not torch.is_grad_enabled():
        return gradients
    shown = unchanged(results).values()
    found: Sequence[Any] = _NotLookedAt.apply(step_node, results, len(gradients), *gradients, *shown)
    return found
