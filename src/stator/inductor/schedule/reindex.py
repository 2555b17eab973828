"""Rewrites bodies over other loops, and merges neighbouring loops where every index of a group allows it.

No fusion is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stator.inductor.buffers import Loops
from stator.inductor.loops.body import LoopBody
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge, Sizes
from stator.shapes.expr import ZERO, Expr, ExprLike, Symbol
from stator.shapes.simplify import simplify

OUTER = tuple(Symbol(f"x{at}") for at in range(64))
INNER = tuple(Symbol(f"r{at}") for at in range(64))


def substitute_loops(
    node: Loops,
    replacements: Mapping[Symbol, ExprLike],
    variables: tuple[Symbol, ...],
    ranges: Sizes,
    reduction_variables: tuple[Symbol, ...],
    reduction_ranges: Sizes,
    knowledge: SizeKnowledge = NUMBERS_ONLY,
) -> Loops:
    """Express the node's loop variables in others, which must cover the same iterations."""
    limits = knowledge.ranges((*variables, *reduction_variables), (*ranges, *reduction_ranges))
    indices = tuple([simplify(index.substitute(replacements), limits) for index in node.body.indices])
    body = LoopBody(variables, ranges, reduction_variables, reduction_ranges, indices, node.body.ops)
    return replace(node, body=body)


def collapse_group(
    members: Sequence[Loops], shared: int, knowledge: SizeKnowledge
) -> tuple[tuple[Loops, ...], Sizes, Sizes]:
    """Merge neighbouring loops of a group's members wherever every index allows it. The members' loops already have
    common symbols. Returns the members, the ranges of the shared loops, and the ranges of the inner loops."""
    widest = max((member.body for member in members), key=lambda body: len(body.vars) + len(body.reduction_vars))
    symbols = (*widest.vars, *widest.reduction_vars)
    sizes = (*widest.ranges, *widest.reduction_ranges)
    indices = {index for member in members for index in member.body.indices}
    outer, outer_sizes, replacements = _merge(symbols[:shared], sizes[:shared], indices, OUTER)
    inner, inner_sizes, more = _merge(symbols[shared:], sizes[shared:], indices, INNER)
    replacements |= more
    changed = []
    for member in members:
        reduces = bool(member.body.reduction_vars)
        has_inner = reduces or len(member.body.vars) > shared
        variables, ranges = outer, outer_sizes
        if has_inner and not reduces:
            variables, ranges = outer + inner, outer_sizes + inner_sizes
        reduction = (inner, inner_sizes) if reduces else ((), ())
        changed.append(substitute_loops(member, replacements, variables, ranges, *reduction, knowledge))
    return tuple(changed), outer_sizes, inner_sizes


def _merge(
    symbols: tuple[Symbol, ...], sizes: Sizes, indices: set[Expr], names: tuple[Symbol, ...]
) -> tuple[tuple[Symbol, ...], Sizes, dict[Symbol, ExprLike]]:
    """Merge runs of loops that every index walks through as through one loop."""
    replacements: dict[Symbol, ExprLike] = {}
    merged: list[ExprLike] = []
    for at, (symbol, size) in enumerate(zip(symbols, sizes, strict=True)):
        if at and _contiguous(symbols[at - 1], symbol, size, indices):
            replacements[symbols[at - 1]] = ZERO
            merged[-1] = merged[-1] * size
        else:
            merged.append(size)
        replacements[symbol] = names[len(merged) - 1]
    return names[: len(merged)], tuple(merged), replacements


def _contiguous(first: Symbol, second: Symbol, size: ExprLike, indices: set[Expr]) -> bool:
    for index in indices:
        step = index.coefficient(second)
        if step is None or index.coefficient(first) != step * size:
            return False
    return True
