"""Compiling an FX graph for inference: analyse its inputs, trace it, hand it to a compiler, wrap what comes back.

Nothing of autograd is handled here: see `needs_grad`, which the caller asks first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from stator.base import counters, dumps, logs
from stator.base.errors import Unsupported
from stator.graph.printer import print_graph
from stator.graph.recording import Keep
from stator.graph.traced import Traced
from stator.graph.tracer import trace

from .captured import captured_tensors
from .extents import Extents
from .replay import is_flat, with_effects

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
) -> Callable[..., Any]:
    """Compile a graph of torch calls, or any callable; returns a callable with the same arguments and results.

    compile_graph: given the functional ATen graph and the tensors for its placeholders, returns a callable of those
    tensors that returns a tuple with one tensor per output of the graph. When nothing is mutated or aliased, what it
    returns is returned as it is.

    Raises Unsupported for what cannot be compiled, CompileError when tracing fails; run `gm` itself then.
    """
    captured = captured_tensors(gm, example_inputs) if isinstance(gm, fx.GraphModule) else []
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)] + captured
    refuse_dynamic(example_inputs)
    with counters.timed("aot"):
        traced, merged = _trace(gm, example_inputs, captured, tensors, keep)
        if rewrite is not None:
            rewrite(traced.graph)
    return compile_traced(gm, traced, len(example_inputs), tensors, captured, merged, compile_graph)


def compile_traced(
    gm: Callable[..., Any],
    traced: Traced,
    argument_count: int,
    tensors: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    merged: bool,
    compile_graph: CompileGraph,
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
    return wrap(gm, traced, run, equalities_of(tensors) if merged else None, captured)


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
    if not traced.mutated or writes_are_private(traced, tensors):
        return traced, False
    traced = trace(gm, example_inputs, keep=keep, captured=captured, merge_equal=True)
    if not writes_are_private(traced, tensors, merged=True):
        raise Unsupported(
            "overlapping-inputs",
            "the graph writes to an input that shares its memory with another input",
            hint="pass a clone, or write to the base tensor only",
        )
    return traced, True


def writes_are_private(traced: Traced, tensors: Sequence[torch.Tensor], merged: bool = False) -> bool:
    """Whether no input that is written to shares memory with another input.

    merged: the very same tensor given twice is one input.
    """
    owners: dict[int, int] = {}  # how many inputs sit on each storage
    storages: dict[int, torch.UntypedStorage] = {}
    seen: set[int] = set()
    for tensor in tensors:
        if merged and id(tensor) in seen:
            continue
        seen.add(id(tensor))
        storage = tensor.untyped_storage()
        owners[storage._cdata] = owners.get(storage._cdata, 0) + 1
        storages[storage._cdata] = storage
    overlapping = _overlapping(storages)
    written = {tensors[index].untyped_storage()._cdata for index, _ in traced.mutated}
    return all(owners[storage] == 1 and storage not in overlapping for storage in written)


def _overlapping(storages: Mapping[int, torch.UntypedStorage]) -> set[int]:
    """Storages whose bytes belong to another storage too, as when two arrays of NumPy share memory."""
    spans = sorted((s.data_ptr(), s.data_ptr() + s.nbytes(), key) for key, s in storages.items() if s.nbytes())
    found: set[int] = set()
    widest: tuple[int, int] | None = None  # (end, key) of the span that reaches furthest so far
    for start, end, key in spans:
        if widest is not None and start < widest[0]:
            found |= {key, widest[1]}
        if widest is None or end > widest[0]:
            widest = (end, key)
    return found


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
) -> Callable[..., Any]:
    """Add captured tensors, drop Python numbers, check that inputs lie and share memory as they did.

    run: takes all tensors, returns the user's result. equalities: which inputs were the same object, where the graph
    relies on that.
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

    inner = call if not traced.mutated else _where_inputs_lie_apart(gm, traced, run, equalities, tensors_of)
    return call_in_place if traced.fixed_offsets else inner


def _where_inputs_lie_apart(
    gm: Callable[..., Any],
    traced: Traced,
    run: Callable[[Sequence[torch.Tensor]], Any],
    equalities: list[int] | None,
    tensors_of: Callable[[Sequence[Any]], list[torch.Tensor]],
) -> Callable[..., Any]:
    """`run` where inputs share memory as they did when it was compiled, else `gm`, which is the program itself."""
    extents: Extents | None = None

    def call_checked(*args: Any) -> Any:
        nonlocal extents
        tensors = tensors_of(args)
        if extents is None:
            extents = Extents(tensors, (index for index, _ in traced.mutated))
        if equalities is None and extents.lie_apart(tensors):
            return run(tensors)
        same = equalities is None or equalities_of(tensors) == equalities
        if same and writes_are_private(traced, tensors, merged=equalities is not None):
            return run(tensors)
        logs.warn_once(
            "aot:overlapping-inputs",
            "stator: inputs share memory in another way than when this graph was compiled; running it eagerly",
        )
        return gm(*args)

    return call_checked
