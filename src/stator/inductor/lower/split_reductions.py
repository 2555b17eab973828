"""Splits long reductions with few results into parts, for devices whose kernels do not share a reduction: one node
reduces the parts, further nodes reduce their results. The order of all sums is fixed. A pass over frozen bodies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from stator.inductor.devices import DeviceTraits, traits_of
from stator.inductor.loops.body import IndexRef, LoopBody, Ref
from stator.inductor.loops.replay import Replay
from stator.inductor.sizes import SizeKnowledge, Sizes, ceil_div, product
from stator.shapes.expr import Expr, ExprLike, Symbol

# By whether neighbouring elements lie in other rows. The shortest row that is split: reducing a shorter one takes less
# time than a second kernel. The shortest part of a row.
_LONG = {False: 32768, True: 1024}
_SHORTEST = {False: 4096, True: 64}
# Rows across neighbours that a fused kernel keeps in registers, if there are so many for each program
_KEPT, _ROWS_EACH = 4096, 8
_LANES = 64  # rows that a program reduces together if neighbours lie in other rows
_ALIGNED = 16  # elements: parts that start at multiples keep wide loads

_PARTS = tuple(Symbol(f"k{at}") for at in range(16))
_PART = Symbol("k")


class ReductionBuilder(Protocol):
    """freeze: as `LoweringBuilder.freeze`."""

    sizes: SizeKnowledge

    @property
    def freeze(self) -> Callable[..., LoopBody]: ...
    def new_buffer(self, shape: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> Any: ...


Node = tuple[tuple[str, ...], LoopBody]  # output buffers and the loops that fill them


def split_reduction(
    builder: ReductionBuilder, body: LoopBody, outputs: tuple[str, ...], device: torch.device
) -> Iterator[Node]:
    """The nodes that compute the outputs of `body`, in order: the body itself where one kernel reduces quickly."""
    split = _plan(body, builder.sizes, traits_of(device))
    if split is None:
        yield outputs, body
        return
    partial = partial_results(builder, body, split, device)
    yield partial.names, partial.body
    for names, more in combined_results(builder, body, split, partial, outputs, device):
        yield from split_reduction(builder, more, names, device)


@dataclass(frozen=True, slots=True)
class Split:
    """The reduced loop at `at` is cut into pieces of `piece` iterations; the loops around it become loops over parts.
    whole: all pieces are complete."""

    at: int
    piece: ExprLike
    pieces: ExprLike
    whole: bool

    def counts(self, reduced_ranges: Sizes) -> Sizes:
        """The sizes of the loops over parts."""
        return (*reduced_ranges[: self.at], self.pieces)

    def elements(self, body: LoopBody) -> ExprLike:
        """The iterations of a part."""
        return self.piece * product(body.reduction_ranges[self.at + 1 :])


# ---- the decision


def _plan(body: LoopBody, sizes: SizeKnowledge, traits: DeviceTraits) -> Split | None:
    if not traits.programs or not body.reduction_vars or not is_separable(body):
        return None
    split = _divide(body.ranges, body.reduction_ranges, _neighbours_are_results(body), sizes, traits)
    variance = any(op.name == "welford" for op in body.ops)
    return None if variance and split is not None and not split.whole else split


def reads_variance_once(
    ranges: Sizes, reduced_ranges: Sizes, across: bool, sizes: SizeKnowledge, traits: DeviceTraits
) -> bool:
    """Whether a variance of so many results is split, so that each part reads its elements once and keeps them in
    registers. across: neighbouring elements lie in other rows."""
    split = _divide(ranges, reduced_ranges, across, sizes, traits) if traits.programs else None
    return split is not None and split.whole


def _divide(
    ranges: Sizes, reduced_ranges: Sizes, across: bool, sizes: SizeKnowledge, traits: DeviceTraits
) -> Split | None:
    results, row = (sizes.hint(product(some)) for some in (ranges, reduced_ranges))
    programs = -(-results // (_LANES if across else 1))
    wanted = traits.programs // 2 if across else traits.programs  # programs of neighbouring rows have more to do
    parts = min(wanted // max(programs, 1), row // _SHORTEST[across])
    if 4 * programs >= wanted or parts < 2 or row < _LONG[across]:
        return None
    if across and row <= _KEPT and results >= _ROWS_EACH * traits.programs:
        return None
    return cut_into_parts(reduced_ranges, -(-row // parts), across, sizes)


def cut_into_parts(reduced_ranges: Sizes, target: int, across: bool, sizes: SizeKnowledge) -> Split | None:
    """Parts of about `target` elements of a row. None: the row has no more elements."""
    inside = 1
    for at in reversed(range(len(reduced_ranges))):
        size = reduced_ranges[at]
        if inside * sizes.hint(size) > target:
            return _pieces(at, size, max(target / inside, 1), inside == 1 and not across, sizes)
        inside *= sizes.hint(size)
    return None


def is_separable(body: LoopBody) -> bool:
    """True if reductions depend on no other, and nothing that reduced loops change is needed behind them."""
    reduced = frozenset(body.reduction_vars)
    behind: set[int] = set()
    changing: set[int] = set()  # in the reduced loops
    symbols: dict[Symbol, int] = {}
    for at, op in enumerate(body.ops):
        refs = {arg.position for arg in op.args if isinstance(arg, Ref)}
        for arg in op.args:
            if isinstance(arg, IndexRef):
                used = body.indices[arg.position].symbols
                refs |= {symbols[symbol] for symbol in used if symbol in symbols}
                if not reduced.isdisjoint(used):
                    changing.add(at)
        if op.name == "indirect":
            symbols[Symbol(f"indirect{at}")] = at
        if op.name in ("reduce", "welford"):
            if refs & behind:
                return False
            behind.add(at)
            continue
        if refs & changing:
            changing.add(at)
        if refs & behind:
            behind.add(at)
        if (op.name == "store" or at in behind) and at in changing:
            return False
    return True


def _neighbours_are_results(body: LoopBody) -> bool:
    """True if neighbouring elements lie in other rows, be it in one of several buffers: a program for each row would
    read these element by element."""
    if not body.vars:
        return False
    result, reduced = body.vars[-1], body.reduction_vars[-1]
    for op in body.ops:
        if op.name == "load":
            index = body.indices[op.args[1].position]  # type: ignore[union-attr]
            if {result, reduced} <= index.symbols and index.coefficient(result) == 1:
                return True
    return False


def _pieces(at: int, size: ExprLike, target: float, aligned: bool, sizes: SizeKnowledge) -> Split:
    """Pieces near the target that divide the size, else of a power of two, with a shorter last piece."""
    best = 1 << max(round(math.log2(target)), 0)
    if not isinstance(size, Expr):
        step = _ALIGNED if aligned else 1
        near = range(math.ceil(target / 3 / step) * step, int(2 * target) + 1, step)
        best = min([one for one in near if one and size % one == 0], key=lambda one: abs(one - target), default=best)
    return Split(at, best, ceil_div(size, best), sizes.divides(best, size))


# ---- the nodes


@dataclass(frozen=True, slots=True)
class PartialResults:
    """The node over the parts. `values`: for each reduction, by position, its results of the parts, [part, result]."""

    names: tuple[str, ...]
    body: LoopBody
    values: dict[int, tuple[str, ...]]


def partial_results(builder: ReductionBuilder, body: LoopBody, split: Split, device: torch.device) -> PartialResults:
    counts = split.counts(body.reduction_ranges)
    loops, rest = _PARTS[: len(counts)], body.reduction_vars[split.at :]
    around = zip(body.reduction_vars[: split.at], loops, strict=False)
    where: dict[Symbol, ExprLike] = dict(around)
    cut = split.piece * loops[-1] + rest[0]
    where[rest[0]] = cut
    total = product(body.ranges)
    stored_at = _flat(loops, counts) * total + _flat(body.vars, body.ranges)
    buffers: dict[str, None] = {}
    values: dict[int, tuple[str, ...]] = {}

    def store(ops: Any, value: Ref) -> str:
        shape = (product(counts), total)
        name: str = builder.new_buffer(shape, (total, 1), ops.dtype(value), device).source.buffer
        buffers[name] = None
        ops.store(name, stored_at, value)
        return name

    def function(ops: Any) -> None:
        replay = Replay(ops, body, where, {})
        valid = None
        if not split.whole:
            size = body.reduction_ranges[split.at]
            valid = ops.lt(ops.index_value(cut, torch.int64), ops.constant(size, torch.int64))
        for at, op in enumerate(body.ops):
            if op.name not in ("reduce", "welford"):
                continue
            source: Any = op.args[-1]
            dtype: Any = body.ops[source.position].dtype
            if op.name == "welford":
                values[at] = tuple([store(ops, part) for part in ops.welford(replay.value(source.position))[:2]])
                continue
            kind: Any = op.args[0]

            def compute(position: int = source.position) -> Ref:
                return replay.value(position)

            value = compute() if valid is None else ops.masked(valid, compute, _neutral(kind, dtype), dtype)
            found = ops.reduce(kind, value)
            if kind in _EXTREMA_AT:
                first = _flat(loops[:-1], counts[:-1]) * body.reduction_ranges[split.at] + split.piece * loops[-1]
                first = first * product(body.reduction_ranges[split.at + 1 :])
                place = ops.add(found, ops.index_value(first, torch.int64))
                values[at] = store(ops, ops.reduce(_EXTREMA_AT[kind], value)), store(ops, place)
            else:
                values[at] = (store(ops, found),)

    ranges = (*counts, *body.ranges)
    reduced = (split.piece, *body.reduction_ranges[split.at + 1 :])
    made = builder.freeze(function, (*loops, *body.vars), ranges, rest, reduced)
    return PartialResults(tuple(buffers), made, values)


_EXTREMA_AT = {"argmax": "max", "argmin": "min"}


def combined_results(
    builder: ReductionBuilder,
    body: LoopBody,
    split: Split,
    partial: PartialResults,
    outputs: tuple[str, ...],
    device: torch.device,
) -> Iterator[Node]:
    """The nodes that reduce the results of the parts, and compute what follows the reductions of the body."""
    parts, total = product(split.counts(body.reduction_ranges)), product(body.ranges)
    here = _flat(body.vars, body.ranges)
    at_part = _PART * total + here
    means: dict[int, str] = {}
    for at, names in partial.values.items():
        if body.ops[at].name == "welford":
            dtype: Any = body.ops[at].dtype
            target: str = builder.new_buffer((total,), (1,), dtype, device).source.buffer
            means[at] = target

            def mean(ops: Any, name: str = names[0], target: str = target) -> None:
                summed = ops.reduce("sum", ops.load(name, at_part))
                ops.store(target, here, ops.div(summed, ops.constant(parts, ops.dtype(summed))))

            yield (means[at],), builder.freeze(mean, body.vars, body.ranges, (_PART,), (parts,))

    def function(ops: Any) -> None:
        given: dict[int, Any] = {}
        for at, names in partial.values.items():
            op, first = body.ops[at], ops.load(names[0], at_part)
            if op.name == "welford":
                given[at] = _joint_moments(ops, first, ops.load(names[1], at_part), ops.load(means[at], here), at)
                continue
            given[at] = ops.reduce(op.args[0], first)
            if len(names) == 2:
                given[at] = ops.load(names[1], ops.indirect(given[at], parts, False) * total + here)
        replay = Replay(ops, body, {}, given)
        for op in body.ops:
            if op.name == "store":
                replay.store(op)

    def _joint_moments(ops: Any, mean: Ref, squares: Ref, center: Ref, at: int) -> tuple[Ref, Ref, Ref]:
        """T. Chan, G. Golub and R. LeVeque, 1983, for parts of equal length."""
        dtype: Any = body.ops[at].dtype
        away = ops.sub(mean, center)
        between = ops.mul(ops.mul(away, away), ops.constant(split.elements(body), dtype))
        number = ops.constant(product(body.reduction_ranges), dtype)
        return center, ops.reduce("sum", ops.add(squares, between)), number

    yield outputs, builder.freeze(function, body.vars, body.ranges, (_PART,), (parts,))


def _flat(symbols: Sequence[Symbol], ranges: Sizes) -> Any:
    total: Any = 0
    for symbol, size in zip(symbols, ranges, strict=True):
        total = total * size + symbol
    return total


def _neutral(kind: str, dtype: torch.dtype) -> float | int | bool:
    if kind in ("sum", "xor_sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    lowest = kind.endswith("max")
    if dtype is torch.bool:
        return not lowest
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if lowest else limits.max
