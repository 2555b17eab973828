"""Compiles a graph for inference: analyses its inputs, traces it, compiles it, and wraps the compiled callable.
`needs_grad` decides when this is enough; training.py handles the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from stator.aot.runtime.overlap_check import InputSpans, OverlappingInputs, are_disjoint
from stator.aot.runtime.replay import is_flat, with_effects
from stator.base import counters, dumps, logs
from stator.graph.fake.unknown_sizes import UnknownSizes
from stator.graph.functionalization.functionalize import Keep
from stator.graph.ir.captured_tensors import captured_tensors
from stator.graph.ir.size_bindings import is_symbolic
from stator.graph.ir.traced import Traced
from stator.graph.printer import print_graph
from stator.graph.tracing.symbolic_inputs import unknown_sizes, with_symbols
from stator.graph.tracing.tracer import trace

# (functional graph, a tensor or int for each placeholder) -> callable
CompileGraph = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]
# Changes each functional graph (joint or inference) in place, once it is traced
Rewrite = Callable[[fx.GraphModule], object]


def compile_inference(
    gm: Callable[..., Any],
    example_inputs: Sequence[Any],
    compile_graph: CompileGraph,
    *,
    keep: Keep,
    rewrite: Rewrite | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch calls, or any callable; returns a callable with equal arguments and results.

    compile_graph: takes the functional ATen graph and tensors for its placeholders; returns a callable of those tensors
    that returns a tuple with one tensor per output. Without mutation and aliasing that callable itself is returned.

    Where placeholders of `gm` have symbolic sizes, so has the functional graph; what is compiled then is right for all
    sizes for which the facts of their environment hold.

    Raises Unsupported for what cannot be compiled, CompileError when tracing fails; run `gm` itself then.
    """
    captured = captured_tensors(gm, example_inputs) if isinstance(gm, fx.GraphModule) else []
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)] + captured
    with counters.timed("aot"):
        symbolic = with_symbols(gm, example_inputs)
        traced, merged = _trace(gm, symbolic, captured, tensors, keep, unknown_sizes(gm, symbolic))
        if rewrite is not None:
            rewrite(traced.graph)
    return compile_traced(gm, traced, example_inputs, tensors, captured, merged, compile_graph)


def compile_traced(
    gm: Callable[..., Any],
    traced: Traced,
    example_inputs: Sequence[Any],
    tensors: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    merged: bool,
    compile_graph: CompileGraph,
) -> Callable[..., Any]:
    """Compile a traced graph, where autograd has nothing to record when it runs.

    tensors: those among the inputs, then captured ones. merged: whether a tensor given twice is one input. The other
    arguments are those of `compile_inference`.
    """
    dumps.write("21_forward.py", lambda: print_graph(traced.graph))
    if logs.enabled("graph"):
        logs.log("graph", "forward graph:\n%s", print_graph(traced.graph))
    traced.graph.meta["mutated"] = list(traced.mutated)  # a compiler may write these itself
    inner = compile_graph(traced.graph, [*tensors, *[example_inputs[at] for at in traced.numbers]])
    only_tensors = len(tensors) == len(example_inputs) and not captured
    if only_tensors and traced.is_plain and is_flat(traced):
        return inner
    run = with_effects(traced, inner)
    return wrap(gm, traced, run, equalities_of(tensors) if merged else None, captured)


def _trace(
    gm: Callable[..., Any],
    example_inputs: Sequence[Any],
    captured: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor],
    keep: Keep,
    unknown: UnknownSizes | None,
) -> tuple[Traced, bool]:
    """Trace with distinct inputs. If a written input shares memory, trace again with equal inputs merged."""
    traced = trace(gm, example_inputs, keep=keep, captured=captured, unknown=unknown)
    if are_separate(traced, tensors):
        return traced, False
    traced = trace(gm, example_inputs, keep=keep, captured=captured, unknown=unknown, merge_equal=True)
    if not are_separate(traced, tensors, merged=True):
        raise OverlappingInputs
    return traced, True


def writes_are_private(traced: Traced, tensors: Sequence[torch.Tensor], merged: bool = False) -> bool:
    """Whether no written input shares an element with another input.

    merged: a tensor given twice is one input.
    """
    first = equalities_of(tensors) if merged else range(len(tensors))
    chosen = frozenset(first[index] for index, _ in traced.mutated)
    kept = [at for at, one in enumerate(first) if one == at]
    return are_disjoint([tensors[at] for at in kept], [at in chosen for at in kept])


def are_separate(traced: Traced, tensors: Sequence[torch.Tensor], merged: bool = False) -> bool:
    """Whether writes are private, and each input whose layout changes is given only once."""
    if not traced.mutated and not traced.layouts:
        return True
    if traced.layouts and not merged and equalities_of(tensors) != list(range(len(tensors))):
        return False
    return writes_are_private(traced, tensors, merged)


def equalities_of(tensors: Sequence[Any]) -> list[int]:
    """For each tensor the position of the first that is identical to it."""
    first: dict[int, int] = {}
    return [first.setdefault(id(tensor), position) for position, tensor in enumerate(tensors)]


def wrap(
    gm: Callable[..., Any],
    traced: Traced,
    run: Callable[[Sequence[torch.Tensor]], Any],
    equalities: list[int] | None,
    captured: Sequence[torch.Tensor],
) -> Callable[..., Any]:
    """Add captured tensors, drop Python numbers that are constants, and check that inputs lie and overlap as when they
    were traced.

    run: takes a value for each placeholder, returns the user's result. equalities: which inputs were identical, where
    the graph relies on that.
    """
    placed, numbers = tuple(captured), traced.numbers

    def tensors_of(args: Sequence[Any]) -> list[torch.Tensor]:
        return [*[value for value in args if isinstance(value, torch.Tensor)], *placed]

    def run_on(tensors: list[torch.Tensor], args: Sequence[Any]) -> Any:
        return run([*tensors, *[args[at] for at in numbers]] if numbers else tensors)

    def call(*args: Any) -> Any:
        return run_on(tensors_of(args), args)

    def call_in_place(*args: Any) -> Any:
        tensors = tensors_of(args)
        if not any(tensors[index].storage_offset() for index in traced.fixed_offsets):
            return inner(*args)
        logs.warn_once(
            "aot:fixed-offsets",
            "stator: an input that as_strided is used on began its storage when the graph was compiled, and is a part "
            "of one now; running it eagerly",
        )
        return gm(*args)

    inner = call
    if traced.mutated or traced.layouts:
        inner = _checking_overlap(gm, traced, run_on, equalities, tensors_of)
    return call_in_place if traced.fixed_offsets else inner


def _checking_overlap(
    gm: Callable[..., Any],
    traced: Traced,
    run_on: Callable[[list[torch.Tensor], Sequence[Any]], Any],
    equalities: list[int] | None,
    tensors_of: Callable[[Sequence[Any]], list[torch.Tensor]],
) -> Callable[..., Any]:
    """`run_on` the tensors of a call, where inputs overlap as when the graph was compiled; else `gm`."""
    extents: InputSpans | None = None
    placeholders = [node for node in traced.graph.graph.nodes if node.op == "placeholder"]
    varying = [at for at, node in enumerate(placeholders) if is_symbolic(node.meta["val"])]

    def run_eagerly(*args: Any) -> Any:
        logs.warn_once(
            "aot:overlapping-inputs",
            "stator: inputs share memory in another way than when this graph was compiled; running it eagerly",
        )
        return gm(*args)

    def call_checked(*args: Any) -> Any:
        nonlocal extents
        tensors = tensors_of(args)
        if extents is None:
            fitting = [at for at in varying if at < len(tensors)]  # numbers come last
            extents = InputSpans(tensors, (index for index, _ in traced.mutated), fitting)
        if traced.layouts and equalities_of(tensors) != (equalities or list(range(len(tensors)))):
            return run_eagerly(*args)  # more or fewer inputs change their layout
        if equalities is None and extents.are_disjoint(tensors):
            return run_on(tensors, args)
        same = equalities is None or equalities_of(tensors) == equalities
        if same and writes_are_private(traced, tensors, merged=equalities is not None):
            return run_on(tensors, args)
        return run_eagerly(*args)

    return call_checked
