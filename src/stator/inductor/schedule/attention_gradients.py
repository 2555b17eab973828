"""Puts calls that compute the gradients of attention into launches, which keep no scores in memory but the gradient of
a bias: a launch computes scores and weights anew. attention.py uses it.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.inductor.buffers import Extern, Loops
from stator.inductor.devices import traits_of
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.prims.operators.attention_gradients import attention_gradients
from stator.shapes.expr import Expr

from .attention_candidates import AttentionSteps, renamed
from .groups import (
    KEYS,
    OF_KEYS,
    OF_QUERIES,
    OF_SCORES,
    OF_VALUES,
    QUERIES,
    SCORES,
    TANGENT,
    VALUES,
    Attention,
)
from .product_calls import LOOPS

_ARGUMENTS = (
    *("tangent", "query", "key", "value", "attn_bias"),
    *("of_bias", "is_causal", "scale", "by_rows", "hidden_rows_are_zero"),
)


def gradients_of(steps: AttentionSteps, step: Extern) -> Attention | None:
    """The launch for a call that computes gradients, without a tile."""
    call = steps.call(step, _ARGUMENTS) if step.target is attention_gradients else None
    if call is None or len(set(call.heads_of_sides)) > 1:
        return None
    tangent = steps.view(call.given["tangent"])
    batch, heads, rows, count, depth, width = call.batch, call.heads, call.rows, call.count, call.depth, call.width
    dtype = call.sides[QUERIES][2]
    if tangent is None or len(tangent.layout.size) != 4 or tangent.layout.dtype is not dtype:
        return None
    if not traits_of(tangent.layout.device).products:
        return None
    sizes = {
        QUERIES: (rows, depth),
        KEYS: (depth, count),
        VALUES: (count, width),
        TANGENT: (rows, width),
        OF_QUERIES: (rows, depth),
        OF_KEYS: (depth, count),
        OF_VALUES: (count, width),
        OF_SCORES: (rows, count),
    }
    given = {
        **call.sides,
        TANGENT: (tangent.base, steps.place(tangent.layout, _ROWS, (batch, heads, rows, width)), dtype),
    }
    sides = {kind: _loaded(kind, *side, (batch * heads, *sizes[kind]), steps) for kind, side in given.items()}
    stored = []
    for kind, result in zip((OF_QUERIES, OF_KEYS, OF_VALUES, OF_SCORES), step.outputs, strict=False):
        if result is None or (kind == OF_SCORES and not call.given["of_bias"]):
            continue
        layout = steps.buffers[result].layout
        order = _TURNED if kind == OF_KEYS else _ROWS
        own = call.heads_of_sides[0] if kind in (OF_KEYS, OF_VALUES) else heads
        if tuple([layout.size[dim] for dim in order]) != (batch, own, *sizes[kind]):
            return None
        place = steps.place(layout, order, (batch, heads, *sizes[kind]))
        factor = call.scale if kind in (OF_QUERIES, OF_KEYS) else None
        stored.append(_stored(kind, result, place, layout.dtype, factor, (batch * heads, *sizes[kind]), steps))
    return Attention(
        queries=sides[QUERIES],
        keys=sides[KEYS],
        values=sides[VALUES],
        scores=(renamed(steps.scores_of(call), SCORES, steps.lowered),),
        epilogue=tuple(stored),
        batch=batch * heads,
        rows=rows,
        count=count,
        depth=depth,
        width=width,
        dtypes=(dtype, dtype),
        hidden_rows_are_zero=call.given["hidden_rows_are_zero"],
        causal=call.causal,
        steps=(step,),
        tangent=sides[TANGENT],
        shared=heads // call.heads_of_sides[0],
    )


_ROWS, _TURNED = (0, 1, 2, 3), (0, 1, 3, 2)


def _loaded(
    kind: str, buffer: str, place: Expr, dtype: torch.dtype, ranges: tuple[Any, Any, Any], steps: AttentionSteps
) -> Loops:
    ops = (
        Op("load", (buffer, IndexRef(0), None, 0), dtype),
        Op("store", (kind, IndexRef(0), Ref(0), None, None), None),
    )
    return renamed(Loops((kind,), LoopBody(LOOPS, ranges, (), (), (place,), ops)), kind, steps.lowered)


def _stored(
    kind: str,
    result: str,
    place: Expr,
    dtype: torch.dtype,
    factor: float | None,
    ranges: tuple[Any, Any, Any],
    steps: AttentionSteps,
) -> Loops:
    """Loops that store sums in float32, times a factor."""
    ops = [Op("load", (kind, IndexRef(0), None, 0), torch.float32)]
    if factor is not None:
        ops.append(Op("constant", (factor, torch.float32), torch.float32))
        ops.append(Op("mul", (Ref(0), Ref(1)), torch.float32))
    if dtype is not torch.float32:
        ops.append(Op("to_dtype", (Ref(len(ops) - 1), dtype), dtype))
    ops.append(Op("store", (result, IndexRef(0), Ref(len(ops) - 1), None, None), None))
    return renamed(Loops((result,), LoopBody(LOOPS, ranges, (), (), (place,), tuple(ops))), kind, steps.lowered)
