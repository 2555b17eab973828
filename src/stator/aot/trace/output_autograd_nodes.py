"""Gives a result of a compiled graph that was computed from other results an autograd node of its own.

One autograd function makes all results, so autograd sees no edge from one result to another. Behind that function such
a result gets a node with edges to the results it was computed from. Usually no gradient flows along these edges: the
compiled backward computes everything inside. When somebody observes a result's gradient (hooks, retained gradients,
`torch.autograd.grad` by a result), each node computes the gradients of the results right behind it; autograd adds them
up, shows and changes them as in eager; and the rest of the backward starts from there.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from stator.aot.runtime.autograd_reachability import NOTHING, Edge, reachable_places
from stator.runtime.autograd_state import below_autograd

from .input_groups import dummy_leaf, progress_of, will_run

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Link:
    """A result, or a forward value that a result is made from, and the results it was computed from.

    position: of a forward value, which gets a node; or, counted behind these, of a view among the outputs, which has
    one.
    behind: positions of the results that the value was computed from directly, with no other result in between.
    """

    position: int
    behind: tuple[int, ...]


def find_links(
    handles: Sequence[torch.Tensor | None], results: Iterable[int], bases: Mapping[int, int] | None = None
) -> tuple[Link, ...]:
    """The links, each behind the links it depends on: of all results, and of values made from results.

    handles: the tensors through which autograd knows values and views, or None. results: positions of what the caller
    receives. bases: for each view, the value that must exist before it.
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

    masks = reachable_places(starts.values(), passes=ends_at)
    behind = {at: tuple([to for to in places.values() if masks[start] >> to & 1]) for at, start in starts.items()}
    linked = {at for at, found in behind.items() if found}.union(places.values())
    before = {view: (base,) for view, base in (bases or {}).items() if base in linked}
    ordered: dict[int, Link] = {}

    def place(position: int) -> None:
        if position not in ordered:
            for earlier in (*behind[position], *before.get(position, ())):
                place(earlier)
            ordered[position] = Link(position, behind[position])

    # Autograd calls hooks of independent results in the order of eager's nodes.
    for position in sorted(linked, key=lambda at: starts[at]._sequence_nr() if at in starts else -1):
        place(position)
    return tuple(ordered.values())


def gradients_between(
    roots: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    sought: Sequence[torch.Tensor],
    stops: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
    create_graph: bool = False,
) -> list[torch.Tensor | None]:
    """Gradients of the roots, with these tangents, by the tensors in `sought`.

    stops: tensors on the way, each with the gradient that flows on from it, whatever arrives; None lets nothing flow
    on. For a stop in `sought` the arriving gradient is returned. Hooks of a stop are not called: the arriving gradient
    has not passed them, and the gradient that flows on has.
    """
    arrived: dict[int, torch.Tensor] = {}
    with ExitStack() as stack:
        for stop, tangent in stops:
            stack.enter_context(_stopped(stop, partial(_replaced, arrived, id(stop), tangent)))
        # Within a running backward, a thread that waits for the thread of a GPU would run other nodes of that backward.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        found = torch.autograd.grad(roots, sought, tangents, create_graph=create_graph, allow_unused=True)
    stopped = {id(stop) for stop, _ in stops}
    return [
        arrived.get(id(one)) if id(one) in stopped else gradient for one, gradient in zip(sought, found, strict=True)
    ]


@contextmanager
def _stopped(tensor: Any, hook: Callable[[torch.Tensor | None], torch.Tensor | None]) -> Iterator[None]:
    """Replace the tensor's hooks with this hook for a while."""
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


# The position of a result, a weak reference to it, and its version
Reference = tuple[int, "weakref.ref[torch.Tensor]", int]


def unchanged_results(references: Iterable[Reference]) -> dict[int, torch.Tensor]:
    """The results that still exist and were not written to, by position."""
    found = {}
    for position, reference, version in references:
        tensor = reference()
        if tensor is not None and tensor._version == version and tensor.grad_fn is not None:
            found[position] = tensor
    return found


# above(step_node, position, tangent) -> gradients of the results right behind the value at this position
Above = Callable[[Any, int, torch.Tensor], Sequence[torch.Tensor | None]]

# A tensor that keeps the node of the call alive, where that is not the first node behind the value; the number of
# results behind the value; and a None for each tensor that is given behind the value
Call = tuple[torch.Tensor | None, int, tuple[None, ...]]


class LinkedResults:
    """State that the nodes of one call share.

    above: computes gradients of the results right behind a value. tensors: weak references to the results that others
    were computed from. hooks: by position of a hooked result, autograd's dictionary of its hooks, which outlives the
    result, as the hooks do.
    """

    __slots__ = ("_observed", "_task", "above", "hooks", "tensors")

    def __init__(self, above: Above) -> None:
        self.above = above
        self.tensors: dict[int, weakref.ref[torch.Tensor]] = {}
        self.hooks: dict[int, dict[Any, Any]] = {}
        self._task: int | None = None
        self._observed = False

    def watch(self, tensors: Mapping[int, Any]) -> None:
        """Watch results that others were computed from. Call this once they have nodes, before the caller gets them."""
        for position, tensor in tensors.items():
            self.tensors[position] = weakref.ref(tensor)
            if getattr(tensor.grad_fn, "linked", None) is self:
                continue  # its node reports the first hook
            if tensor._backward_hooks is None:  # as registering the first hook does
                tensor._backward_hooks = OrderedDict()
                tensor.grad_fn._register_hook_dict(tensor)
            self.hooks[position] = tensor._backward_hooks

    def observe(self) -> bool:
        """Whether gradients of these results are observed in the running backward. Decided once per backward, when the
        first gradient arrives that has a result behind it."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task, self._observed = task, self.are_observed()
        return self._observed

    @property
    def observed(self) -> bool:
        """The decision of `observe` in the running backward; False where none was needed."""
        return self._observed and self._task == torch._C._current_graph_task_id()

    def are_observed(self) -> bool:
        if self.hooks and any(hooks and at in self.tensors for at, hooks in self.hooks.items()):
            return True
        alive = [tensor for reference in self.tensors.values() if (tensor := reference()) is not None]
        for tensor in alive:
            if tensor.retains_grad:
                return True
        if will_run(_everywhere()):  # a backward to all leaves: no result was asked for
            return False
        # the engine runs the node of a result that was asked for, or that leads to one
        return any(will_run(tensor.grad_fn) for tensor in alive if tensor.grad_fn is not None)


_NOBODYS_NODE: list[Any] = []


def _everywhere() -> Any:
    if not _NOBODYS_NODE:
        with torch.enable_grad():
            _NOBODYS_NODE.append(dummy_leaf.view_as(dummy_leaf).grad_fn.next_functions[0][0])  # type: ignore[union-attr]
    return _NOBODYS_NODE[0]


class _LinkFunction(torch.autograd.Function):
    """apply(linked, position, call, value, *results behind it, dummy_leaf, *group nodes): the value, in place, with a
    node of its own. The version of the value rises, although nothing writes to it. The nodes of input groups are given
    where the node of the call leads to no inputs; see `input_groups`."""

    @staticmethod
    def forward(ctx: Any, linked: LinkedResults, position: int, call: Call, value: torch.Tensor, *_: Any) -> Any:
        ctx.linked, ctx.position, ctx.call = linked, position, call
        ctx.materialize_grads = False
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        (tangent,) = tangents
        holder, behind, rest = ctx.call
        if behind and tangent is not None and ctx.linked.observe():
            step_node = ctx.next_functions[0][0] if holder is None else holder.grad_fn
            gradients = ctx.linked.above(step_node, ctx.position, tangent)
            rest = (*gradients, *rest[behind:])
        if holder is not None:
            progress_of(holder.grad_fn).arrived[ctx.position] = tangent
            tangent = None
        return None, None, None, tangent, *rest


# skips the handling of functorch and of setup_context
add_link_node = super(torch.autograd.Function, _LinkFunction).apply
_LINK_NODE: Any = _LinkFunction._backward_cls  # type: ignore[attr-defined]
_LINK_NODE.apply = _LinkFunction.backward  # the engine calls it without a look at other ways to define a backward


def _note_hooks(node: Any, tensor: torch.Tensor) -> None:
    """`Tensor.register_hook` calls this for the first hook on a result."""
    torch._C._FunctionBase._register_hook_dict(node, tensor)  # type: ignore[attr-defined]
    node.linked.hooks[node.position] = tensor._backward_hooks


def refuse_hooks(node: Any, hook: Callable[..., Any]) -> NoReturn:
    """Replaces the methods that register hooks on a node."""
    raise RuntimeError(
        "stator: a hook is registered on an autograd node of a compiled graph (grad_fn.register_hook, "
        "register_prehook); that node stands for many of eager's. Use Tensor.register_hook, or run this part eagerly "
        "(stator.disable)"
    )


_LINK_NODE._register_hook_dict = _note_hooks
_LINK_NODE.register_prehook = _LINK_NODE.register_hook = refuse_hooks


class _RefuseObserved(torch.autograd.Function):
    """apply(step_node, results, count, *gradients, *results): the gradients, whose backward must not be observed at
    results. They were computed from the inputs again, so autograd sees no edge from them to the results."""

    @staticmethod
    def forward(ctx: Any, step_node: Any, results: Sequence[Reference], count: int, *tensors: Any) -> Any:
        ctx.linked, ctx.hooks, ctx.results, ctx.count = step_node.linked, step_node.hooks, results, count
        ctx.set_materialize_grads(False)
        gradients = tensors[:count]
        with below_autograd():  # below autograd they are no views
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
        results = unchanged_results(ctx.results).values()
        hooked = any(ctx.hooks.values()) or (ctx.linked is not None and any(ctx.linked.hooks.values()))
        if hooked or _asked(results) or any(result._backward_hooks or result.retains_grad for result in results):
            raise RuntimeError(
                "stator: a backward of a compiled graph is differentiated again, and the gradient of a result is "
                "observed (hooks, a retained gradient, torch.autograd.grad), but the result was dropped, or its "
                "gradients could not be compiled; run this part eagerly (stator.disable)"
            )
        return None, None, None, *tangents, *[None] * (len(ctx.needs_input_grad) - 3 - ctx.count)


def _asked(results: Iterable[torch.Tensor]) -> bool:
    """Whether the running backward ends at one of these results, without going on to its inputs."""
    nodes = [result.grad_fn for result in results if result.grad_fn is not None]
    return any(
        will_run(node) and not any(will_run(edge[0]) for edge in node.next_functions if edge[0] is not None)
        for node in nodes
    )


def refuse_observed_results(step_node: Any, results: Sequence[Reference], gradients: Sequence[Any]) -> Sequence[Any]:
    """The gradients; they raise in a backward in which results of the graph are observed."""
    if not torch.is_grad_enabled():
        return gradients
    shown = unchanged_results(results).values()
    found: Sequence[Any] = _RefuseObserved.apply(step_node, results, len(gradients), *gradients, *shown)
    return found
