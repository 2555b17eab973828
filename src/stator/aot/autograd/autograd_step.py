"""A compiled forward and its compiled backward graphs, as autograd needs them (step_function.py).

A backward is compiled when it is first needed, for the tangents that then exist; what the graphs contain is not decided
here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from stator.aot.lazy_inputs import compile_lying
from stator.aot.partition.partition import Partition, SavedInput, divide, saved_names, split
from stator.aot.runtime.backward import CompiledBackward, CompileGraph, dropped_unused, is_plain
from stator.aot.runtime.replaced_data import as_they_were, refused, replaced
from stator.aot.runtime.retained_saved_tensors import Kept, Reads
from stator.aot.runtime.saved_state import note_freed, saved_values, unchanged_inputs
from stator.aot.trace.batched_grads import is_batched, row_by_row
from stator.aot.trace.groups import Progress, all_tangents, asked_for, progress, run_in_one_thread
from stator.aot.trace.joint import Joint
from stator.aot.trace.joint_analysis import layouts, overwritten
from stator.aot.trace.multi_output_nodes import Handle, Shown, split_shown
from stator.aot.trace.output_autograd_nodes import (
    Linked,
    Reference,
    hooks_inside,
    not_looked_at,
    unchanged,
    with_hooked,
)
from stator.aot.trace.retrace import RetraceableProgram, apart
from stator.base import counters, logs
from stator.base.errors import CompileError, StatorError, Unsupported
from stator.base.locks import fork_safe_lock
from stator.base.signals import is_of_a_signal
from stator.graph.ir.traced import ViewOfInput
from stator.graph.subgraphs.differentiated import is_failure_of_hook
from stator.graph.subgraphs.generators import drawn_devices, replayed

Pattern = tuple[bool, ...]
# which values have a tangent, whether it stops there (see output_autograd_nodes.py), and by which primals it
# differentiates; None: by
# all
BackwardKind = tuple[Pattern, bool, tuple[int, ...] | None]
# the same to be differentiated again: the kind (or which values it starts from), which results of the forward it may be
# differentiated by, and what is known of the tangents
_SecondKey = tuple[BackwardKind | tuple[str, tuple[int, ...]], tuple[int, ...], tuple[Any, ...]]
# compile_training itself, handed over: a backward that is differentiated is compiled like any other program
CompileTraining = Callable[..., Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class _Second:
    """A backward that is differentiated again. kind: what tells it from others of its step; the rest are arguments of
    `Program.gradients`."""

    kind: BackwardKind | tuple[str, tuple[int, ...]]
    positions: Sequence[int]
    targets: Sequence[int] | None
    stops: Sequence[int]
    by: frozenset[int] | None = None


class CompiledStep:
    """A program compiled for training: its forward, and what makes its backwards."""

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
        self.placed = tuple(
            sorted(saved_inputs | (joint.savers.itself - self.mutated))
        )  # whose memory may not be replaced
        self.devices = drawn_devices(joint.graph)
        self.behind = {one.position: one.behind for one in joint.links if not joint.is_view(one.position)}
        # of what can be differentiated, the places among the results of the function, where what is hidden comes last
        visible = [position for position in joint.differentiable if position < joint.first_hidden]
        self.slots = (*visible, *range(joint.value_count, joint.value_count + len(joint.hidden)))
        self.hidden = [(meta.shape, meta.dtype, meta.device) for meta in joint.hidden_metas]
        self.hidden_hooks = frozenset(joint.hidden).difference(joint.others)
        self.stops = tuple({position: None for behind in self.behind.values() for position in behind})
        # of results of one operator all, where something was computed from one
        together = [one for one in (*joint.together, *joint.parts) if not set(self.stops).isdisjoint(one)]
        self.hidden_parts = joint.others.keys() - set(joint.hidden)
        self.beside = {at: one for one in together for at in one if at is not None}
        views = [at for at in self.beside if joint.is_view(at)]
        # parts of inputs, whose memory is there as long as they are; and views beside others that nobody gets
        self.kept_parts = [at for at in self.hidden_parts if self._is_of_input(joint.others[at][0])]
        gone = self.hidden_parts.difference(self.kept_parts)
        self.partial = frozenset(at for at in views if not gone.isdisjoint(self.beside[at]))
        self.watched_results = sorted({*self.stops, *views}.difference(self.hidden_parts))  # hooks are called so
        self.is_tied = bool(joint.links or joint.hooked)
        self.saved = parts.saved
        self.groups = joint.groups
        self.layouts = layouts(joint) if joint.groups else {}
        self.in_one_thread = run_in_one_thread(joint.groups, {at: found[2] for at, found in self.layouts.items()})
        self.results = [position for position in joint.results if position < joint.value_count]
        self.leads_to_made = joint.leads_to_made and not joint.groups
        places = range(joint.primal_count + self.leads_to_made)
        # by the node of a call, where there are no groups
        self.led_to = tuple([at for at in places if at not in joint.unreached])
        # whether it matters which of them are asked for: not where each value leads to one place
        self.asks = bool(joint.savers.values) and any(one & (one - 1) for one in joint.savers.reach)
        watched_inputs, self.watched = joint.savers.watched(-1)
        self.is_watched = bool(watched_inputs or self.watched)
        self.watched_written = tuple([index for index in watched_inputs if index in self.mutated])
        self.places_kept: dict[int, list[int] | None] = {}  # by what was freed: see `_kept`
        self.is_single = joint.value_count == 1 and self.results == [0]
        self.is_plain = self.is_single and not (
            self.constant_positions
            or self.mutated
            or self.placed
            or self.devices
            or self.hidden
            or self.groups
            or self.saved
            or self.leads_to_made
            or joint.unreached
            or self.is_watched
        )
        self.lock = fork_safe_lock()
        self.names = saved_names(parts)
        self.backwards: dict[BackwardKind, CompiledBackward] = {}
        self.between: dict[
            tuple[int, ...], CompiledBackward
        ] = {}  # from values of one operator to the results right behind
        self.hooks: dict[
            tuple[int, ...], CompiledBackward
        ] = {}  # what the program's hooks on a value make of its tangent
        # the same three, to be differentiated again
        self.second: dict[_SecondKey, Callable[..., Any] | None] = {}
        full = tuple(position in joint.tangents for position in joint.differentiable)
        if not joint.hooked:
            self.backwards[full, False, None] = CompiledBackward(
                parts.backward, range(len(self.names)), joint.gradients, compile_graph
            )

    def _is_of_input(self, view: int) -> bool:
        """Whether the output at this position is a view of an input that is not written to."""
        output = self.joint.traced.outputs[view - self.joint.value_count]
        return isinstance(output, ViewOfInput) and output.index not in self.mutated

    @functools.cached_property
    def reads(self) -> Reads:
        """Of the backward for all tangents."""
        return Reads.of(self.parts.backward, len(self.names), self.joint.gradients)

    def backward_for(self, kind: BackwardKind) -> CompiledBackward:
        """The backward for the differentiable values that have a tangent."""
        found = self.backwards.get(kind)
        if found is None:
            with self.lock:
                found = self.backwards.get(kind) or self._trace_backward(
                    self._positions(kind[0]), None, self.stops if kind[1] else (), _set_of(kind[2])
                )
                self.backwards[kind] = found
        return found

    def _backward_between(self, positions: tuple[int, ...]) -> CompiledBackward:
        found = self.between.get(positions)
        if found is None:
            with self.lock:
                behind = self.behind[positions[0]]
                found = self.between.get(positions) or self._trace_backward(
                    positions, behind, self._stops_between(positions)
                )
                self.between[positions] = found
        return found

    def _backward_of_hook(self, positions: tuple[int, ...]) -> CompiledBackward:
        found = self.hooks.get(positions)
        if found is None:
            with self.lock:
                found = self.hooks.get(positions) or self._trace_backward(positions, positions, ())
                self.hooks[positions] = found
        return found

    def _trace_backward(
        self,
        positions: Sequence[int],
        targets: Sequence[int] | None,
        stops: Sequence[int],
        by: frozenset[int] | None = None,
    ) -> CompiledBackward:
        """Trace again with other tangents, and compute the backward from the values that the forward saves anyway.

        Tangents that are missing are not the same as zeros: what only they lead to has no gradient at all, and zero
        times infinity is not zero. Forward nodes have the same names each time the same program is traced.
        """
        with counters.timed("aot"):
            try:
                joint = self.program.trace(positions, targets, stops, by)
            except Unsupported as error:  # the hook is called now, in eager too
                if is_failure_of_hook(error.__cause__):
                    raise error.__cause__ from None  # type: ignore[misc]
                raise
            sides = divide(joint)
            known = set(self.names)
            parts = split(joint, sides, [node for node in sides.nodes if f"saved_{node.name}" in known])
        names = saved_names(parts)
        missing = [name for name in names if name not in known]
        if missing:
            raise CompileError("aot", f"a backward needs {', '.join(missing)}, which the forward did not save")
        read = dropped_unused(parts.backward, len(names))
        reads = [self.names.index(names[at]) for at in read]
        return CompiledBackward(parts.backward, reads, joint.gradients, self.compile_graph)

    def bits(self, pattern: Sequence[bool]) -> int:
        return sum([1 << at for at, present in enumerate(pattern) if present])

    def _kept(self, freed: int) -> list[int] | None:
        """Which saved values are still needed when this was freed in eager; None if nothing can be differentiated. Not
        those for a backward from one result to another: it computes the forward again."""
        if freed not in self.places_kept:
            left = self.joint.savers.left(freed)
            self.places_kept[freed] = self.reads.needed(left) if any(left) else None
        return self.places_kept[freed]

    def _primals(self, groups: Sequence[int]) -> tuple[int, ...] | None:
        """Of these groups; None where they are all."""
        if len(groups) == len(self.groups):
            return None
        return tuple(sorted(at for group in groups for at in self.groups[group].primals))

    def gradients_of_group(
        self, step_node: Any, index: int, tangents: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """Of one group of primals, when all tangents are there that lead to it: usually all that will come. Those of
        groups that need no others are computed with them, and kept until their nodes run."""
        state = progress(step_node)
        if index not in state.found:
            given = dict(zip(self.groups[index].positions, tangents, strict=True))
            if self.in_one_thread and (arrived := all_tangents(step_node, state, self.groups)) is not None:
                given = {**arrived, **given}
            together = self._computed_together(state, index, given)
            needed = state.open.intersection(together)
            state.done.update(together)
            pattern = tuple(given.get(position) is not None for position in self.joint.differentiable)
            present = [one for position in self.joint.differentiable if (one := given.get(position)) is not None]
            kind = pattern, looked_at(step_node), self._primals(together)
            found: Sequence[Any] = [None] * (self.joint.primal_count + 1)  # leaves that the program made come last
            if present:
                found = (*self.gradients(step_node, kind, present, state, needed), None)
            state.open -= needed
            for at in needed:
                state.found[at] = [found[primal] for primal in self.groups[at].primals]
        return state.found.pop(index)

    def _computed_together(
        self, state: Progress, index: int, given: Mapping[int, torch.Tensor | None]
    ) -> Sequence[int]:
        """The groups that are computed with that at `index`: those that need no other tangents; only those whose nodes
        run, if there is something to compute for others (not where the gradients are differentiated again)."""
        if not self.in_one_thread:  # the node of another may be running now
            return [index]
        able = [at for at, one in enumerate(self.groups) if at not in state.done and given.keys() >= set(one.positions)]
        led_to = [at for at in able if any(given[position] is not None for position in self.groups[at].positions)]
        if torch.is_grad_enabled() or state.open.issuperset(led_to):
            return able
        return [at for at in able if at in state.open]

    def gradients(
        self,
        step_node: Any,
        kind: BackwardKind,
        present: list[torch.Tensor],
        state: Progress | None = None,
        needed: Collection[int] = (),
    ) -> Sequence[torch.Tensor | None]:
        """Per primal. present: the tangents. state: of groups, where the backward may come again for others than those
        that are `needed` now."""
        pattern, stops, by = kind
        asked = state.asked if state is not None else asked_for(step_node, self.led_to) if self.asks else -1
        classes = self.joint.savers.run(self.bits(pattern), asked)
        saved = saved_values(step_node, classes)
        if state is not None:  # not before: who comes last frees what was saved
            state.open.difference_update(needed)
        kept: Kept | None = step_node.kept
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        moved = replaced(step_node)
        run_eagerly = self._ready_to_run_eagerly(step_node, moved) if moved else None
        if torch.is_grad_enabled():
            if not keep:
                note_freed(step_node, classes)
                if saved and kept is None:  # the gradients lead through here again, past what eager has not freed
                    step_node.kept = Kept.of(range(len(saved)), saved)
            return self.twice_differentiable(kind, step_node, present)
        if not keep:
            freed = note_freed(step_node, classes)
            if state is None or not state.open:
                self._free(step_node, freed, saved)
        if run_eagerly is not None:
            return run_eagerly(kind, present)
        if kept is not None:  # not all is there any more
            wanted = [at for at in range(self.joint.primal_count) if asked >> at & 1 and (by is None or at in by)]
            kind = pattern, stops, tuple(wanted)
        backward = self.backward_for(kind)
        if kept is not None and not backward.can_run(saved):
            return self.twice_differentiable(kind, step_node, present)
        return backward(saved, present)

    def _ready_to_run_eagerly(
        self, step_node: Any, moved: Sequence[int]
    ) -> Callable[[BackwardKind, Sequence[torch.Tensor]], Sequence[torch.Tensor | None]]:
        """What computes gradients per primal as eager does where other memory was put in the place of these primals."""
        drawn_otherwise = self.devices and self.program.rewrite is not None
        computed_again = any(
            "checkpoint" in node.meta for node in self.joint.graph.graph.nodes
        )  # by eager, from new data
        if torch.is_grad_enabled() or step_node.kept is not None or drawn_otherwise or computed_again:
            raise refused(step_node.primals[moved[0]][0])
        given, states = step_node.primals, step_node.states
        primals = as_they_were(step_node, self.joint.graph.graph, moved)

        def run(kind: BackwardKind, tangents: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
            by = _set_of(kind[2])
            with replayed(states), torch.enable_grad():
                handles = self.program.handles(self.joint, primals)
            for at in moved:
                primals[at].data = given[at][0].detach()
            stops = self.stops if kind[1] else ()
            positions = self._positions(kind[0])
            gradients = self.program.gradients(self.joint, positions, None, stops, by, (), handles)
            found = iter(gradients(*primals, *tangents))
            sought = [one.requires_grad and (by is None or at in by) for at, one in enumerate(primals)]
            one: torch.Tensor | None
            return [None if not asked or (one := next(found)) is None else one.detach() for asked in sought]

        return run

    def _free(self, step_node: Any, freed: int, saved: Sequence[Any]) -> None:
        """What nothing needs that can still be differentiated when this was freed in eager."""
        places = self._kept(freed)
        if self.parts.saved:
            step_node.kept = None if places is None else Kept.of(places, saved)
            step_node.maybe_clear_saved_tensors()
        if places is None:
            step_node.primals = step_node.places = ()

    def _positions(self, pattern: Pattern) -> list[int]:
        return [p for p, present in zip(self.joint.differentiable, pattern, strict=True) if present]

    def twice_differentiable(self, kind: BackwardKind, step_node: Any, tangents: Sequence[Any]) -> list[Any]:
        """Gradients per primal that can be differentiated again: the backward is a program compiled like any other.

        It computes the forward once more, with the random numbers that were drawn then. step_node: autograd's node of
        the call.
        """
        by = _set_of(kind[2])
        second = _Second(kind, self._positions(kind[0]), None, self.stops if kind[1] else (), by)
        found = iter(self._run_again(second, step_node, tangents))
        return [
            None if not entry[0].requires_grad or (by is not None and at not in by) else next(found)
            for at, entry in enumerate(step_node.primals)
        ]

    def gradients_between(
        self, step_node: Any, positions: Sequence[int], tangents: Sequence[torch.Tensor]
    ) -> Sequence[Any]:
        """What reaches the results right behind the values at `positions`, which are of one operator and have these
        tangents."""
        behind = self.behind[positions[0]]
        if self.joint.hooks_inside:
            _check_apart(step_node, behind)
        second = _Second(("between", tuple(positions)), positions, behind, self._stops_between(positions))
        return self._on_the_way(step_node, tangents, self._backward_between, second)

    def _stops_between(self, positions: Sequence[int]) -> tuple[int, ...]:
        """The tangents of what is hidden have been through its hooks, as those of results have."""
        return (*self.behind[positions[0]], *[position for position in positions if position in self.joint.hidden])

    def hooked(self, step_node: Any, position: int, tangent: torch.Tensor | None) -> torch.Tensor | None:
        """What the program's hooks on the value at `position` make of its tangent."""
        if tangent is None:
            failure = self.joint.failures.get(position)
            if failure is not None:
                raise failure[0](*failure[1])
            return None
        second = _Second(("hooks", (position,)), (position,), (position,), ())
        return self._on_the_way(step_node, [tangent], self._backward_of_hook, second)[0]

    def _on_the_way(
        self,
        step_node: Any,
        tangents: Sequence[torch.Tensor],
        backward_for: Callable[[tuple[int, ...]], CompiledBackward],
        second: _Second,
    ) -> Sequence[Any]:
        savers, positions = self.joint.savers, tuple(second.positions)
        places = sum([1 << savers.places[target] for target in second.targets or () if target not in positions])
        classes = savers.run(self.bits([position in positions for position in self.joint.differentiable]), places)
        saved = saved_values(step_node, classes)
        if moved := replaced(step_node):
            raise refused(step_node.primals[moved[0]][0])
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            note_freed(step_node, classes)
        if not torch.is_grad_enabled():
            try:
                backward = backward_for(positions)
                if backward.can_run(saved):
                    return backward(saved, tangents)
            except StatorError as error:
                logs.warn_once(
                    f"aot:between:{error}", f"stator: a backward between results computes the forward again. {error}"
                )
        return self._run_again(second, step_node, tangents)

    def _run_again(
        self,
        second: _Second,
        step_node: Any,
        tangents: Sequence[torch.Tensor],
    ) -> Sequence[Any]:
        """Run `Program.gradients`. They can be differentiated by results of the forward that still exist."""
        if torch.is_grad_enabled() and is_batched(tangents):
            return row_by_row(partial(self._run_again, second, step_node), tangents)
        primals = unchanged_inputs(step_node.primals)
        linked: Linked | None = step_node.linked
        results: Sequence[Reference] = step_node.results
        again = torch.is_grad_enabled()
        inside = self.joint.hooks_inside and again
        shown = unchanged(results) if again and not inside else {}
        if linked is not None and again and not inside:
            shown.update(linked.stand_ins(shown))
        visible, others = split_shown(shown, self.joint.others, self.beside)
        stops = with_hooked(second.stops, self.joint.hooked, second.targets)
        gradients = partial(self.program.gradients, self.joint, second.positions, second.targets, stops, second.by)
        plain = all(map(is_plain, tangents))  # not batched by vmap, nor of a subclass: the operators know what to do
        run = None
        if plain and not (inside and self._is_part(second)):
            key = second.kind, (*visible, *others), tuple([_compiled_for(tangent) for tangent in tangents])
            shape = len(visible), tuple(others.values())
            run = self._compiled_gradients(key, gradients(tuple(visible)), [*primals, *tangents], shape)
        inside = inside or (run is None and bool(self.hidden_hooks) and again)
        handles = None
        if run is None:
            primals = apart(primals)
            if inside and self._is_part(second):
                handles, primals = self._handles_of_backward(step_node, primals)
        with replayed(step_node.states):
            if run is not None:
                found = run(*primals, *tangents, *[shown[at] for at in (*visible, *others)])
            else:
                found = gradients((), handles)(*primals, *tangents)
        if inside and plain:
            return hooks_inside(step_node, results, object() if handles is None else handles, found)
        missed = (run is None and shown) or (linked is not None and linked.hooked_in_passing(shown))
        missed = missed or any(hooks and at not in shown for at, hooks in step_node.hooks.items())
        return not_looked_at(step_node, results, found) if plain and missed else found

    def _is_part(self, second: _Second) -> bool:
        """Whether the running backward may come for other gradients of the same call."""
        return second.targets is not None or bool(second.kind[1] or self.joint.hooked) or second.by is not None

    def _handles_of_backward(
        self, step_node: Any, primals: list[torch.Tensor]
    ) -> tuple[dict[int, Handle], list[torch.Tensor]]:
        """The program run once for all parts of the running backward, and the primals that it was run on: a hook inside
        of it, when these parts are differentiated, has to see the sum of what reaches it from them."""
        if self.devices and self.program.rewrite is not None:  # eager would draw other numbers than the forward did
            raise RuntimeError(
                "stator: the backward of a compiled graph with random numbers and gradient hooks cannot be "
                "differentiated again; compile with the option exact_random, or run this part eagerly (stator.disable)"
            )
        task = torch._C._current_graph_task_id()
        known = getattr(step_node, "again", None)
        if known is None or known[0] != task:
            with replayed(step_node.states), torch.enable_grad():
                known = step_node.again = (task, self.program.handles(self.joint, primals), primals)
        handles: dict[int, Handle] = known[1]
        return handles, known[2]

    def _compiled_gradients(
        self, key: _SecondKey, gradients: Callable[..., Any], arguments: Sequence[torch.Tensor], shown: Shown
    ) -> Callable[..., Any] | None:
        if key not in self.second:
            with self.lock:
                if key not in self.second:
                    self.second[key] = self._compile_gradients(gradients, arguments, shown)
        return self.second[key]

    def _compile_gradients(
        self, gradients: Callable[..., Any], arguments: Sequence[torch.Tensor], shown: Shown
    ) -> Callable[..., Any] | None:
        try:
            compile_function = partial(
                self.compile_training,
                compile_graph=self.compile_graph,
                keep=self.program.keep,
                rewrite=self.program.rewrite,
                shown=shown,
            )
            return compile_lying(gradients, arguments, compile_function)
        except Exception as error:  # a defect of ours must not end the user's backward
            if is_of_a_signal(error):
                raise
            kind = "" if isinstance(error, StatorError) else f"{type(error).__name__}: "
            if self.devices and self.program.rewrite is not None:  # eager would draw other numbers than the forward did
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


def _set_of(primals: Sequence[int] | None) -> frozenset[int] | None:
    return None if primals is None else frozenset(primals)


def _compiled_for(tangent: torch.Tensor) -> tuple[bool, tuple[int, ...], int]:
    """What a compiled second derivative relies on: whether it is differentiated by the tangent, and the layout."""
    return tangent.requires_grad, tangent.stride(), torch._C._dispatch_keys(tangent).raw_repr()


def looked_at(step_node: Any) -> bool:
    return step_node.linked is not None and step_node.linked.looked_at


def _check_apart(step_node: Any, behind: Sequence[int]) -> None:
    """Raise RuntimeError when gradients that are computed one by one may meet at a hook inside of the program, before
    results that are behind both: it would see them one by one."""
    task = torch._C._current_graph_task_id()
    known = getattr(step_node, "met", None)
    met = known[1] if known is not None and known[0] == task else frozenset()
    if not met.isdisjoint(behind):
        raise RuntimeError(
            "stator: somebody looks at gradients of results of a compiled graph (hooks, a retained gradient, "
            "torch.autograd.grad) which has gradient hooks on what several results were computed from; "
            "run this part eagerly (stator.disable)"
        )
    step_node.met = (task, met.union(behind))
