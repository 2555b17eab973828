"""`stator.explain(f)(*args)`: the graphs that one call is captured as, and the reasons why they end.
The call runs operator by operator (compiled, if memory is asked for), and leaves no compiled code behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import fx

from stator.backends import Backend, CompiledGraph, observing_backend, run_eagerly, why_left_to_eager
from stator.base import counters
from stator.base.config import make_options
from stator.base.errors import MissingToolchain, StatorError, UsageError, UserPlace
from stator.dynamo.backend import first_place
from stator.dynamo.callables import compiled_call
from stator.dynamo.guards.guard import Guard
from stator.dynamo.host import native_status
from stator.dynamo.ir.capture_result import Break, BreakReason, CapturedFrame
from stator.dynamo.ir.input_sizes import InputSizes

from .break_costs import BreakCost, BreakCostCompiler
from .step_memory import StepMemory


@dataclass(slots=True)
class Explanation:
    """How one call was captured. Prints as a report.

    places: where each graph begins.
    out_guards: the guards of all captured frames.
    break_costs: per place that ended graphs, the highest first.
    left_to_eager: per graph that compiled code runs as it is, too small to gain, its number, place and reason.
    memory: per graph, if it was asked for.
    sizes: per frame with symbols for sizes: these, and the facts about them, with their lines.
    failed_graph_count: how often a graph raised an error, so that its frame began again without it.
    result: the result of the call.
    """

    graphs: list[fx.GraphModule] = field(default_factory=list)
    places: list[UserPlace] = field(default_factory=list)
    break_reasons: list[BreakReason] = field(default_factory=list)
    out_guards: list[Guard] = field(default_factory=list)
    op_count: int = 0
    frame_count: int = 0
    break_costs: list[BreakCost] = field(default_factory=list)
    left_to_eager: list[tuple[int, UserPlace, str]] = field(default_factory=list)
    memory: list[StepMemory] = field(default_factory=list)
    sizes: list[InputSizes] = field(default_factory=list)
    failed_graph_count: int = 0
    result: Any = None

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    def __str__(self) -> str:
        lines = [
            f"graphs: {self.graph_count}",
            f"graph breaks: {self.graph_break_count}",
            f"operations: {self.op_count}",
            f"guards: {len(self.out_guards)}",
        ]
        if self.failed_graph_count:
            lines.append(f"graphs that failed: {self.failed_graph_count} (what they began ran again, eagerly)")
        if not self.graphs:
            lines.append("nothing to compile: no operation on tensors was met, and what has none runs as it is")
        if self.break_costs:
            lines.append("why graphs ended early, by estimated cost:")
            for number, cost in enumerate(self.break_costs, 1):
                lines += [
                    f"  {number}. {line}" if not index else f"     {line.strip()}"
                    for index, line in enumerate([*str(cost.reason).splitlines(), f"Cost: {cost}"])
                ]
        if self.left_to_eager:
            lines.append("graphs that run as they are, because compiled code would not be faster:")
            lines += [f"  graph {number}, {place}: {reason}" for number, place, reason in self.left_to_eager]
            if self.graph_break_count and len({number for number, _, _ in self.left_to_eager}) == self.graph_count:
                lines.append(
                    "  nothing else is compiled, so after some calls frames run as they are, past their breaks"
                )
        if self.sizes:
            lines.append("compiled for many sizes:")
            lines += [f"  {line}" for sizes in self.sizes for line in sizes.describe()]
        if self.memory:
            lines.append("memory at the peak, beside what the caller holds anyway:")
            lines += [f"  {line}" for step in self.memory for line in str(step).splitlines()]
        for number, graph in enumerate(self.graphs):
            lines.append(f"graph {number}:")
            lines += [
                f"  {node.format_node()}" for node in graph.graph.nodes if node.op not in ("placeholder", "output")
            ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        breaks = f"{self.graph_break_count} graph breaks"
        return f"<Explanation: {self.graph_count} graphs, {breaks}, {self.op_count} operations>"


def explain(
    target: Callable[..., Any],
    *,
    memory: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Explanation]:
    """A function that calls `target` once with its arguments and reports how it was captured.

    Takes functions, methods, modules and callables, compiled or not. Raises UsageError for an object that cannot be
    called or an unknown option, and MissingToolchain when capture is not possible in this installation.

    memory: compile the graphs to kernels, and report the predicted and the measured peak memory of each. Training steps
    have a forward and a backward; a backward is measured if `target` runs it, or the caller does before reading the
    report.
    dynamic, options: those of `stator.compile`. `dynamic=True` shows which sizes can change without a compilation, and
        which lines need which sizes.
    """
    make_options(None, options)
    if not callable(target):
        raise UsageError(f"stator.explain takes a function or module, not {type(target).__name__}: {target!r}")

    def run(*args: Any, **kwargs: Any) -> Explanation:
        if not native_status.available():
            raise MissingToolchain(f"stator's C extension is not usable: {native_status.problem}")
        explanation = Explanation()
        backend = _MeasuringBackend(explanation, options) if memory else run_eagerly
        on_captured = partial(_add, explanation)
        compiler = BreakCostCompiler(_reporting(backend, explanation), on_captured, dynamic)
        failed = counters.counts["dynamo.failed_graphs"]
        try:
            explanation.result = compiled_call(target, compiler)(*args, **kwargs)
        finally:
            explanation.failed_graph_count = counters.counts["dynamo.failed_graphs"] - failed
            explanation.break_costs = compiler.costs()
        return explanation

    return run


def _reporting(backend: Backend, explanation: Explanation) -> Backend:
    """The backend, which also notes in the explanation which graphs are left to eager."""

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        with suppress(StatorError):  # a graph that is refused is not left for its size
            number, place = len(explanation.graphs) - 1, explanation.places[-1]
            explanation.left_to_eager += [(number, place, why) for why in why_left_to_eager(gm, example_inputs)]
        return backend(gm, example_inputs)

    return compile_graph


class _MeasuringBackend:
    """A backend that compiles, and notes the memory of each graph in an explanation."""

    def __init__(self, explanation: Explanation, options: Mapping[str, object] | None) -> None:
        self.explanation = explanation
        self.options = options

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        step = StepMemory(len(self.explanation.graphs) - 1)
        compiled = observing_backend(step.observe, self.options)(gm, example_inputs)
        if step.parts:
            self.explanation.memory.append(step)
        return compiled


def _add(explanation: Explanation, captured: CapturedFrame) -> None:
    explanation.frame_count += 1
    explanation.out_guards += captured.guards
    explanation.op_count += captured.op_count
    if captured.sizes is not None and (captured.sizes.sources or captured.sizes.held):
        explanation.sizes.append(captured.sizes)
    if captured.graph is not None:
        explanation.graphs.append(captured.graph)
        explanation.places.append(first_place(captured))
    if isinstance(captured.exit, Break):
        explanation.break_reasons.append(captured.exit.reason)
