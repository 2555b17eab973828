"""Compiles a program that needs gradients: one forward and one backward graph inside an autograd function.
trace/joint.py and partition/ make the graphs; effects are replayed as in inference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from stator.base import counters, dumps, logs
from stator.base.errors import Unsupported
from stator.graph.functionalization.functionalize import Keep
from stator.graph.ir.captured_tensors import captured_tensors
from stator.graph.ir.traced import Fresh, Traced, ViewOfInput, ViewOfOutput
from stator.graph.printer import print_graph
from stator.graph.tracing.symbolic_inputs import with_symbols

from .autograd.autograd_step import CompiledStep
from .autograd.step_runner import effects_left, run_step_of_shown, runner, views_of_views
from .partition.call_costs import count_calls, too_small
from .partition.partition import Partition, partition
from .runtime.eager import python_function
from .runtime.overlap_check import OverlappingInputs
from .runtime.replay import is_flat, with_effects
from .trace.inference import (
    CompileGraph,
    Rewrite,
    are_separate,
    compile_traced,
    equalities_of,
    wrap,
)
from .trace.joint import Joint
from .trace.known_values import KnownValues
from .trace.retrace import RetraceableProgram


def compile_training(
    function: Callable[..., Any],
    example_inputs: Sequence[Any],
    compile_graph: CompileGraph,
    *,
    keep: Keep,
    rewrite: Rewrite | None = None,
    memory_budget: float = 1.0,
    shown: int = 0,
    known: KnownValues | None = None,
    leave_small: Callable[[str], object] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch calls (or any callable) that may need gradients, in the present grad mode.

    Returns a callable with equal arguments, results, effects and gradients. The forward compiles at once, a backward
    when it first runs. compile_graph: see `compile_inference`; memory_budget: see `partition`.

    leave_small: return `function` where the forward and the backward are small, and call `leave_small` with the reason:
    calls of the operators and of their own autograd nodes then cost less than a call of a compiled step.

    shown: the last so many results are tensors that exist already. The callable takes these behind its arguments, in
    order, and returns only the other results, which autograd then sees computed from these tensors.

    known: values of the program that the arguments tell.

    Raises Unsupported for what cannot be compiled, CompileError when tracing fails; run `function` itself then.
    """
    captured = captured_tensors(function, example_inputs) if isinstance(function, fx.GraphModule) else []
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)] + captured
    with counters.timed("aot"):
        program = RetraceableProgram(function, with_symbols(function, example_inputs), captured, keep, rewrite, known)
        joint = _trace(program, tensors)
    if not joint.differentiable and not shown:
        return _compile_without_gradients(program, joint, example_inputs, tensors, compile_graph)
    with counters.timed("partition"):
        parts = partition(joint, memory_budget)
    if leave_small and not shown:
        calls = count_calls(joint, parts, joint.link_nodes(), len(joint.groups))
        if reason := too_small(joint, calls):
            leave_small(reason)
            return python_function(function) if isinstance(function, fx.GraphModule) else function
    dumps.write("20_joint.py", lambda: print_graph(joint.graph))
    differentiable = frozenset(joint.differentiable)
    parts.forward.meta["mutated"] = [
        (index, position) for index, position in joint.traced.mutated if position not in differentiable
    ]
    parts.forward.meta["visible"] = joint.value_count  # the results behind these are for the backward
    _show(parts)
    compile_again = partial(compile_training, memory_budget=memory_budget)
    forward = compile_graph(parts.forward, [*tensors, *[example_inputs[at] for at in joint.traced.numbers]])
    step = CompiledStep(program, joint, parts, forward, compile_graph, compile_again)
    return _run_of_shown(step, shown) if shown else _run(step, tensors)


def _compile_without_gradients(
    program: RetraceableProgram,
    joint: Joint,
    example_inputs: Sequence[Any],
    tensors: Sequence[torch.Tensor],
    compile_graph: CompileGraph,
) -> Callable[..., Any]:
    """Compile a trace without differentiable results: it may take gradients inside, and return views with a history."""

    def compile_views(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        inner = compile_graph(graph, inputs)
        return views_of_views(joint, inner) if joint.links_effects else inner

    return compile_traced(
        program.function,
        effects_left(joint),
        example_inputs,
        tensors,
        program.captured,
        program.merge_equal,
        compile_views,
    )


def _show(parts: Partition) -> None:
    dumps.write("21_forward.py", lambda: print_graph(parts.forward))
    dumps.write("22_backward.py", lambda: print_graph(parts.backward))
    if logs.enabled("graph"):
        logs.log("graph", "forward graph:\n%s", print_graph(parts.forward))
        logs.log("graph", "backward graph:\n%s", print_graph(parts.backward))


def _run(step: CompiledStep, tensors: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """The callable that replaces the program."""
    program, traced = step.program, step.joint.traced
    inner = _with_gradients(runner(step))
    only_tensors = len(tensors) == len(program.inputs) and not program.captured
    if only_tensors and traced.is_plain and is_flat(traced):
        return inner
    equalities = equalities_of(tensors) if program.merge_equal else None
    return wrap(program.function, traced, _with_effects(step, inner), equalities, program.captured)


def _run_of_shown(step: CompiledStep, shown: int) -> Callable[..., Any]:
    """Like `_run`, where the last results exist already: see `compile_training`."""
    inner = _with_gradients(partial(run_step_of_shown, step, _places_of_shown(step.joint, shown)))
    run = _with_effects(step, inner)
    return lambda *arguments: run(arguments)[:-shown]


def _with_gradients(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Turn grad mode on around `inner`: the program itself turns it on for its differentiable results."""
    return inner if torch.is_grad_enabled() else torch.enable_grad()(inner)


def _with_effects(step: CompiledStep, inner: Callable[..., Any]) -> Callable[[Sequence[torch.Tensor]], Any]:
    return with_effects(effects_left(step.joint), inner, frozenset(step.joint.differentiable))


def _places_of_shown(joint: Joint, count: int) -> tuple[int, ...]:
    """Positions of the last results, as in `Joint.results`. Raises Unsupported where others share their memory."""
    traced = joint.traced
    first = len(traced.outputs) - count
    others = {output.position for output in traced.outputs[:first] if isinstance(output, (Fresh, ViewOfOutput))}
    places: dict[int, None] = {}
    for at, output in enumerate(traced.outputs[first:], joint.value_count + first):
        if isinstance(output, Fresh):
            places[output.position] = None
        elif isinstance(output, (ViewOfOutput, ViewOfInput)):
            places[at] = None
        if isinstance(output, (Fresh, ViewOfOutput)) and output.position in others:
            break
    if len(places) < count or traced.mutated or traced.fixed_offsets:
        raise Unsupported("aliased-gradient", "a gradient shares its memory with a result")
    return tuple(places)


def _trace(program: RetraceableProgram, tensors: Sequence[torch.Tensor]) -> Joint:
    """Trace with distinct inputs. If a written input shares memory, trace again with equal inputs merged."""
    joint = program.trace()
    if _are_separate(joint.traced, tensors):
        return joint
    program.merge_equal = True
    joint = program.trace()
    if not _are_separate(joint.traced, tensors, merged=True):
        raise OverlappingInputs
    return joint


def _are_separate(traced: Traced, tensors: Sequence[torch.Tensor], merged: bool = False) -> bool:
    """Whether `inference.are_separate` holds, and no written storage belongs to several inputs that autograd tracks. A
    write would give each of these inputs a new history."""
    if not are_separate(traced, tensors, merged):
        return False
    owners: defaultdict[int, set[int]] = defaultdict(set)
    for tensor in tensors:
        owners[tensor.untyped_storage()._cdata].add(id(tensor))
    written = {tensors[index].untyped_storage()._cdata for index, _ in traced.mutated}
    shared = {storage for storage in written if len(owners[storage]) > 1}
    return not any(tensor.requires_grad and tensor.untyped_storage()._cdata in shared for tensor in tensors)
