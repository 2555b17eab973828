"""A compiled forward and its compiled backward graphs, for the autograd function of step_function.py.

A backward is compiled when it is first needed, for the tangents that then exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from stator.aot.partition.fewer_tangents import without_tangents
from stator.aot.partition.forward_backward_sets import divide_joint
from stator.aot.partition.partition import (
    Partition,
    Saved,
    SavedInput,
    bind_free_symbols,
    saved_names,
    split_joint,
)
from stator.aot.runtime.backward import CompiledBackward, CompileGraph, drop_unused_saved, is_plain
from stator.aot.runtime.replaced_data import primals_on_old_memory, replaced_primals, replacement_error
from stator.aot.runtime.saved_state import RetainedValues, note_freed, saved_values, tangents_by_saved, unchanged_inputs
from stator.aot.runtime.symbolic_backward import SymbolicBackward
from stator.aot.trace.batched_grads import is_batched, row_by_row
from stator.aot.trace.input_groups import pending_values, progress_of
from stator.aot.trace.joint import Joint, overwritten
from stator.aot.trace.known_values import KnownValues
from stator.aot.trace.output_autograd_nodes import (
    LinkedResults,
    Reference,
    refuse_observed_results,
    unchanged_results,
)
from stator.aot.trace.retrace import RetraceableProgram, alias_primals
from stator.base import counters, logs
from stator.base.errors import CompileError, StatorError
from stator.base.locks import fork_safe_lock
from stator.base.signals import raised_by_signal_handler
from stator.graph.ir.size_bindings import environment_of, size_reader
from stator.graph.subgraphs.generators import random_devices, replay_random_numbers
from stator.runtime.launch import step_forward
from stator.shapes.expr import Symbol


@dataclass(frozen=True, slots=True)
class GradientRequest:
    """Gradients that a backward computes: of the forward values at `positions`, by the forward values `targets` or by
    the primals `by` (None: all primals). stops: values where gradients stop, see
    `output_autograd_nodes.gradients_between`.
    """

    positions: tuple[int, ...]
    targets: tuple[int, ...] | None = None
    stops: tuple[int, ...] = ()
    by: frozenset[int] | None = None


# The request of a twice differentiable backward, the results of the forward that it may be differentiated by, facts of
# its tangents, strides of the known values, and the values of symbols: it is compiled for fixed sizes
_SecondKey = tuple[GradientRequest, tuple[int, ...], tuple[Any, ...], tuple[Any, ...], tuple[int, ...]]
_Given = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]  # primals and tangents, and known values behind them
Backward = CompiledBackward | SymbolicBackward
# Backwards for some of the primals that a step compiles; it computes all gradients for others
_MOST_PARTIAL = 4
# Second derivatives that a step with symbolic sizes compiles; it runs eagerly for more sizes
_MOST_SECOND = 8
# compile_training itself: a backward that is differentiated is compiled like any other program
CompileTraining = Callable[..., Callable[..., Any]]


class CompiledStep:
    """A program compiled for training: its forward, and its backwards, compiled on demand."""

    def __init__(
        self,
        program: RetraceableProgram,
        joint: Joint,
        parts: Partition,
        forward: Callable[..., Sequence[Any]],
        compile_graph: CompileGraph,
        compile_training: CompileTraining,
    ) -> None:
        self.program, self.joint, self.parts, self.forward = program, joint, parts, forward
        self.compile_graph, self.compile_training = compile_graph, compile_training
        differentiable = set(joint.differentiable)
        self.constant_positions = [p for p in range(joint.value_count) if p not in differentiable]
        self.mutated = frozenset(index for index, _ in joint.traced.mutated)
        self.overwritten = overwritten(joint)
        saved_inputs = {saved.index for saved in parts.saved if isinstance(saved, SavedInput)}
        # inputs whose memory may not be replaced before the backward
        self.placed = tuple(sorted(saved_inputs | (joint.savers.inputs - self.mutated)))
        self.devices = random_devices(joint.graph)
        self.behind = {one.position: one.behind for one in joint.links if not joint.is_view(one.position)}
        self.stops = tuple(dict.fromkeys(position for behind in self.behind.values() for position in behind))
        self.saved = parts.saved
        self.value_count = joint.value_count
        self.groups = joint.groups
        self.results = [position for position in joint.results if position < joint.value_count]
        self.leads_to_made = joint.leads_to_made and not joint.groups
        self.needed_places: dict[int, list[int] | None] = {}  # see `_still_needed`
        everything = (1 << len(joint.differentiable)) - 1
        self.frees = joint.savers.freed_by(everything)  # values, as bits
        # the primals at autograd's edges of the step, and the last of these edges that leads to a gradient
        unreached = frozenset(joint.unreached)
        self.at_edges = [at for at in range(joint.primal_count) if at not in unreached]
        with_gradient = [edge for edge, at in enumerate(self.at_edges) if joint.gradients[at] is not None]
        self.last_edge = with_gradient[-1] if with_gradient else None
        # whether a backward of all values frees all that the step saved
        self.frees_all = self.frees in ((everything,) if self.saved else (0, everything))
        # for `OrdinaryStepFunction`: a call only computes values. If the forward is native, it may also write inputs
        # that no gradient depends on
        self.is_ordinary = bool(joint.differentiable) and not (
            joint.groups or joint.leads_to_made or joint.unreached or joint.links_effects
        )
        if self.mutated:
            self.is_ordinary &= step_forward is not None and self.mutated == self.overwritten and not joint.links
        self.select_saved = _selection(parts.saved)
        # saved values that only the backward knows: one that is differentiated reads them, too
        self.known = [] if self.devices else [at for at, saved in enumerate(parts.saved) if self._is_hidden(saved)]
        # forward values that the backward reads; other saved results are never seen by autograd
        positions = {saved.position for saved in parts.saved if not isinstance(saved, SavedInput)}
        self.saved_value_places = [at for at in positions if at < self.value_count]
        self.number_count = len(joint.traced.numbers)
        self.symbols = (*joint.bindings, *joint.unknown)
        self.sizes_of = _size_notes(joint)
        self.environment = environment_of(joint.graph.graph)
        # the facts that the caller checks before the forward; later ones are checked here
        self.guarded = 0 if self.environment is None else len(self.environment.facts)
        self.lock = fork_safe_lock()
        self.names = saved_names(parts)
        self.whole = self._backward(parts.backward, range(len(self.names)), joint.gradients)
        self.backwards: dict[GradientRequest, Backward] = {GradientRequest(joint.tangents): self.whole}
        self.second: dict[_SecondKey, Callable[..., Any] | None] = {}

    def request(
        self, positions: tuple[int, ...], is_observed: bool, by: frozenset[int] | None = None
    ) -> GradientRequest:
        """observed: whether nodes of results have already handed out the gradients of earlier results."""
        return GradientRequest(positions, None, self.stops if is_observed else (), by)

    def asked_by(self, step_node: Any) -> frozenset[int] | None:
        """The primals whose gradients the running backward uses: `torch.autograd.grad` asks for some. None for all."""
        if self.leads_to_made or asks_for_all(step_node, self.last_edge):
            return None
        edges = step_node.next_functions
        asked = [
            at for at, (node, _) in zip(self.at_edges, edges, strict=False) if node and will_use(node) is not False
        ]
        return self._few_of(frozenset(asked))

    def _few_of(self, by: frozenset[int]) -> frozenset[int] | None:
        """These primals, or None where gradients of enough other sets of primals have been compiled."""
        requests = (*self.backwards, *[key[0] for key in self.second])
        partial_ones = {request.by for request in requests if request.by is not None}
        return by if by in partial_ones or len(partial_ones) < _MOST_PARTIAL else None

    @functools.cached_property
    def readers(self) -> tuple[int, ...]:
        """For each saved value, the values whose tangents the backward combines it with, as bits."""
        return tangents_by_saved(self.parts.backward, len(self.names))

    def _backward(self, graph: fx.GraphModule, reads: Sequence[int], gradients: Sequence[int | None]) -> Backward:
        if self.environment is None:
            return CompiledBackward.of(graph, reads, gradients, self.compile_graph)
        known = self.symbols, self.environment, self.guarded
        return SymbolicBackward(graph, reads, gradients, self.compile_graph, *known)

    def _sizes(self, step_node: Any) -> dict[Symbol, int]:
        """The values of symbols in a call."""
        return dict(zip(self.symbols, step_node.sizes, strict=True))

    def backward_for(self, request: GradientRequest) -> Backward:
        found = self.backwards.get(request)
        if found is None:
            with self.lock:
                found = self.backwards.get(request) or self._trace_backward(request)
                self.backwards[request] = found
        return found

    def _trace_backward(self, request: GradientRequest) -> Backward:
        """The backward for other tangents, from the values that the forward saves anyway; traced again where needed.

        A missing tangent differs from zeros: values that only it leads to get no gradient, and zero times infinity is
        not zero. Forward nodes get equal names in every trace of a program.
        """
        with counters.timed("aot"):
            fewer = self._without_tangents(request)
            if fewer is not None:
                return fewer
            joint = self.program.trace(request.positions, request.targets, request.stops, request.by)
            sides = divide_joint(joint)
            known = set(self.names)
            parts = split_joint(joint, sides, [node for node in sides.nodes if f"saved_{node.name}" in known])
        names = saved_names(parts)
        missing = [name for name in names if name not in known]
        if missing:
            raise CompileError("aot", f"a backward needs {', '.join(missing)}, which the forward did not save")
        read = drop_unused_saved(parts.backward, len(names))
        bind_free_symbols(parts.backward.graph, self.environment)
        reads = [self.names.index(names[at]) for at in read]
        return self._backward(parts.backward, reads, joint.gradients)

    def _without_tangents(self, request: GradientRequest) -> Backward | None:
        """The backward without tangents that are only added to gradients; None where it has to be traced."""
        if request != GradientRequest(request.positions):
            return None
        given, summed, count = self.joint.tangents, self.joint.summed, len(self.names)
        kept = [at in request.positions for at in given]
        if not all(one or at in summed for at, one in zip(given, kept, strict=True)):
            return None
        graph = without_tangents(self.parts.backward, count, kept)
        if graph is None:
            return None
        bind_free_symbols(graph.graph, self.environment)
        return self._backward(graph, range(count), self.joint.gradients)

    def _bits(self, positions: Collection[int]) -> int:
        return sum([1 << place for place, at in enumerate(self.joint.differentiable) if at in positions])

    def _still_needed(self, freed: int) -> list[int] | None:
        """Positions of the saved values that are still needed once `freed` is freed; None if no value is
        differentiable."""
        if freed not in self.needed_places:
            left = ~freed & ((1 << len(self.joint.differentiable)) - 1)
            needed = [at for at, readers in enumerate(self.readers) if readers & left]
            self.needed_places[freed] = needed if left else None
        return self.needed_places[freed]

    def gradients_of_group(self, step_node: Any, index: int) -> Sequence[torch.Tensor | None]:
        """Gradients of one group of primals, once all tangents that lead to it have arrived, or will not. Groups whose
        tangents have all arrived are computed together, and their gradients kept until their nodes run."""
        state = progress_of(step_node)
        if index not in state.found:
            waiting = pending_values(step_node, state)
            able = [
                at
                for at, group in enumerate(self.groups)
                if at == index or (at not in state.done and waiting.isdisjoint(group.positions))
            ]
            given = {at: one for at, one in state.arrived.items() if one is not None}
            led_to = [at for at in able if not given.keys().isdisjoint(self.groups[at].positions)]
            if not torch.is_grad_enabled() and not state.open.issuperset(led_to):
                able = [at for at in able if at in state.open]  # groups whose nodes run
            needed = state.open.intersection(able)
            state.done.update(able)
            positions = {position for at in able for position in self.groups[at].positions}
            left = {at for group in state.open - needed for at in self.groups[group].positions}
            for at in positions - left:
                state.arrived.pop(at, None)
            present = tuple([at for at in self.joint.differentiable if at in given and at in positions])
            tangents = [given[at] for at in present]
            del given
            found: Sequence[Any] = [None] * (self.joint.primal_count + 1)  # leaves that the program made come last
            state.open -= needed
            if present:
                by = None
                if len(able) < len(self.groups):
                    by = self._few_of(frozenset(primal for at in able for primal in self.groups[at].primals))
                request = self.request(present, is_observed(step_node), by)
                found = (*self.gradients(step_node, request, tangents, last=not state.open), None)
            for at in needed:
                state.found[at] = [found[primal] for primal in self.groups[at].primals]
        return state.found.pop(index)

    def gradients(
        self, step_node: Any, request: GradientRequest, present: list[torch.Tensor], last: bool = True
    ) -> Sequence[torch.Tensor | None]:
        """Gradients per primal. present: the tangents.
        last: whether the running backward needs no more gradients of this call.
        """
        values = self._bits(request.positions)
        saved = saved_values(step_node, values)
        kept: RetainedValues | None = step_node.kept
        moved = replaced_primals(step_node)
        run_eagerly = self._ready_to_run_eagerly(step_node, moved) if moved else None
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            freed = note_freed(step_node, self.joint.savers.freed_by(values))
            if last and not torch.is_grad_enabled():
                self.free(step_node, freed, saved)
        if torch.is_grad_enabled():
            return self.twice_differentiable(request, step_node, present, self._known(saved))
        if run_eagerly is not None:
            return run_eagerly(request, present)
        backward = self._at_sizes(self.backward_for(request), step_node)
        if backward is None or (kept is not None and not backward.can_run(saved)):
            return self.twice_differentiable(request, step_node, present, self._known(saved))
        return backward(backward.arguments(saved, present))[1:]

    def _at_sizes(self, backward: Backward, step_node: Any) -> CompiledBackward | None:
        """The backward for the sizes of a call; None if it was traced under assumptions that these do not meet."""
        if isinstance(backward, CompiledBackward):
            return backward
        return backward.at(step_node.sizes) if backward.fits(step_node.sizes) else None

    def _ready_to_run_eagerly(
        self, step_node: Any, moved: Sequence[int]
    ) -> Callable[[GradientRequest, Sequence[torch.Tensor]], Sequence[torch.Tensor | None]]:
        """A function that computes gradients per primal as eager does, where the memory of primals `moved` was
        replaced."""
        draws_other_numbers = self.devices and self.program.rewrite is not None
        computed_again = any(
            "checkpoint" in node.meta for node in self.joint.graph.graph.nodes
        )  # eager would compute checkpoints again from the new data
        if torch.is_grad_enabled() or step_node.kept is not None or draws_other_numbers or computed_again:
            raise replacement_error(step_node.primals[moved[0]])
        given, states = step_node.primals, step_node.states
        sizes = self._sizes(step_node)
        primals = primals_on_old_memory(step_node, self.joint.graph.graph, moved, sizes)

        def run(request: GradientRequest, tangents: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
            by = request.by
            with replay_random_numbers(states), torch.enable_grad():
                handles = self.program.handles(self.joint, primals, sizes)
            for at in moved:
                primals[at].data = given[at].detach()
            gradients = self.program.gradients(self.joint, request.positions, None, request.stops, by, (), handles)
            found = iter(gradients(*primals, *tangents))
            sought = [one.requires_grad and (by is None or at in by) for at, one in enumerate(primals)]
            one: torch.Tensor | None
            return [None if not asked or (one := next(found)) is None else one.detach() for asked in sought]

        return run

    def free(self, step_node: Any, freed: int, saved: Sequence[Any]) -> None:
        """Free the saved values that no differentiable value needs after eager's backward has freed `freed`."""
        places = self._still_needed(freed)
        if self.parts.saved:
            step_node.kept = None if places is None else RetainedValues.of(places, saved)
            step_node.drop_saved()
        if places is None:
            step_node.primals = step_node.memory = ()

    def twice_differentiable(
        self, request: GradientRequest, step_node: Any, tangents: Sequence[Any], known: Sequence[torch.Tensor]
    ) -> list[Any]:
        """Gradients per primal that can be differentiated again: the backward is compiled like any other program. It
        computes again what it needs of the forward, with the forward's random numbers, except the values `known`.
        step_node: autograd's node of the call."""
        found = iter(self._run_again(request, step_node, known, tangents))
        return [
            None if not primal.requires_grad or (request.by is not None and at not in request.by) else next(found)
            for at, primal in enumerate(step_node.primals)
        ]

    def gradients_between(self, step_node: Any, position: int, tangent: torch.Tensor) -> Sequence[Any]:
        """Gradients of the results right behind the value at this position, which has this tangent."""
        behind = self.behind[position]
        request = GradientRequest((position,), behind, behind)
        saved = saved_values(step_node, self._bits(request.positions))
        known = self._known(saved)
        if moved := replaced_primals(step_node):
            raise replacement_error(step_node.primals[moved[0]])
        if not torch.is_grad_enabled():
            try:
                backward = self._at_sizes(self.backward_for(request), step_node)
                if backward is not None and backward.can_run(saved):
                    return backward(backward.arguments(saved, [tangent]))[1:]
            except StatorError as error:
                logs.warn_once(
                    f"aot:between:{error}", f"stator: a backward between results computes the forward again. {error}"
                )
        return self._run_again(request, step_node, known, [tangent])

    def _is_hidden(self, saved: Saved) -> bool:
        return not isinstance(saved, SavedInput) and saved.position >= self.value_count

    def _known(self, saved: Sequence[Any]) -> list[torch.Tensor]:
        """The values of `self.known` among the saved values of a call; none if one is freed, or not a plain tensor."""
        known = [saved[at] for at in self.known]
        return known if all(value is not None and is_plain(value) for value in known) else []

    def _run_again(
        self,
        request: GradientRequest,
        step_node: Any,
        known: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor],
    ) -> Sequence[Any]:
        """Run `RetraceableProgram.gradients`, differentiable by those results of the forward that still exist."""
        again = torch.is_grad_enabled()
        if again and is_batched(tangents):
            return row_by_row(partial(self._run_again, request, step_node, known), tangents)
        primals = unchanged_inputs(step_node.primals, step_node.versions)
        linked: LinkedResults | None = step_node.linked
        results: Sequence[Reference] = step_node.results
        shown = unchanged_results(results) if again else {}
        gradients = partial(
            self.program.gradients,
            self.joint,
            request.positions,
            request.targets,
            request.stops,
            request.by,
            sizes=self._sizes(step_node),
        )
        plain = all(map(is_plain, tangents))  # operators handle tensors that vmap batches, and subclasses
        run = None
        if plain:
            tangents, known = ([one.resolve_conj().resolve_neg() for one in given] for given in (tangents, known))
            facts = tuple([_compiled_for(tangent) for tangent in tangents])
            key = request, tuple(shown), facts, tuple([value.stride() for value in known]), step_node.sizes
            given = [*primals, *tangents], known
            run = self._compiled_gradients(key, gradients(tuple(shown)), given, self._sizes(step_node))
        with replay_random_numbers(step_node.states):
            if run is not None:
                found = run(*primals, *tangents, *known, *shown.values())
            else:
                found = gradients()(*alias_primals(primals), *tangents)
        hooks = step_node.hooks if linked is None else {**step_node.hooks, **linked.hooks}
        missed = (run is None and shown) or any(called and at not in shown for at, called in hooks.items())
        return refuse_observed_results(step_node, results, found) if plain and missed else found

    def _compiled_gradients(
        self, key: _SecondKey, gradients: Callable[..., Any], given: _Given, sizes: Mapping[Symbol, int]
    ) -> Callable[..., Any] | None:
        if key not in self.second:
            with self.lock:
                if len(self.second) >= _MOST_SECOND and self.environment is not None and not self.devices:
                    return None
                if key not in self.second:
                    self.second[key] = self._compile_gradients(gradients, given, len(key[1]), sizes)
        return self.second[key]

    def _compile_gradients(
        self, gradients: Callable[..., Any], given: _Given, shown: int, sizes: Mapping[Symbol, int]
    ) -> Callable[..., Any] | None:
        arguments, known = given
        try:
            compile_function = partial(
                self.compile_training,
                compile_graph=self.compile_graph,
                keep=self.program.keep,
                rewrite=self.program.rewrite,
                shown=shown,
                known=self._known_values(len(arguments), sizes) if known else None,
            )
            return compile_function(gradients, [*arguments, *known])
        except Exception as error:  # a defect of the compiler must not end the user's backward
            if raised_by_signal_handler(error):
                raise
            kind = "" if isinstance(error, StatorError) else f"{type(error).__name__}: "
            # running eagerly would draw other random numbers than the forward
            if self.devices and self.program.rewrite is not None:
                raise RuntimeError(
                    "stator: the backward of a compiled graph with random numbers cannot be differentiated again: "
                    f"{kind}{error}; compile with the option exact_random, or run this part eagerly (stator.disable)"
                ) from error
            logs.warn_once(
                f"aot:double-backward:{error}",
                "stator: a backward that is differentiated itself could not be compiled; it runs eagerly. "
                f"{kind}{error}",
            )
            return None

    def _known_values(self, first: int, sizes: Mapping[Symbol, int]) -> KnownValues:
        graph = self.joint.graph.graph
        nodes = {f"saved_{node.name}": node for node in graph.nodes}
        return KnownValues(
            graph, self.joint.primal_count, tuple([nodes[self.names[at]] for at in self.known]), first, sizes
        )


def _size_notes(joint: Joint) -> Callable[[Sequence[Any], Sequence[Any]], tuple[int, ...]] | None:
    """A function of the inputs and the results of the forward that returns the values of the step's symbols, which the
    inputs, or the last results, tell. None for a step without symbols."""
    if not joint.unknown and not joint.bindings:
        return None
    read, count = size_reader(joint.bindings), len(joint.unknown)
    if not count:
        return lambda inputs, results: read(inputs)
    return lambda inputs, results: (*read(inputs), *results[-count:])


def _selection(
    saved: Sequence[Saved],
) -> Callable[[Sequence[torch.Tensor], Sequence[Any]], tuple[Any, ...]]:
    """A function of primals and results that returns the saved ones. Written out as one expression: every forward calls
    it."""
    parts = [f"primals[{one.index}]" if isinstance(one, SavedInput) else f"results[{one.position}]" for one in saved]
    return eval(f"lambda primals, results: ({''.join(part + ', ' for part in parts)})")  # type: ignore[no-any-return]


def _compiled_for(tangent: torch.Tensor) -> tuple[bool, tuple[int, ...], int]:
    """Facts of a tangent that a compiled second derivative relies on: requires_grad, strides, dispatch keys."""
    return tangent.requires_grad, tangent.stride(), torch._C._dispatch_keys(tangent).raw_repr()


def asks_for_all(step_node: Any, edge: int | None) -> bool:
    """Whether the running backward computes what lies behind this edge of a node, and is not known to compute less than
    all gradients. edge: None if the node has no gradients."""
    return edge is None or will_use(step_node.next_functions[edge][0]) is True


def will_use(node: Any) -> bool | None:
    """Whether the running backward goes on to a node. None if it ends there: only `torch.autograd.grad` by a leaf does
    that, for which autograd has an error instead of an answer."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return None


def is_observed(step_node: Any) -> bool:
    """Whether gradients of the call's results are observed in the running backward."""
    return step_node.linked is not None and step_node.linked.observed
