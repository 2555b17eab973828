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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from stator.runtime.host import below_autograd

from .autograd_reachability import NOTHING, Edge, reached
from .groups import nobody, progress, will_run

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
    handles: Sequence[torch.Tensor | None], results: Iterable[int], bases: Mapping[int, int] | None = None
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
    roots: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    sought: Sequence[torch.Tensor],
    stops: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
    create_graph: bool = False,
) -> list[torch.Tensor | None]:
    """Gradients of the roots, which have these tangents, by the tensors that are sought.

    stops: tensors on the way with the gradient that flows on from there, whatever arrives; None: nothing does. For one
    that is sought, what arrives is returned. Hooks of a stop are not called: what arrives has not been through them,
    and what flows on has.
    """
    arrived: dict[int, torch.Tensor] = {}
    with ExitStack() as stack:
        for stop, tangent in stops:
            stack.enter_context(_stopped(stop, partial(_replaced, arrived, id(stop), tangent)))
        found = torch.autograd.grad(roots, sought, tangents, create_graph=create_graph, allow_unused=True)
    stopped = {id(stop) for stop, _ in stops}
    return [
        arrived.get(id(one)) if id(one) in stopped else gradient for one, gradient in zip(sought, found, strict=True)
    ]


@contextmanager
def _stopped(tensor: Any, hook: Callable[[torch.Tensor | None], torch.Tensor | None]) -> Iterator[None]:
    """With this hook in the place of those that the tensor has."""
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
    position, the dictionary that autograd has their hooks from, which outlives the result, as the hooks do.
    """

    __slots__ = ("_looked_at", "_task", "hooks", "tensors")

    def __init__(self) -> None:
        self.tensors: dict[int, weakref.ref[torch.Tensor]] = {}
        self.hooks: dict[int, dict[Any, Any]] = {}
        self._task: int | None = None
        self._looked_at = False

    def watch(self, tensors: Mapping[int, Any]) -> None:
        """To be called when these have their nodes, before the caller gets them: all that others were computed from."""
        for position, tensor in tensors.items():
            self.tensors[position] = weakref.ref(tensor)
            if isinstance(tensor.grad_fn, _LINK_NODE) and tensor.grad_fn.linked is self:
                continue  # which says so when the first hook comes
            if tensor._backward_hooks is None:  # as the first hook would
                tensor._backward_hooks = OrderedDict()
                tensor.grad_fn._register_hook_dict(tensor)
            self.hooks[position] = tensor._backward_hooks

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

    def are_looked_at(self) -> bool:
        if any(hooks and at in self.tensors for at, hooks in self.hooks.items()):
            return True
        alive = [tensor for tensor in (reference() for reference in self.tensors.values()) if tensor is not None]
        if any(tensor.retains_grad for tensor in alive):
            return True
        if will_run(_everywhere()):  # a backward to all leaves: there are no others whose gradient is asked for
            return False
        # one that leads to what is asked for runs, and so does one that is asked for itself
        return any(will_run(tensor.grad_fn) for tensor in alive if tensor.grad_fn is not None)


_NOBODYS_NODE: list[Any] = []


def _everywhere() -> Any:
    if not _NOBODYS_NODE:
        with torch.enable_grad():
            _NOBODYS_NODE.append(nobody.view_as(nobody).grad_fn.next_functions[0][0])  # type: ignore[union-attr]
    return _NOBODYS_NODE[0]


# above(step_node, position, tangent) -> what reaches the results right behind the value at this position
Above = Callable[[Any, int, torch.Tensor], Sequence[torch.Tensor | None]]

# What keeps the node of the call, where it is not the first that the value's leads to; how many results are behind the
# value
Call = tuple[torch.Tensor | None, int]


class _LinkFunction(torch.autograd.Function):
    """apply(above, linked, position, call, value, *results behind it, nobody, *places before groups): the value, with a
    node of its own. The places are there where the value has no node that leads to inputs (see `groups`)."""

    @staticmethod
    def forward(
        ctx: Any, above: Above, linked: Linked, position: int, call: Call, value: torch.Tensor, *_: Any
    ) -> torch.Tensor:
        ctx.above, ctx.linked, ctx.position, ctx.call = above, linked, position, call
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        (tangent,) = tangents
        holder, behind = ctx.call
        gradients: Sequence[Any] = ()
        if behind and tangent is not None and ctx.linked.look():
            step_node = ctx.next_functions[0][0] if holder is None else holder.grad_fn
            gradients = ctx.above(step_node, ctx.position, tangent)
        if holder is not None:
            progress(holder.grad_fn).arrived[ctx.position] = tangent
            tangent = None
        rest = len(ctx.needs_input_grad) - 5 - len(gradients)
        return None, None, None, None, tangent, *gradients, *[None] * rest


_apply = super(torch.autograd.Function, _LinkFunction).apply  # without the preparations for functions of other kinds


def link(
    above: Above,
    linked: Linked,
    position: int,
    value: torch.Tensor,
    behind: Sequence[torch.Tensor],
    holder: torch.Tensor | None = None,
    places: Sequence[torch.Tensor] = (),
) -> None:
    """Give a value a node of its own, in place, with edges to the tensors it was computed from, and to the places.

    holder: keeps the node of the call, where that is not the value's.
    """
    version = value._version
    ends = (nobody,) if behind or (holder is not None and not places) else ()
    _apply(above, linked, position, (holder, len(behind)), value, *behind, *ends, *places)
    torch._C._autograd._unsafe_set_version_counter((value,), (version,))  # nothing was written


_LINK_NODE: Any = _LinkFunction._backward_cls  # type: ignore[attr-defined]


def _note_hooks(node: Any, tensor: torch.Tensor) -> None:
    """What `Tensor.register_hook` calls when the first hook is registered on a result."""
    torch._C._FunctionBase._register_hook_dict(node, tensor)  # type: ignore[attr-defined]
    node.linked.hooks[node.position] = tensor._backward_hooks


def refuse_hooks(node: Any, hook: Callable[..., Any]) -> NoReturn:
    """In the place of the methods of a node that register hooks."""
    raise RuntimeError(
        "stator: a hook is registered on an autograd node of a compiled graph (grad_fn.register_hook, "
        "register_prehook); that node stands for many of eager's. Use Tensor.register_hook, or run this part eagerly "
        "(stator.disable)"
    )


_LINK_NODE._register_hook_dict = _note_hooks
_LINK_NODE.register_prehook = _LINK_NODE.register_hook = refuse_hooks


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
        hooked = any(ctx.hooks.values()) or (ctx.linked is not None and any(ctx.linked.hooks.values()))
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


class _HookedInside(torch.autograd.Function):
    """apply(step_node, *gradients): the gradients, of a program that has gradient hooks of its own.

    They were computed from the inputs once more. Such a hook would see parts where eager's sees a sum, if they were
    differentiated together with the results themselves, or with gradients of another backward.
    """

    @staticmethod
    def forward(ctx: Any, step_node: Any, *gradients: Any) -> Any:
        ctx.step_node, ctx.run = step_node, object()
        ctx.set_materialize_grads(False)
        with below_autograd():  # nobody's views
            found = [one if one is None else aten.alias.default(one) for one in gradients]
        pairs = zip(found, gradients, strict=True)
        ctx.mark_non_differentiable(*[one for one, given in pairs if one is not None and not given.requires_grad])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        task = torch._C._current_graph_task_id()
        before = ctx.step_node.differentiated
        ctx.step_node.differentiated = task, ctx.run
        if will_run(ctx.step_node) or (before is not None and before[0] == task and before[1] is not ctx.run):
            raise RuntimeError(
                "stator: a backward of a compiled graph with gradient hooks of its own is differentiated again "
                "together with its results, or with another backward of these; run this part eagerly (stator.disable)"
            )
        return None, *tangents


def hooked_inside(step_node: Any, gradients: Sequence[Any]) -> Sequence[Any]:
    """The gradients, which raise when the program's own hooks would see only a part of what comes to them."""
    found: Sequence[Any] = _HookedInside.apply(step_node, *gradients)
    return found


def not_looked_at(step_node: Any, results: Sequence[Reference], gradients: Sequence[Any]) -> Sequence[Any]:
    """The gradients, which raise when they are differentiated in a backward that looks at results of the graph."""
    if not torch.is_grad_enabled():
        return gradients
    shown = unchanged(results).values()
    found: Sequence[Any] = _NotLookedAt.apply(step_node, results, len(gradients), *gradients, *shown)
    return found
