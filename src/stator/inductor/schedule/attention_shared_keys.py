"""Heads that share keys and values, as rows of one head: each program then reads keys and values once for all of them.
For attention with few rows, such as that of one new token, where a tile of rows has room. attention.py uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stator.inductor.buffers import Loops
from stator.inductor.sizes import SizeKnowledge
from stator.shapes.expr import ZERO, ExprLike, Symbol
from stator.shapes.simplify import simplify

from .groups import Attention
from .regroup import OUTER, substitute_loops

_MEMBER = OUTER[-1]  # of the heads that share keys
MOST_ROWS = 64


def with_shared_keys(attention: Attention, sizes: SizeKnowledge) -> Attention:
    """The attention with as few heads as there are different keys and values, and more rows for each."""
    if attention.causal or not isinstance(attention.rows, int):
        return attention
    for heads in range(MOST_ROWS // attention.rows, 1, -1):
        if sizes.divides(heads, attention.batch):
            sides = [_of_one_head(side, heads, attention, sizes) for side in (attention.keys, attention.values)]
            if sides[0] is not None and sides[1] is not None:
                return _with_rows(replace(attention, keys=sides[0], values=sides[1]), heads, sizes)
    return attention


def _of_one_head(side: Loops, heads: int, attention: Attention, sizes: SizeKnowledge) -> Loops | None:
    """The loops of a side over every `heads`-th head, if the heads between have the same elements."""
    body = side.body
    batch = attention.batch // heads
    limits = sizes.ranges((*body.vars, _MEMBER), (batch, *body.ranges[1:], heads))
    where = {body.vars[0]: body.vars[0] * heads + _MEMBER}
    moved = [simplify(index.substitute(where), limits) for index in body.indices]
    read = [moved[op.args[1].position] for op in body.ops if op.name == "load"]  # type: ignore[union-attr]
    if any(_MEMBER in index.symbols for index in read):
        return None
    indices = tuple([index.substitute({_MEMBER: ZERO}) for index in moved])
    return replace(side, body=replace(body, ranges=(batch, *body.ranges[1:]), indices=indices))


def _with_rows(attention: Attention, heads: int, sizes: SizeKnowledge) -> Attention:
    batch, rows = attention.batch // heads, attention.rows * heads

    def moved(loops: Loops) -> Loops:
        head, row, column = loops.body.vars
        where: Mapping[Symbol, ExprLike] = {head: head * heads + row // attention.rows, row: row % attention.rows}
        ranges = (batch, rows, loops.body.ranges[2])
        return substitute_loops(loops, where, (head, row, column), ranges, (), (), sizes)

    return replace(
        attention,
        queries=moved(attention.queries),
        scores=tuple(map(moved, attention.scores)),
        epilogue=tuple(map(moved, attention.epilogue)),
        batch=batch,
        rows=rows,
    )
