"""Compiling an FX graph for inference: analyse its inputs, trace it, hand it to a compiler, wrap what comes back.

Nothing of autograd is handled here: see `needs_grad`, which the caller asks first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from stator.aot.runtime.overlap_check import Extents, lie_apart
from stator.aot.runtime.replay import is_flat, with_effects
from stator.aot.runtime.shared_memory import Otherwise, OverlappingInputs
from stator.base import counters, dumps, logs
from stator.base.errors import Unsupported
from stator.graph.functionalization.functionalize import Keep
from stator.graph.ir.traced import Traced
from stator.graph.printer import print_graph
from stator.graph.tracing.tracer import trace

from .captured import captured_tensors

CompileGraph = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Sequence[Any]]]
# Applied in place to each whole functional graph (joint or inference) once it is traced
Rewrite = Callable[[fx.GraphModule], object]


def compile_inference(
    gm: Callable[..., Any],
    example_inputs: Sequence[Any],
    compile_graph: CompileGraph,
    *,
    keep: Keep,
    rewrite: Rewrite | None = None,
    otherwise: Otherwise | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch calls, or any callable; returns a callable with the same arguments and results.

    compile_graph: given the functional ATen graph and the tensors for its placeholders, returns a callable of those
    tensors that returns a tuple with one tensor per output of the graph. When nothing is mutated or aliased, what it
    returns is returned as it is.

    otherwise: see `shared_memory.CompileApart`; by default `gm` itself.

    Raises Unsupported for what cannot be compiled, CompileError when tracing fails; run `gm` itself then.
    """
    captured = captured_tensors(gm, example_inputs) if isinstance(gm, fx.GraphModule) else []
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)] + captured
    refuse_dynamic(example_inputs)
    with counters.timed("aot"):
        traced, merged = _trace(gm, example_inputs, captured, tensors, keep)
        if rewrite is not None:
            rewrite(traced.graph)
    return compile_traced(gm, traced, len(example_inputs), tensors, captured, merged, compile_graph, otherwise)


def compile_traced(
    gm: Callable[..., Any],
    traced: Traced,
    argument_count: int,
    tensors: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    merged: bool,
    compile_graph: CompileGraph,
    otherwise: Otherwise | None = None,
) -> Callable[..., Any]:
    """Compile what tracing `gm` gave, where autograd has nothing to record when it runs.

    tensors: those for the placeholders. merged: whether one given twice counts as one input. The rest as for
    `compile_inference`.
    """
    dumps.write("21_forward.py", lambda: print_graph(traced.graph))
    if logs.enabled("graph"):
        logs.log("graph", "forward graph:\n%s", print_graph(traced.graph))
    traced.graph.meta["mutated"] = list(traced.mutated)  # which a compiler may write itself
    inner = compile_graph(traced.graph, tensors)
    only_tensors = len(tensors) == argument_count and not captured
    if only_tensors and traced.is_plain and is_flat(traced):
        return inner
    run = with_effects(traced, inner)
    return wrap(gm, traced, run, equalities_of(tensors) if merged else None, captured, otherwise)


def refuse_dynamic(example_inputs: Sequence[Any]) -> None:
    for value in example_inputs:
        symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) or (
            isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)
        )
        if symbolic:
            raise Unsupported("dynamic-shape", "an input has a symbolic size; graphs are compiled for fixed sizes")


def _trace(
    gm: Callable[..., Any],
    example_inputs: Sequence[Any],
    captured: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor],
    keep: Keep,
) -> tuple[Traced, bool]:
    """Trace with every input on its own; if one that shares memory is written to, again with equal inputs merged."""
    traced = trace(gm, example_inputs, keep=keep, captured=captured)
    if are_separate(traced, tensors):
        return traced, False
    traced = trace(gm, example_inputs, keep=keep, captured=captured, merge_equal=True)
    if not are_separate(traced, tensors, merged=True):
        raise OverlappingInputs(writes_of(traced))
    return traced, True


def writes_of(traced: Traced) -> dict[int, int]:
    """See `OverlappingInputs.written`."""
    return {index: traced.announced.get(index, 0) for index, _ in traced.mutated}


def writes_are_private(traced: Traced, tensors: Sequence[torch.Tensor], merged: bool = False) -> bool:
    """Whether no input that is written to shares an element with another input.

    merged: the very same tensor given twice is one input.
    """
    first = equalities_of(tensors) if merged else range(len(tensors))
    chosen = frozenset(first[index] for index, _ in traced.mutated)
    kept = [at for at, one in enumerate(first) if one == at]
    return lie_apart([tensors[at] for at in kept], [at in chosen for at in kept])


def are_separate(traced: Traced, tensors: Sequence[torch.Tensor], merged: bool = False) -> bool:
    """The same, and what has its layout changed is given once."""
    if not traced.mutated and not traced.layouts:
        return True
    if traced.layouts and not merged and equalities_of(tensors) != list(range(len(tensors))):
        return False
    return writes_are_private(traced, tensors, merged)


def equalities_of(tensors: Sequence[Any]) -> list[int]:
    """For each tensor the position of the first that is the same object."""
    first: dict[int, int] = {}
    return [first.setdefault(id(tensor), position) for position, tensor in enumerate(tensors)]


def wrap(
    gm: Callable[..., Any],
    traced: Traced,
    run: Callable[[Sequence[torch.Tensor]], Any],
    equalities: list[int] | None,
    captured: Sequence[torch.Tensor],
    otherwise: Otherwise | None = None,
) -> Callable[..., Any]:
    """Add captured tensors, drop Python numbers, check that inputs lie and share memory as they did.

    run: takes all tensors, returns the user's result. equalities: which inputs were the same object, where the graph
    relies on that. otherwise: see `shared_memory.CompileApart`; by default `gm`.
    """
    placed = tuple(captured)

    def tensors_of(args: Sequence[Any]) -> list[torch.Tensor]:
        return [*[value for value in args if isinstance(value, torch.Tensor)], *placed]

    def call(*args: Any) -> Any:
        return run(tensors_of(args))

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
        eagerly = _eagerly(gm)
        inner = _where_inputs_lie_apart(otherwise or eagerly, eagerly, traced, run, equalities, tensors_of)
    return call_in_place if traced.fixed_offsets else inner


def _eagerly(gm: Callable[..., Any]) -> Otherwise:
    def run(written: Mapping[int, int], args: Sequence[Any]) -> Any:
        logs.warn_once(
            "aot:overlapping-inputs",
            "stator: inputs share memory in another way than when this graph was compiled; running it eagerly",
        )
        return gm(*args)

    return run


def _where_inputs_lie_apart(
    otherwise: Otherwise,
    eagerly: Otherwise,
    traced: Traced,
    run: Callable[[Sequence[torch.Tensor]], Any],
    equalities: list[int] | None,
    tensors_of: Callable[[Sequence[Any]], list[torch.Tensor]],
) -> Callable[..., Any]:
    """`run` where inputs share memory as they did when it was compiled."""
    extents: Extents | None = None
    written = writes_of(traced)

    def call_checked(*args: Any) -> Any:
        nonlocal extents
        tensors = tensors_of(args)
        if extents is None:
            extents = Extents(tensors, (index for index, _ in traced.mutated))
        if traced.layouts and equalities_of(tensors) != (equalities or list(range(len(tensors)))):
            return eagerly(written, args)  # the layout of another input changes, too, or of one less
        if equalities is None and extents.lie_apart(tensors):
            return run(tensors)
        same = equalities is None or equalities_of(tensors) == equalities
        if same and writes_are_private(traced, tensors, merged=equalities is not None):
            return run(tensors)
        return otherwise(written, args)

    return call_checked
