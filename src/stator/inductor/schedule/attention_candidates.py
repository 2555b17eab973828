"""Attention in a schedule, as data: written by hand as products with a softmax between them, or called from ATen.
attention.py puts it into a launch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stator.inductor.buffers import Extern, Layout, Loops, Lowered, View
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.inductor.sizes import product
from stator.prims.layout import contiguous_strides
from stator.shapes.expr import Expr, ExprLike, as_expr
from stator.shapes.simplify import simplify

from .accesses import summarize
from .groups import (
    KEYS,
    OF_KEYS,
    OF_QUERIES,
    OF_SCORES,
    OF_VALUES,
    PRODUCTS,
    QUERIES,
    SCORES,
    TANGENT,
    VALUES,
    WEIGHTED,
    Group,
    Matrices,
)
from .product_calls import DTYPES, LOOPS, ProductCall, ProductSteps, element_at, over_elements
from .regroup import OUTER, substitute_loops
from .softmax_pattern import Softmax, softmax_of

_aten = torch.ops.aten
# By operator, its positional arguments
_CALLS: dict[Any, tuple[str, ...]] = {
    _aten._scaled_dot_product_flash_attention.default: ("query", "key", "value", "dropout_p", "is_causal"),
    **dict.fromkeys(
        (
            _aten._scaled_dot_product_efficient_attention.default,
            _aten._scaled_dot_product_cudnn_attention.default,
        ),
        ("query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"),
    ),
}
_DTYPES = (*DTYPES, torch.float32)
_REDUCTIONS = frozenset(("reduce", "welford", "get", "total"))

# The loops of each kind, of which printers give lanes to the last two: (batch, row, column)
_BATCH, _ROW, _KEY, _DEPTH, _DEPTH_OF_KEYS, _KEY_OF_VALUES, _WIDTH = OUTER[:7]
LOOPS_OF = {
    SCORES: (_BATCH, _ROW, _KEY),
    QUERIES: (_BATCH, _ROW, _DEPTH),
    KEYS: (_BATCH, _DEPTH_OF_KEYS, _KEY),
    VALUES: (_BATCH, _KEY_OF_VALUES, _WIDTH),
    WEIGHTED: (_BATCH, _ROW, _WIDTH),
    TANGENT: (_BATCH, _ROW, _WIDTH),
    OF_QUERIES: (_BATCH, _ROW, _DEPTH),
    OF_KEYS: (_BATCH, _DEPTH_OF_KEYS, _KEY),
    OF_VALUES: (_BATCH, _KEY_OF_VALUES, _WIDTH),
    OF_SCORES: (_BATCH, _ROW, _KEY),
}


@dataclass(frozen=True, slots=True)
class AttentionCandidate:
    """Attention, in terms of (batch, row, column). sides: by kind, the buffer, the place of an element and the dtype.
    result: loops that store the weighted values. internal: buffers that need no memory in a launch."""

    steps: tuple[Group | Extern, ...]
    sides: dict[str, tuple[str, Expr, torch.dtype]]
    scores: tuple[Loops, ...]
    result: Loops
    batch: ExprLike
    rows: ExprLike
    count: ExprLike
    depth: ExprLike
    width: ExprLike
    internal: frozenset[str]
    hidden_rows_are_zero: bool
    causal: bool = False


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A call of ATen's attention. given: arguments by name. sides: as those of a candidate, in terms of (batch and
    head, row, column). heads_of_sides: of keys and of values."""

    given: dict[str, Any]
    sides: dict[str, tuple[str, Expr, torch.dtype]]
    bias: View | None
    scale: float
    batch: Any
    heads: int
    rows: Any
    count: Any
    depth: Any
    width: Any
    causal: bool
    heads_of_sides: tuple[int, int]


class AttentionSteps(ProductSteps):
    """The steps of a schedule, some of which are attention."""

    writers: Mapping[str, list[Group | Extern]] | None = None  # by buffer; None where steps were replaced since

    def attention(self, step: Group | Extern) -> AttentionCandidate | None:
        """The attention whose last step this is."""
        return self._written_by_hand(step) or (self._called(step) if isinstance(step, Extern) else None)

    def writer(self, name: str) -> Group | None:
        """The only step that writes a buffer, if it is a group of loops."""
        if self.writers is None:
            self.writers = self.by_buffer(1)
        found = self.writers[name]
        return found[0] if len(found) == 1 and type(found[0]) is Group else None

    # ---- attention in loops and products ----------------------------------------------------------

    def _written_by_hand(self, last: Group | Extern) -> AttentionCandidate | None:
        weighting = self.product(last, _DTYPES)
        if weighting is None or weighting.bias is not None:
            return None
        normalizing = self.writer(weighting.left.buffer)
        softmax = None if normalizing is None else softmax_of(normalizing)
        if normalizing is None or softmax is None or softmax.weights != weighting.left.buffer:
            return None
        for first in self.steps:
            products = self.product(first, _DTYPES)
            if products is None or products.result not in normalizing.reads:
                continue
            steps = (first, normalizing, last)
            same = (products.batch, products.rows, products.columns)
            hidden = (products.result, softmax.weights)
            if same != (weighting.batch, weighting.rows, weighting.depth) or any(
                self.is_read(name, steps) for name in hidden
            ):
                continue
            scores = self._scores(products, normalizing, softmax, weighting.left)
            if scores is not None:
                return self._candidate(steps, products, weighting, scores, softmax)
        return None

    def _candidate(
        self,
        steps: tuple[Group | Extern, ...],
        products: ProductCall,
        weighting: ProductCall,
        scores: Sequence[Loops],
        softmax: Softmax,
    ) -> AttentionCandidate:
        batch, rows, count = products.batch, products.rows, products.columns
        depth, width = products.depth, weighting.columns
        normalizing = steps[1]
        assert isinstance(normalizing, Group)

        def placed(side: Matrices, ranges: tuple[Any, Any, Any], dtype: torch.dtype) -> tuple[str, Expr, torch.dtype]:
            limits = self.lowered.sizes.ranges(LOOPS, ranges)
            return side.buffer, element_at(side.offset, side.strides, limits), dtype

        sides = {
            QUERIES: placed(products.left, (batch, rows, depth), products.dtype),
            KEYS: placed(products.right, (batch, depth, count), products.dtype),
            VALUES: placed(weighting.right, (batch, count, width), weighting.dtype),
        }
        internal = frozenset((products.result, softmax.weights, *normalizing.internal))
        hidden, result = softmax.hidden_rows_are_zero, self.rounded(weighting, WEIGHTED)
        return AttentionCandidate(
            steps, sides, tuple(scores), result, batch, rows, count, depth, width, internal, hidden
        )

    def _scores(
        self, products: ProductCall, normalizing: Group, softmax: Softmax, weights: Matrices
    ) -> list[Loops] | None:
        """The loops from a product to a score, by (batch, row, key)."""
        ranges = (products.batch, products.rows, products.columns)
        inner = normalizing.inner_ranges
        if product(inner) != products.columns or not _run_along(softmax.scores, products.result, inner):
            return None
        together = (*normalizing.ranges, *normalizing.inner_ranges)
        flat = replace(normalizing, members=softmax.scores, ranges=together, inner_ranges=())
        moved = over_elements(flat, [products.result], ranges, self.lowered, _REDUCTIONS)
        if moved is None:
            return None
        # the last of these loops store at the index of the weights, which the second product has to read alike
        (place,) = [op.args[1] for op in moved[-1].body.ops if op.name == "store"]
        limits = self.lowered.sizes.ranges(LOOPS, ranges)
        if moved[-1].body.indices[place.position] is not element_at(weights.offset, weights.strides, limits):  # type: ignore[union-attr]
            return None
        return [self.rounded(products, PRODUCTS), *moved]

    # ---- ATen's calls -----------------------------------------------------------------------------

    def _called(self, step: Extern) -> AttentionCandidate | None:
        """What a call of a fused kernel computes, where nothing but its result is read."""
        names = _CALLS.get(step.target)
        if names is None or step.outputs[0] is None or any(self.is_read(one, ()) for one in step.outputs[1:] if one):
            return None
        call = self.call(step, names)
        if call is None:
            return None
        result, ranges = step.outputs[0], (call.batch * call.heads, call.rows, call.width)
        layout = self.buffers[result].layout
        index = self.place(layout, (0, 1, 2, 3), (call.batch, call.heads, call.rows, call.width))
        ops = [Op("load", (WEIGHTED, IndexRef(0), None, 0), torch.float32)]
        if layout.dtype is not torch.float32:
            ops.append(Op("to_dtype", (Ref(0), layout.dtype), layout.dtype))
        ops.append(Op("store", (result, IndexRef(0), Ref(len(ops) - 1), None, None), None))
        loops = Loops((result,), LoopBody(LOOPS, ranges, (), (), (index,), tuple(ops)), step.origins)
        numbers = ranges[0], call.rows, call.count, call.depth, call.width
        return AttentionCandidate(
            (step,), call.sides, (self.scores_of(call),), loops, *numbers, frozenset(), True, call.causal
        )

    def call(self, step: Extern, names: Sequence[str]) -> AttentionCall | None:
        """A call of an operator with these positional arguments, if it is nothing but attention."""
        given = {**dict(zip(names, step.args, strict=False)), **step.kwargs}
        wanted = [given[name] for name in ("query", "key", "value", "attn_bias") if given.get(name) is not None]
        views = [view for one in wanted if (view := self.view(one)) is not None and len(view.layout.size) == 4]
        scale = given.get("scale")
        if given.get("dropout_p") or len(views) != len(wanted) or not isinstance(scale, int | float | None):
            return None
        bias = views[3] if len(views) > 3 else None
        if bias is not None and not bias.layout.dtype.is_floating_point:
            return None
        query, key, value = [view.layout for view in views[:3]]
        batch, heads, rows, depth = query.size
        count, width = key.size[2], value.size[3]
        causal, shared = bool(given.get("is_causal")), [heads, key.size[1], value.size[1]]
        if query.dtype not in _DTYPES or len({query.dtype, key.dtype, value.dtype}) != 1:
            return None
        if 0 in (*query.size, *key.size) or (causal and rows != count):
            return None
        if not all(isinstance(one, int) for one in shared) or any(heads % one for one in shared):
            return None
        places = [
            (QUERIES, views[0], (0, 1, 2, 3), (rows, depth)),
            (KEYS, views[1], (0, 1, 3, 2), (depth, count)),
            (VALUES, views[2], (0, 1, 2, 3), (count, width)),
        ]
        sides = {}
        for kind, view, order, sizes in places:
            sides[kind] = (view.base, self.place(view.layout, order, (batch, heads, *sizes)), query.dtype)
        scale = 1 / math.sqrt(depth) if scale is None else float(scale)
        return AttentionCall(
            given, sides, bias, scale, batch, heads, rows, count, depth, width, causal, (shared[1], shared[2])
        )

    def place(self, layout: Layout, order: Sequence[int], sizes: Sequence[Any]) -> Expr:
        """The place of an element by (batch and head, row, column) in memory of four dimensions, of which some may have
        one element, or fewer heads than there are."""
        batch, heads, rows, columns = sizes
        limits = self.lowered.sizes.ranges(LOOPS, (batch * heads, rows, columns))
        head = LOOPS[0] % heads
        if layout.size[order[1]] != heads:
            head = head // (heads // layout.size[order[1]])
        total = as_expr(layout.offset)
        for dim, where in zip(order, (LOOPS[0] // heads, head, LOOPS[1], LOOPS[2]), strict=True):
            if layout.size[dim] != 1:
                total = total + where * layout.stride[dim]
        return as_expr(simplify(total, limits))

    def scores_of(self, call: AttentionCall) -> Loops:
        """Scaled products, with a bias, or minus infinity for keys behind the query."""
        bias = call.bias
        batch, heads, rows, count = sizes = (call.batch, call.heads, call.rows, call.count)
        ranges = (batch * heads, rows, count)
        element = element_at(0, contiguous_strides(ranges), self.lowered.sizes.ranges(LOOPS, ranges))
        indices: list[Expr] = [element]
        float32 = torch.float32
        ops = [Op("load", (PRODUCTS, IndexRef(0), None, 0), float32), Op("constant", (call.scale, float32), float32)]
        ops.append(Op("mul", (Ref(0), Ref(1)), float32))
        if bias is not None:
            indices.append(self.place(bias.layout, (0, 1, 2, 3), sizes))
            ops.append(Op("load", (bias.base, IndexRef(1), None, 0), bias.layout.dtype))
            if bias.layout.dtype is not float32:
                ops.append(Op("to_dtype", (Ref(3), float32), float32))
            ops.append(Op("add", (Ref(2), Ref(len(ops) - 1)), float32))
        if call.causal:
            score = Ref(len(ops) - 1)
            indices.append(as_expr(LOOPS[2] - LOOPS[1]))
            ops.append(Op("index_value", (IndexRef(len(indices) - 1), torch.int32), torch.int32))
            ops.append(Op("constant", (0, torch.int32), torch.int32))
            ops.append(Op("gt", (Ref(len(ops) - 2), Ref(len(ops) - 1)), torch.bool))
            ops.append(Op("constant", (-math.inf, float32), float32))
            ops.append(Op("where", (Ref(len(ops) - 2), Ref(len(ops) - 1), score), float32))
        ops.append(Op("store", (SCORES, IndexRef(0), Ref(len(ops) - 1), None, None), None))
        return Loops((SCORES,), LoopBody(LOOPS, ranges, (), (), tuple(indices), tuple(ops)))


def _run_along(loops: Sequence[Loops], products: str, inner: Sequence[Any]) -> bool:
    """True if the innermost of the loops, of sizes `inner`, run along rows of products."""
    places = [
        (access.index, one.body.vars[-len(inner) :])
        for one in loops
        for access in summarize(one).loads
        if access.buffer == products
    ]
    steps = contiguous_strides(tuple(inner))
    return bool(places) and all(
        index.coefficient(loop) == step for index, symbols in places for loop, step in zip(symbols, steps, strict=True)
    )


def renamed(loops: Loops, kind: str, lowered: Lowered) -> Loops:
    """Loops over (batch, row, column) with the symbols of their kind."""
    symbols = LOOPS_OF[kind]
    return substitute_loops(
        loops, dict(zip(LOOPS, symbols, strict=True)), symbols, loops.body.ranges, (), (), lowered.sizes
    )
