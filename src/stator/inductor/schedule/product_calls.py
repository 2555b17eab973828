"""Library calls that compute matrix products, as data; the loops that round a product, and loops in terms of its
elements. products.py and attention.py put both into launches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from stator.graph.ir.schema import has_effects
from stator.inductor.buffers import Extern, Layout, Loops, Lowered, View
from stator.inductor.devices import traits_of
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.inductor.sizes import SizeKnowledge, product
from stator.prims.layout import channels_last_strides, contiguous_strides, same_strides
from stator.shapes.expr import ZERO, Expr, ExprLike, Symbol, as_expr

from .accesses import extern_reads, extern_writes, names_in
from .groups import Combination, Ends, Group, Matrices, Schedule, Windows
from .regroup import OUTER, substitute_loops

DTYPES = (torch.float16, torch.bfloat16)
LOOPS = OUTER[:3]  # batch, row, column
# Operations that an epilogue may not have: reductions, and what needs a check or a mask of its own
_REFUSED = frozenset(("reduce", "welford", "get", "indirect"))
_MOST_GROUPS = 4096  # which each program looks at together
_aten = torch.ops.aten
# By operator: the position of the bias, if there is one, and of the left side
_OPERATORS: dict[Any, tuple[int | None, int]] = {
    _aten.mm.out: (None, 0),
    _aten.bmm.out: (None, 0),
    _aten.addmm.out: (0, 1),
    _aten.baddbmm.out: (0, 1),
}

Effects = tuple[set[str], set[str], bool]  # what a step reads, what it writes, whether nothing may move past it


@dataclass(frozen=True, slots=True)
class ProductCall:
    """A library call that computes products, in terms of this file. windows: of a convolution, whose groups of channels
    are the batch; strides: of the result, over (batch, rows, columns)."""

    result: str
    left: Matrices
    right: Matrices
    bias: View | None
    batch: ExprLike
    rows: ExprLike
    columns: ExprLike
    depth: ExprLike
    dtype: torch.dtype
    ends: Ends | None = None
    windows: Windows | None = None

    @property
    def ranges(self) -> tuple[ExprLike, ExprLike, ExprLike]:
        return self.batch, self.rows, self.columns

    @property
    def strides(self) -> tuple[ExprLike, ...]:
        if self.windows is None:
            return contiguous_strides(self.ranges)
        return self.columns, as_expr(self.batch) * self.columns, 1


class ProductSteps:
    """The steps of a schedule, some of which are calls of products."""

    def __init__(self, schedule: Schedule, lowered: Lowered) -> None:
        self.steps: list[Group | Extern] = []
        for step in schedule.steps:
            assert not isinstance(step, Combination), "products are looked for before groups are combined"
            self.steps.append(step)
        self.lowered = lowered
        self.buffers = dict(lowered.buffers)
        self.outputs = names_in(lowered.outputs)
        self.known: dict[int, tuple[Group | Extern, Effects]] = {}  # by identities, which end with their steps

    # ---- what a library call computes -------------------------------------------------------------

    def product(self, step: Group | Extern, dtypes: Collection[torch.dtype] = DTYPES) -> ProductCall | None:
        if isinstance(step, Extern) and step.target is _aten._grouped_mm.default:
            return self._product_of_groups(step, dtypes)
        if not isinstance(step, Extern) or step.style != "out" or step.target not in _OPERATORS or step.mutates:
            return None
        if any(step.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")) or step.outputs[0] is None:
            return None
        with_bias, at = _OPERATORS[step.target]
        result = step.outputs[0]
        layout = self.buffers[result].layout
        sides = [self.view(step.args[at]), self.view(step.args[at + 1])]
        bias = None if with_bias is None else self.view(step.args[with_bias])
        if None in sides or (with_bias is not None and bias is None) or layout.dtype not in dtypes:
            return None
        left, right = sides[0].layout, sides[1].layout  # type: ignore[union-attr]
        if not _fit_together(layout, left, right):
            return None
        if bias is not None and (bias.layout.device != layout.device or not bias.layout.dtype.is_floating_point):
            return None
        sizes = (*layout.size, left.size[-1])
        if 0 in sizes or isinstance(self.buffers[result].value, str):
            return None
        rows, columns, depth = sizes[-3:]
        batch = layout.size[0] if len(layout.size) == 3 else 1
        matrices = [matrices_of(side) for side in sides]  # type: ignore[arg-type]
        return ProductCall(result, matrices[0], matrices[1], bias, batch, rows, columns, depth, layout.dtype)

    def _product_of_groups(self, step: Extern, dtypes: Collection[torch.dtype]) -> ProductCall | None:
        """Of groups of rows and a matrix for each, or of two matrices whose depth is in groups."""
        (result,) = step.outputs
        given = [found for one in step.args[:3] if one is not None and (found := self.view(one)) is not None]
        if len(given) < 3 or result is None:
            return None
        left, right, ends = given
        layout, (count,) = self.buffers[result].layout, ends.layout.size
        dims = (len(left.layout.size), len(right.layout.size))
        rows, columns = layout.size[-2:]
        depth = left.layout.size[-1]
        known = dims in ((2, 3), (2, 2)) and isinstance(count, int) and layout.dtype in dtypes
        if (
            not known
            or count > _MOST_GROUPS
            or 0 in (count, rows, columns, depth)
            or not _fit_together(layout, left.layout, right.layout)
        ):
            return None
        along_depth = dims == (2, 2)
        place = Ends(Matrices(ends.base, ends.layout.offset, (0, 0, *ends.layout.stride)), count, along_depth)
        first, second, batch = matrices_of(left), matrices_of(right), count if along_depth else 1
        return ProductCall(result, first, second, None, batch, rows, columns, depth, layout.dtype, place)

    def view(self, argument: str | View) -> View | None:
        """An argument as a view of its buffer's own memory; None for memory that is read as of another dtype."""
        if isinstance(argument, View):
            return argument if argument.layout.dtype == self.buffers[argument.base].layout.dtype else None
        return View(argument, replace(self.buffers[argument].layout, offset=0))

    def rounded(self, call: ProductCall, sums: str) -> Loops:
        """The loops that store a product, with its bias, in its dtype."""
        ranges = call.ranges
        limits = self.lowered.sizes.ranges(LOOPS, ranges)
        index = [element_at(0, call.strides, limits)]
        ops = [Op("load", (sums, IndexRef(0), None, 0), torch.float32)]
        if call.bias is not None:
            layout = call.bias.layout
            own = [0 if size == 1 else stride for size, stride in zip(layout.size, layout.stride, strict=True)]
            index.append(element_at(layout.offset, (*[0] * (3 - len(own)), *own), limits))
            ops.append(Op("load", (call.bias.base, IndexRef(1), None, 0), layout.dtype))
            if layout.dtype != torch.float32:
                ops.append(Op("to_dtype", (Ref(1), torch.float32), torch.float32))
            ops.append(Op("add", (Ref(0), Ref(len(ops) - 1)), torch.float32))
        if call.dtype != torch.float32:
            ops.append(Op("to_dtype", (Ref(len(ops) - 1), call.dtype), call.dtype))
        ops.append(Op("store", (call.result, IndexRef(0), Ref(len(ops) - 1), None, None), None))
        return Loops((call.result,), LoopBody(LOOPS, ranges, (), (), tuple(index), tuple(ops)))

    def is_read(self, name: str, inside: Sequence[Group | Extern]) -> bool:
        """True if a buffer needs memory: it is a result, or steps outside read it."""
        if name in self.outputs:
            return True
        within = {id(step) for step in inside}
        return any(name in self.effects(step)[0] for step in self.steps if id(step) not in within)

    # ---- order ------------------------------------------------------------------------------------

    def effects(self, step: Group | Extern) -> Effects:
        found = self.known.get(id(step))
        if found is None:
            found = self.known[id(step)] = step, self._effects(step)
        return found[1]

    def by_buffer(self, part: Literal[0, 1]) -> Mapping[str, list[Group | Extern]]:
        """The steps that read (0) or write (1) each buffer, in order."""
        found = defaultdict[str, list[Group | Extern]](list)
        for step in self.steps:
            for name in self.effects(step)[part]:
                found[name].append(step)
        return found

    def _effects(self, step: Group | Extern) -> Effects:
        if isinstance(step, Group):
            return set(step.reads), set(step.writes), any(isinstance(self.buffers[n].value, str) for n in step.writes)
        fixed = step.style == "mutates" or has_effects(step.target, step.args, step.kwargs)
        return extern_reads(step), extern_writes(step), fixed

    def may_move(self, start: int, end: int) -> bool:
        """True if the step at one place may come next to the step at the other place instead."""
        effects = self.effects(self.steps[start])
        between = self.steps[min(start, end) + 1 : max(start, end)]
        return not effects[2] and not any(conflict(effects, self.effects(step)) for step in between)


def conflict(one: Effects, other: Effects) -> bool:
    """True if the order of two steps matters."""
    (reads, writes, fixed), (others_read, others_write, stays) = one, other
    return fixed or stays or not (writes.isdisjoint(others_read | others_write) and reads.isdisjoint(others_write))


def _fit_together(result: Layout, *sides: Layout) -> bool:
    """True if programs may compute such a result: on a device with kernels of products, contiguous."""
    return (
        traits_of(result.device).products
        and all(side.dtype == result.dtype and side.device == result.device for side in sides)
        and same_strides(result.size, contiguous_strides(result.size), result.stride)
        and result.offset == 0
    )


def product_of_windows(steps: ProductSteps, step: Group | Extern) -> ProductCall | None:
    """A convolution of images [N, C, ...] in channels-last format by a kernel in this format, without a bias; None for
    any other step. Its groups of channels are the batch of the product."""
    if not isinstance(step, Extern) or step.target is not _aten.convolution.default or step.style != "returns":
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = step.args
    (result,) = step.outputs
    images, kernel = (steps.view(one) if isinstance(one, str | View) else None for one in (x, weight))
    if images is None or kernel is None or bias is not None or transposed or result is None:
        return None
    layouts = images.layout, kernel.layout, steps.buffers[result].layout
    if not _are_known(*layouts):
        return None
    image, of_kernel, layout = layouts
    taps = of_kernel.size[2:]
    windows = Windows(
        image.size[2:],
        layout.size[2:],
        taps,
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        strides=image.stride[2:],
        apart=image.stride[0],
    )
    channels, out = of_kernel.size[1], of_kernel.size[0] // groups
    depth = channels * math.prod(taps)
    if depth == 1:
        return None
    left = Matrices(images.base, image.offset, (channels, 0, 1))
    right = Matrices(kernel.base, of_kernel.offset, (out * depth, 1, depth))
    rows = math.prod((layout.size[0], *layout.size[2:]))
    return ProductCall(result, left, right, None, groups, rows, out, depth, layout.dtype, windows=windows)


def _are_known(image: Layout, kernel: Layout, result: Layout) -> bool:
    """True for half floats in channels-last format, of known sizes, on a device with kernels of products."""
    layouts = (image, kernel, result)
    sizes: list[Any] = [size for layout in layouts for size in (*layout.size, *layout.stride)]
    return (
        traits_of(result.device).products
        and result.dtype in DTYPES
        and all(layout.dtype == result.dtype and layout.device == result.device for layout in layouts)
        and all(isinstance(size, int) for size in sizes)
        and 0 not in (*image.size, *result.size)
        and all(same_strides(one.size, channels_last_strides(one.size), one.stride) for one in (kernel, result))
        and (image.size[1] == 1 or image.stride[1] == 1)
        and result.offset == 0
    )


def matrices_of(view: View) -> Matrices:
    strides = view.layout.stride
    return Matrices(view.base, view.layout.offset, (strides[0] if len(strides) == 3 else 0, *strides[-2:]))


def element_at(offset: ExprLike, strides: Sequence[Any], ranges: dict[Symbol, Any]) -> Expr:
    total = as_expr(offset)
    for symbol, stride in zip(LOOPS, strides, strict=True):
        low_high = symbol.bounds(ranges)
        total = total + (ZERO if low_high == (0, 0) else symbol * stride)
    return total


def over_elements(
    group: Group,
    results: Sequence[str],
    ranges: tuple[Any, Any, Any],
    lowered: Lowered,
    refused: Collection[str] = _REFUSED,
    *,
    place: Expr | None = None,
) -> list[Loops] | None:
    """The members of a group in terms of (batch, row, column); None if an iteration needs other than one element of
    each product, or if there are operations that an epilogue may not have. place: of an element in memory, by default
    in rows one behind the other."""
    index: Expr | None = None
    for member in group.members:
        body = member.body
        if body.reduction_vars or body.ranges != group.ranges:
            return None
        for op in body.ops:
            if op.name in refused:
                return None
            if op.name == "store" and op.args[3:] != (None, None):
                return None
            if op.name == "load" and op.args[0] in results:
                read = body.indices[op.args[1].position]  # type: ignore[union-attr]
                if index is not None and read is not index:
                    return None
                index = read
    element = element_at(0, contiguous_strides(ranges), lowered.sizes.ranges(LOOPS, ranges)) if place is None else place
    where = None if index is None else loops_at(group, index, element, lowered.sizes)
    if where is None or product(group.ranges) != product(ranges):
        return None
    moved = []
    for member in group.members:
        found = substitute_loops(member, where, LOOPS, ranges, (), (), lowered.sizes)
        pairs = zip(member.body.indices, found.body.indices, strict=True)
        indices = tuple([element if before is index else after for before, after in pairs])
        moved.append(replace(found, body=replace(found.body, indices=indices)))
    return moved


def loops_at(group: Group, index: Expr, place: Expr, sizes: SizeKnowledge) -> dict[Symbol, ExprLike] | None:
    """The loops of a group in which `index` has the value `place`; None if `index` does not walk through neighbouring
    elements, once each."""
    loops = list(zip(group.members[0].body.vars, group.ranges, strict=True))
    if index.substitute({symbol: ZERO for symbol, _ in loops}) != 0:
        return None
    where: dict[Symbol, ExprLike] = {symbol: ZERO for symbol, size in loops if size == 1}
    steps = [(symbol, size, index.coefficient(symbol)) for symbol, size in loops if size != 1]
    if any(step is None for *_, step in steps):
        return None
    steps.sort(key=lambda one: sizes.hint(one[2]))  # type: ignore[arg-type]
    expected: ExprLike = 1
    for at, (symbol, size, step) in enumerate(steps):
        if step != expected:
            return None
        where[symbol] = place // step if at == len(steps) - 1 else (place // step) % size
        expected = step * size
    return where
