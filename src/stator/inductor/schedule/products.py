"""Finds matrix products that one launch may compute: with the pointwise group that reads their results, and beside
other products of one left side. The backend says which of these are worth it, and how programs share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stator.graph.ir.schema import has_effects
from stator.inductor.buffers import Extern, Loops, Lowered, View
from stator.inductor.devices import traits_of
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.prims.layout import contiguous_strides, same_strides
from stator.shapes.expr import ZERO, Expr, ExprLike, Symbol, as_expr

from .accesses import extern_reads, extern_writes, memory_owner, names_in, summarize
from .groups import Combination, Group, Matrices, ProductGroup, ProductPart, Products, Schedule, Tile
from .regroup import OUTER, substitute_loops
from .shared_depth import may_share_depth, with_shared_depth

Choose = Callable[[ProductGroup, bool], Tile | None]  # the second argument: programs may share the depth

DTYPES = (torch.float16, torch.bfloat16)
MOST_PARTS = 8
_LOOPS = OUTER[:3]  # batch, row, column
# Operations that an epilogue may not have: reductions, and what needs a check or a mask of its own
_REFUSED = frozenset(("reduce", "welford", "get", "indirect"))
_aten = torch.ops.aten
# By operator: the position of the bias, if there is one, and of the left side
_OPERATORS: dict[Any, tuple[int | None, int]] = {
    _aten.mm.out: (None, 0),
    _aten.bmm.out: (None, 0),
    _aten.addmm.out: (0, 1),
    _aten.baddbmm.out: (0, 1),
}


@dataclass(frozen=True, slots=True)
class _Call:
    """A library call that computes products, in terms of this file."""

    result: str
    left: Matrices
    right: Matrices
    bias: View | None
    batch: ExprLike
    rows: ExprLike
    columns: ExprLike
    depth: ExprLike
    dtype: torch.dtype


def fuse_products(schedule: Schedule, lowered: Lowered, choose: Choose) -> tuple[Schedule, Lowered]:
    """Replace library calls by launches where `choose` gives them a tile. Results are those of the library up to
    rounding: sums are in float32, and what follows in the launch reads them before they are rounded."""
    if any(isinstance(step, Extern) and step.binds for step in schedule.steps):
        return schedule, lowered  # the order of checks of sizes is not looked at here
    fusion = _ProductFusion(schedule, lowered, choose)
    steps = fusion.run()
    return Schedule(tuple(steps)), replace(lowered, buffers=fusion.buffers)


class _ProductFusion:
    def __init__(self, schedule: Schedule, lowered: Lowered, choose: Choose) -> None:
        self.steps: list[Group | Extern] = []
        for step in schedule.steps:
            assert not isinstance(step, Combination), "products are looked for before groups are combined"
            self.steps.append(step)
        self.lowered, self.choose = lowered, choose
        self.buffers = dict(lowered.buffers)

    def run(self) -> list[Group | Extern]:
        calls = {at: call for at, step in enumerate(self.steps) if (call := self._product(step)) is not None}
        if not calls:
            return self.steps
        self._absorb({call.result for call in calls.values()})
        for at, step in enumerate(self.steps):
            call = self._product(step)
            if call is not None:
                alone = self._group([step], [call], None)  # type: ignore[list-item]
                assert alone is not None
                self.steps[at] = alone
        self._join()
        steps = [final for step in self.steps for final in self._chosen(step)]
        for step in [step for step in steps if isinstance(step, ProductGroup)]:
            if step.products.tile is not None and step.products.tile.split > 1:
                steps = with_shared_depth(steps, step, self.buffers)
        return steps

    def _chosen(self, step: Group | Extern) -> Sequence[Group | Extern]:
        """The launch, or its parts as launches of their own, or the calls that it would replace."""
        if not isinstance(step, ProductGroup):
            return [step]
        products = step.products
        tile = self.choose(step, may_share_depth(step, self.steps, self.lowered))
        if tile is not None:
            return [replace(step, products=replace(products, tile=tile))]
        if len(products.parts) == 1:
            return products.steps[0]
        alone = [self._combined(step.name, [(step, at)]) for at in range(len(products.parts))]
        return [final for part in alone for final in self._chosen(part)]

    # ---- what a library call computes -------------------------------------------------------------

    def _product(self, step: Group | Extern) -> _Call | None:
        if not isinstance(step, Extern) or step.style != "out" or step.target not in _OPERATORS or step.mutates:
            return None
        if any(step.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")) or step.outputs[0] is None:
            return None
        with_bias, at = _OPERATORS[step.target]
        result = step.outputs[0]
        layout = self.buffers[result].layout
        sides = [self._view(step.args[at]), self._view(step.args[at + 1])]
        bias = None if with_bias is None else self._view(step.args[with_bias])
        if None in sides or (with_bias is not None and bias is None) or layout.dtype not in DTYPES:
            return None
        left, right = sides[0].layout, sides[1].layout  # type: ignore[union-attr]
        if any(one.dtype != layout.dtype or one.device != layout.device for one in (left, right)):
            return None
        if not traits_of(layout.device).products:
            return None
        if bias is not None and (bias.layout.device != layout.device or not bias.layout.dtype.is_floating_point):
            return None
        if not same_strides(layout.size, contiguous_strides(layout.size), layout.stride) or layout.offset != 0:
            return None
        sizes = (*layout.size, left.size[-1])
        if 0 in sizes or isinstance(self.buffers[result].value, str):
            return None
        rows, columns, depth = sizes[-3:]
        batch = layout.size[0] if len(layout.size) == 3 else 1
        matrices = [_matrices(side) for side in sides]  # type: ignore[arg-type]
        return _Call(result, matrices[0], matrices[1], bias, batch, rows, columns, depth, layout.dtype)

    def _view(self, argument: str | View) -> View | None:
        """An argument as a view of its buffer's own memory; None for memory that is read as of another dtype."""
        if isinstance(argument, View):
            return argument if argument.layout.dtype == self.buffers[argument.base].layout.dtype else None
        return View(argument, replace(self.buffers[argument].layout, offset=0))

    # ---- launches ---------------------------------------------------------------------------------

    def _group(self, externs: Sequence[Extern], calls: Sequence[_Call], follower: Group | None) -> ProductGroup | None:
        """The launch for products of one left side and shape, and for the group that reads them; None if that group
        does not run over the products' elements, one by one."""
        first = calls[0]
        ranges = (first.batch, first.rows, first.columns)
        sums = tuple([f"the sums of {call.result}" for call in calls])
        members = [self._rounded(call, name) for call, name in zip(calls, sums, strict=True)]
        internal: set[str] = set()
        if follower is not None:
            moved = _over_elements(follower, [call.result for call in calls], ranges, self.lowered)
            if moved is None:
                return None
            members += moved
            internal = {call.result for call in calls if not self._is_read(call.result, (*externs, follower))}
            internal |= follower.internal
        part = ProductPart(tuple([call.right for call in calls]), sums, first.columns, tuple(members))
        steps = (*externs, *(() if follower is None else (follower,)))
        products = Products(first.left, first.batch, first.rows, first.depth, first.dtype, (part,), (steps,))
        name = follower.name if follower is not None else f"product_{first.result}"
        return _named(name, products, frozenset(internal))

    def _rounded(self, call: _Call, sums: str) -> Loops:
        """The loops that store a product, with its bias, in its dtype."""
        ranges = (call.batch, call.rows, call.columns)
        limits = self.lowered.sizes.ranges(_LOOPS, ranges)
        strides = contiguous_strides(ranges)
        index = [_at(0, strides, limits)]
        ops = [Op("load", (sums, IndexRef(0), None, 0), torch.float32)]
        if call.bias is not None:
            layout = call.bias.layout
            own = [0 if size == 1 else stride for size, stride in zip(layout.size, layout.stride, strict=True)]
            index.append(_at(layout.offset, (*[0] * (3 - len(own)), *own), limits))
            ops.append(Op("load", (call.bias.base, IndexRef(1), None, 0), layout.dtype))
            if layout.dtype != torch.float32:
                ops.append(Op("to_dtype", (Ref(1), torch.float32), torch.float32))
            ops.append(Op("add", (Ref(0), Ref(len(ops) - 1)), torch.float32))
        ops.append(Op("to_dtype", (Ref(len(ops) - 1), call.dtype), call.dtype))
        ops.append(Op("store", (call.result, IndexRef(0), Ref(len(ops) - 1), None, None), None))
        return Loops((call.result,), LoopBody(_LOOPS, ranges, (), (), tuple(index), tuple(ops)))

    def _is_read(self, name: str, inside: Sequence[Group | Extern]) -> bool:
        """True if a buffer needs memory: it is a result, or steps outside read it."""
        outputs = names_in(self.lowered.outputs)
        others = [step for step in self.steps if not any(step is one for one in inside)]
        return name in outputs or any(name in self._effects(step)[0] for step in others)

    # ---- the pointwise group behind a product -----------------------------------------------------

    def _absorb(self, results: set[str]) -> None:
        for follower in [step for step in self.steps if isinstance(step, Group)]:
            if follower.inner_ranges or results.isdisjoint(follower.reads):
                continue
            at = next(at for at, step in enumerate(self.steps) if step is follower)
            found = [(where, call) for where in range(at) if (call := self._product(self.steps[where])) is not None]
            found = [(where, call) for where, call in found if call.result in follower.reads]
            found = [one for one in found if found[-1][1] is one[1] or _together(found[-1][1], one[1])]
            if not found or not all(self._may_move(where, at) for where, _ in found):
                continue
            externs = [self.steps[where] for where, _ in found]
            group = self._group(externs, [call for _, call in found], follower)  # type: ignore[arg-type]
            if group is not None and not self._overwrites_operands(group):
                self.steps[at] = group
                self.steps = [step for step in self.steps if not any(step is one for one in externs)]

    def _overwrites_operands(self, group: ProductGroup) -> bool:
        """True if programs would write where others still read a side."""
        owners = {memory_owner(name, self.buffers) for name in group.products.operands}
        return any(memory_owner(name, self.buffers) in owners for name in group.writes)

    # ---- order ------------------------------------------------------------------------------------

    def _effects(self, step: Group | Extern) -> tuple[set[str], set[str], bool]:
        """(reads, writes, whether nothing may move past the step)."""
        if isinstance(step, Group):
            return set(step.reads), set(step.writes), any(isinstance(self.buffers[n].value, str) for n in step.writes)
        fixed = step.style == "mutates" or has_effects(step.target, step.args, step.kwargs)
        return extern_reads(step), extern_writes(step), fixed

    def _may_move(self, start: int, end: int) -> bool:
        """True if the step at one place may come next to the step at the other place instead."""
        reads, writes, fixed = self._effects(self.steps[start])
        for step in self.steps[min(start, end) + 1 : max(start, end)]:
            others_read, others_write, stays = self._effects(step)
            if fixed or stays or writes & (others_read | others_write) or reads & others_write:
                return False
        return not fixed

    # ---- products side by side --------------------------------------------------------------------

    def _join(self) -> None:
        """Join launches of one left side."""
        at = 0
        while at < len(self.steps):
            found = next((other for other in range(at + 1, len(self.steps)) if self._fit(at, other)), None)
            if found is None:
                at += 1
                continue
            one, other = self.steps[at], self.steps[found]
            if self._may_move(found, at) and not self._depends(other, one):
                place, gone = at, found
            elif self._may_move(at, found) and not self._depends(other, one):
                place, gone = found, at
            else:
                at += 1
                continue
            assert isinstance(one, ProductGroup) and isinstance(other, ProductGroup)
            parts = [(group, part) for group in (one, other) for part in range(len(group.products.parts))]
            self.steps[place] = self._combined(one.name, parts)
            del self.steps[gone]

    def _fit(self, at: int, other: int) -> bool:
        one, two = self.steps[at], self.steps[other]
        if not isinstance(one, ProductGroup) or not isinstance(two, ProductGroup):
            return False
        first, second = one.products, two.products
        return (
            _key(first) == _key(second)
            and len(first.parts) + len(second.parts) <= MOST_PARTS
            and not self._depends(two, one)
            and (self._may_move(other, at) or self._may_move(at, other))
        )

    def _depends(self, step: Group | Extern, earlier: Group | Extern) -> bool:
        """True if the two steps must not run at one time."""
        assert isinstance(step, Group) and isinstance(earlier, Group)
        reads, writes, before, written = (
            {memory_owner(name, self.buffers) for name in names}
            for names in (step.reads, step.writes, earlier.reads, earlier.writes)
        )
        return bool(written & (reads | writes)) or bool(writes & before)

    def _combined(self, name: str, parts: Sequence[tuple[ProductGroup, int]]) -> ProductGroup:
        first = parts[0][0].products
        chosen = [group.products.parts[at] for group, at in parts]
        steps = [group.products.steps[at] for group, at in parts]
        internal = frozenset([buffer for group, _ in parts for buffer in group.internal])
        label = name if len(parts) > 1 else f"{name}_{parts[0][1]}"
        return _named(label, replace(first, parts=tuple(chosen), steps=tuple(steps)), internal)


def _matrices(view: View) -> Matrices:
    strides = view.layout.stride
    return Matrices(view.base, view.layout.offset, (strides[0] if len(strides) == 3 else 0, *strides[-2:]))


def _together(one: _Call, other: _Call) -> bool:
    """True if the same programs may compute both products, tile by tile."""
    same = (one.left, one.right.strides, one.batch, one.rows, one.columns, one.depth, one.dtype)
    return same == (other.left, other.right.strides, other.batch, other.rows, other.columns, other.depth, other.dtype)


def _key(products: Products) -> Any:
    """What parts of one launch have in common."""
    part = products.parts[0]
    rights = [right.strides for right in part.rights]
    return products.left, products.batch, products.rows, products.depth, products.dtype, rights


def _named(name: str, products: Products, internal: frozenset[str]) -> ProductGroup:
    """A group of all parts, whose arguments are in the order of their first use."""
    members = tuple([member for part in products.parts for member in part.epilogue])
    sums = {name for part in products.parts for name in part.sums}
    reads = dict.fromkeys([products.left.buffer, *(r.buffer for part in products.parts for r in part.rights)])
    writes: dict[str, None] = {}
    for member in members:
        for op in member.body.ops:
            buffer: Any = op.args[0] if op.args else None
            if op.name == "load" and buffer not in sums and buffer not in internal and buffer not in writes:
                reads[buffer] = None
            elif op.name == "store" and buffer not in internal:
                writes[buffer] = None
    inside = internal & _written(members)
    return ProductGroup(name, members, (), inside, tuple(reads), tuple(writes), products=products)


def _written(members: Sequence[Loops]) -> frozenset[str]:
    return frozenset([name for member in members for name in summarize(member).writes])


def _at(offset: ExprLike, strides: Sequence[Any], ranges: dict[Symbol, Any]) -> Expr:
    total = as_expr(offset)
    for symbol, stride in zip(_LOOPS, strides, strict=True):
        low_high = symbol.bounds(ranges)
        total = total + (ZERO if low_high == (0, 0) else symbol * stride)
    return total


def _over_elements(
    group: Group, results: Sequence[str], ranges: tuple[Any, Any, Any], lowered: Lowered
) -> list[Loops] | None:
    """The members of a group in terms of (batch, row, column); None if an iteration needs other than one element of
    each product, or if there are operations that an epilogue may not have."""
    index: Expr | None = None
    for member in group.members:
        body = member.body
        if body.reduction_vars or body.ranges != group.ranges:
            return None
        for op in body.ops:
            if op.name in _REFUSED or (op.name == "load" and op.args[2] is not None):
                return None
            if op.name == "store" and op.args[3:] != (None, None):
                return None
            if op.name == "load" and op.args[0] in results:
                place = body.indices[op.args[1].position]  # type: ignore[union-attr]
                if index is not None and place is not index:
                    return None
                index = place
    where = None if index is None else _loops_of_elements(group, index, ranges, lowered)
    if where is None:
        return None
    element = _at(0, contiguous_strides(ranges), lowered.sizes.ranges(_LOOPS, ranges))
    moved = []
    for member in group.members:
        found = substitute_loops(member, where, _LOOPS, ranges, (), (), lowered.sizes)
        pairs = zip(member.body.indices, found.body.indices, strict=True)
        indices = tuple([element if before is index else after for before, after in pairs])
        moved.append(replace(found, body=replace(found.body, indices=indices)))
    return moved


def _loops_of_elements(
    group: Group, index: Expr, ranges: tuple[Any, Any, Any], lowered: Lowered
) -> dict[Symbol, ExprLike] | None:
    """The loops of a group in terms of (batch, row, column), if `index` walks through all elements, once each."""
    sizes = lowered.sizes
    loops = list(zip(group.members[0].body.vars, group.ranges, strict=True))
    if index.substitute({symbol: ZERO for symbol, _ in loops}) != 0:
        return None
    where: dict[Symbol, ExprLike] = {symbol: ZERO for symbol, size in loops if size == 1}
    steps = [(symbol, size, index.coefficient(symbol)) for symbol, size in loops if size != 1]
    if any(step is None for *_, step in steps):
        return None
    steps.sort(key=lambda one: sizes.hint(one[2]))  # type: ignore[arg-type]
    flat = (_LOOPS[0] * ranges[1] + _LOOPS[1]) * ranges[2] + _LOOPS[2]
    expected: ExprLike = 1
    for at, (symbol, size, step) in enumerate(steps):
        if step != expected:
            return None
        where[symbol] = flat // step if at == len(steps) - 1 else (flat // step) % size
        expected = step * size
    return where if expected == ranges[0] * ranges[1] * ranges[2] else None
