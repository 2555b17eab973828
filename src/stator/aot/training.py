"""Compiling a program that needs gradients: one forward and one backward graph inside an autograd function.

What the graphs contain is decided in joint.py and partition.py; replay of effects is that of inference.
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
from stator.graph.ir.traced import Fresh, Traced, ViewOfInput, ViewOfOutput
from stator.graph.printer import print_graph
from stator.graph.subgraphs.custom_autograd import run_noting_choices

from .autograd.autograd_step import CompiledStep
from .autograd.running import effects_left, run_step_of_shown, runner, views_of_views
from .partition.missing_tangents import saved_otherwise
from .partition.partition import Partition, partition
from .runtime.replay import is_flat, with_effects
from .runtime.shared_memory import Otherwise, OverlappingInputs
from .trace.captured import captured_tensors
from .trace.inference import (
    CompileGraph,
    Rewrite,
    are_separate,
    compile_traced,
    equalities_of,
    refuse_dynamic,
    wrap,
    writes_of,
)
from .trace.joint import Joint
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
    otherwise: Otherwise | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch calls (or any callable) that may need gradients, in the grad mode of now.

    Returns a callable with the same arguments, results, effects and gradients. The forward is compiled at once, a
    backward when it is first asked for. compile_graph: see `compile_inference`; memory_budget: see `partition`;
    otherwise: see `shared_memory.CompileApart`, by default `function` itself.

    shown: so many results, the last ones, are tensors that exist, computed again: the callable takes those after its
    arguments, in the same order, and returns the other results alone, which autograd then sees computed from them.

    Raises Unsupported for what cannot be compiled, CompileError when tracing fails; run `function` itself then.
    """
    captured = captured_tensors(function, example_inputs) if isinstance(function, fx.GraphModule) else []
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)] + captured
    refuse_dynamic(example_inputs)
    with counters.timed("aot"):
        program = RetraceableProgram(function, example_inputs, captured, keep, rewrite)
        joint, chooses = run_noting_choices(partial(_trace, program, tensors))
    if not joint.differentiable and not shown:
        return _compile_without_gradients(program, joint, tensors, compile_graph, otherwise)
    dumps.write("20_joint.py", lambda: print_graph(joint.graph))
    with counters.timed("partition"):
        parts = partition(joint, memory_budget)
        if chooses and (more := saved_otherwise(program, joint, parts)):
            parts = partition(joint, memory_budget, more)
    differentiable = frozenset(joint.differentiable)
    parts.forward.meta["mutated"] = [
        (index, position) for index, position in joint.traced.mutated if position not in differentiable
    ]
    _show(parts)
    compile_again = partial(compile_training, memory_budget=memory_budget)
    step = CompiledStep(program, joint, parts, compile_graph(parts.forward, tensors), compile_graph, compile_again)
    return _run_of_shown(step, shown) if shown else _run(step, tensors, otherwise)


def _compile_without_gradients(
    program: RetraceableProgram,
    joint: Joint,
    tensors: Sequence[torch.Tensor],
    compile_graph: CompileGraph,
    otherwise: Otherwise | None,
) -> Callable[..., Any]:
    """Gradients may have been taken inside, and views may have a history: what was traced is the program."""

    def compile_views(graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Sequence[Any]]:
        inner = compile_graph(graph, inputs)
        return views_of_views(joint, inner) if joint.links_effects else inner

    return compile_traced(
        program.function,
        effects_left(joint),
        len(program.inputs),
        tensors,
        program.captured,
        program.merge_equal,
        compile_views,
        otherwise,
    )


def _show(parts: Partition) -> None:
    dumps.write("21_forward.py", lambda: print_graph(parts.forward))
    dumps.write("22_backward.py", lambda: print_graph(parts.backward))
    if logs.enabled("graph"):
        logs.log("graph", "forward graph:\n%s", print_graph(parts.forward))
        logs.log("graph", "backward graph:\n%s", print_graph(parts.backward))


def _run(step: CompiledStep, tensors: Sequence[torch.Tensor], otherwise: Otherwise | None) -> Callable[..., Any]:
    """What is called in the place of the program."""
    program, traced = step.program, step.joint.traced
    inner = _with_gradients(runner(step))
    only_tensors = len(tensors) == len(program.inputs) and not program.captured
    if only_tensors and traced.is_plain and is_flat(traced):
        return inner
    equalities = equalities_of(tensors) if program.merge_equal else None
    return wrap(program.function, traced, _with_effects(step, inner), equalities, program.captured, otherwise)


def _run_of_shown(step: CompiledStep, shown: int) -> Callable[..., Any]:
    """The same where some results, the last ones, are there already: see `compile_training`."""
    inner = _with_gradients(partial(run_step_of_shown, step, _places_of_shown(step.joint, shown)))
    run = _with_effects(step, inner)
    return lambda *arguments: run(arguments)[:-shown]


def _with_gradients(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Also where grad mode is off: the program switches it on for what is differentiable."""
    return inner if torch.is_grad_enabled() else torch.enable_grad()(inner)


def _with_effects(step: CompiledStep, inner: Callable[..., Any]) -> Callable[[Sequence[torch.Tensor]], Any]:
    return with_effects(effects_left(step.joint), inner, frozenset(step.joint.differentiable))


def _places_of_shown(joint: Joint, count: int) -> tuple[int, ...]:
    """Positions of the last results, as those of `Joint.results`. Raises Unsupported where they are not their own."""
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
    """Trace with every input on its own; if one that shares memory is written to, again with equal inputs merged."""
    joint = program.trace()
    if _are_separate(joint.traced, tensors):
        return joint
    program.merge_equal = True
    joint = program.trace()
    if not _are_separate(joint.traced, tensors, merged=True):
        raise OverlappingInputs(writes_of(joint.traced))
    return joint


def _are_separate(traced: Traced, tensors: Sequence[torch.Tensor], merged: bool = False) -> bool:
    """Whether inputs that are written to lie apart from others, and none is one part of what autograd follows with
    another input as another part: the write would give both new histories."""
    if not are_separate(traced, tensors, merged):
        return False
    owners: defaultdict[int, set[int]] = defaultdict(set)
    for tensor in tensors:
        owners[tensor.untyped_storage()._cdata].add(id(tensor))
    written = {tensors[index].untyped_storage()._cdata for index, _ in traced.mutated}
    shared = {storage for storage in written if len(owners[storage]) > 1}
    return not any(tensor.requires_grad and tensor.untyped_storage()._cdata in shared for tensor in tensors)
