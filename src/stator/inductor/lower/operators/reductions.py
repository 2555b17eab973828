"""Lowerings of reductions: sums, extrema, logical reductions, moments, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from stator.inductor.devices import DeviceTraits, traits_of
from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.heuristics import MIN_CORRECTED_ELEMENTS, store_before_reuse
from stator.inductor.lower.registry import lowers, view_targets
from stator.inductor.lower.split_reductions import cut_into_parts, reads_variance_once
from stator.inductor.lower.tensor import Index, Tensor
from stator.inductor.sizes import product
from stator.prims.layout import wrap_dims
from stator.prims.type_promotion import computation_dtype, is_integral
from stator.shapes.expr import Expr

from .pointwise import cast, elementwise
from .views import reshape, squeeze

aten = torch.ops.aten

# The result of reducing no elements. Eager raises for extrema of nothing.
# Sums of this many elements are divided before they are added, where the number of elements is symbolic
_TYPICAL_MOST = 1 << 24

# Elements of a part of a long reduction across neighbours, whose moments one pass computes
_PART = 128

NEUTRAL: dict[str, float | bool] = {"sum": 0, "prod": 1, "any": False, "all": True}


def reduced_dims(x: Tensor, dims: Sequence[int] | int | None) -> tuple[int, ...]:
    """The dimensions of a `dim` argument. None and an empty list mean all dimensions."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(x.rank))
    return wrap_dims(dims, x.rank) if x.rank else ()


def element_count(x: Tensor, dims: Sequence[int]) -> Any:
    return product(x.shape[dim] for dim in dims)


def has_elements(x: Tensor) -> bool:
    """True if the tensor is not empty. For symbolic sizes the compiled code relies on the answer."""
    return all(x.sizes.decide("!=", size, 0) for size in x.shape)


def stored_for_rereading(builder: LoweringBuilder, x: Tensor) -> Tensor:
    """Store `x` if several loops over it would otherwise compute it again each time."""
    root = x.root
    if root.resolved() is None and store_before_reuse(len(root.reads), len(root.work), root.heavy):
        builder.realize(root)
    return x


def reduce(
    builder: LoweringBuilder,
    kind: str,
    x: Tensor,
    dims: Sequence[int],
    dtype: torch.dtype,
    *,
    working: torch.dtype | None = None,
    prologue: Callable[[Any, Ref], Ref] | None = None,
    epilogue: Callable[[Any, Ref], Ref] | None = None,
    keepdim: bool = True,
) -> Tensor:
    """A reduction of `prologue(x)`, computed in `working` dtype, then `epilogue`, converted to `dtype`."""
    working = working or computation_dtype(dtype)
    if kind in NEUTRAL and any(x.shape[dim] == 0 for dim in dims):
        result = _over_nothing(builder, kind, x, dims, dtype, working, epilogue)
        return result if keepdim else squeeze(result, dims)

    def compute(ops: Any, index: Index) -> list[Ref]:
        value = ops.to_dtype(x.load(ops, index), working)
        if prologue is not None:
            value = prologue(ops, value)
        value = ops.reduce(kind, value)
        if epilogue is not None:
            value = epilogue(ops, value)
        return [ops.to_dtype(value, dtype)]

    result = builder.reduction(compute, [x], x.shape, dims, [dtype])[0]
    return result if keepdim else squeeze(result, dims)


def _over_nothing(
    builder: LoweringBuilder,
    kind: str,
    x: Tensor,
    dims: Sequence[int],
    dtype: torch.dtype,
    working: torch.dtype,
    epilogue: Callable[[Any, Ref], Ref] | None,
) -> Tensor:
    """The reduction of no elements: the neutral element everywhere, without a loop to reduce over."""

    def inner(ops: Any, index: Index) -> Ref:
        value = ops.constant(NEUTRAL[kind], working)
        return ops.to_dtype(value if epilogue is None else epilogue(ops, value), dtype)

    kept = tuple(1 if dim in tuple(dims) else size for dim, size in enumerate(x.shape))
    return builder.computed(inner, (), kept, dtype, x.device)


# ---- sums and products


@lowers(aten.sum.default, aten.sum.dim_IntList)
def _sum(
    builder: LoweringBuilder, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    return reduce(builder, "sum", x, reduced_dims(x, dims), builder.meta.dtype, keepdim=keepdim)


@lowers(aten.mean.default, aten.mean.dim)
def _mean(
    builder: LoweringBuilder, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    over = reduced_dims(x, dims)
    count = element_count(x, over)
    return reduce(
        builder,
        "sum",
        x,
        over,
        builder.meta.dtype,
        epilogue=lambda ops, total: ops.div(total, ops.constant(count, ops.dtype(total))),
        keepdim=keepdim,
    )


def rounds_each_product(dtype: torch.dtype, x: Tensor) -> bool:
    """Whether partial products leave the range of `dtype` in eager that would stay in the range of float32."""
    return dtype is torch.float16 and x.device.type == "cpu"


@lowers(aten.prod.default)
def _prod(builder: LoweringBuilder, x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _prod_dim(builder, x, None, dtype=dtype)


@lowers(aten.prod.dim_int)
def _prod_dim(
    builder: LoweringBuilder, x: Tensor, dim: int | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    if rounds_each_product(builder.meta.dtype, x):
        return NotImplemented
    return reduce(builder, "prod", x, reduced_dims(x, dim), builder.meta.dtype, keepdim=keepdim)


# ---- extrema


@lowers(aten.amax.default, aten.amin.default)
def _extremum(builder: LoweringBuilder, x: Tensor, dims: Sequence[int] = (), keepdim: bool = False) -> Any:
    kind = "max" if "amax" in builder.target else "min"
    return reduce(builder, kind, x, reduced_dims(x, dims), x.dtype, keepdim=keepdim)


@lowers(aten.max.dim, aten.min.dim)
def _extremum_along(builder: LoweringBuilder, x: Tensor, dim: int, keepdim: bool = False) -> Any:
    dims = reduced_dims(x, dim)
    if x.rank == 0:
        position = builder.pointwise(lambda ops, value: ops.constant(0, torch.int64), [x], torch.int64)
        return [builder.pointwise(lambda ops, value: value, [x], x.dtype), position]
    if not x.sizes.decide("!=", x.shape[dims[0]], 0) or x.dtype is torch.bool:
        return NotImplemented
    kind = "max" if ".max." in builder.target else "min"
    working = computation_dtype(x.dtype)

    def compute(ops: Any, index: Index) -> list[Ref]:
        value = ops.to_dtype(x.load(ops, index), working)
        return [ops.to_dtype(ops.reduce(kind, value), x.dtype), ops.reduce(f"arg{kind}", value)]

    both = builder.reduction(compute, [x], x.shape, dims, [x.dtype, torch.int64])
    return both if keepdim else [squeeze(part, dims) for part in both]


@lowers(aten.argmax.default, aten.argmin.default)
def _position(builder: LoweringBuilder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    kind = "argmax" if "argmax" in builder.target else "argmin"
    if not has_elements(x):
        return NotImplemented
    if x.rank == 0:
        return builder.pointwise(lambda ops, value: ops.constant(0, torch.int64), [x], torch.int64)
    working = computation_dtype(x.dtype)
    if dim is None:
        result = reduce(builder, kind, reshape(x, (x.numel,)), (0,), torch.int64, working=working)
        return reshape(result, builder.meta.shape)
    dims = reduced_dims(x, dim)
    return reduce(builder, kind, x, dims, torch.int64, working=working, keepdim=keepdim)


# ---- logical


@lowers(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims)
def _logical(builder: LoweringBuilder, x: Tensor, dims: Any = None, keepdim: bool = False) -> Any:
    if builder.meta.dtype is not torch.bool:  # eager keeps uint8
        return NotImplemented
    kind = "any" if ".any." in builder.target else "all"
    if isinstance(dims, list) and not dims:
        return NotImplemented
    return reduce(builder, kind, x, reduced_dims(x, dims), torch.bool, working=torch.bool, keepdim=keepdim)


# ---- moments


def moments(
    builder: LoweringBuilder,
    x: Tensor,
    dims: Sequence[int],
    finish: Callable[[Any, Ref], Ref],
    dtype: torch.dtype,
    squares_dtype: torch.dtype | None = None,
    halvings: int | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """`finish(sum of squared deviations)`, the mean, and a list of tensors that add up to the mean, over `dims` (kept
    with size one).

    halvings: addends of the mean are divided by 4**halvings, and squares too, so that a sum of 4**halvings addends
    overflows only if the result does. None: sums may overflow, and those of short rows are not corrected. Where parts
    of a long reduction are read once, addends are divided by 2**halvings.
    squares_dtype: a dtype in which squares need no such division.
    """
    working, count = computation_dtype(x.dtype), element_count(x, dims)
    typical = builder.sizes.hint(count)
    corrected = typical >= MIN_CORRECTED_ELEMENTS or halvings is not None
    traits = traits_of(x.device)

    def halved(ops: Any, value: Ref, times: int) -> Ref:
        return ops.mul(value, ops.constant(0.5**times, ops.dtype(value))) if times else value

    if halvings is None and not traits.programs and typical > traits.column:
        parts = _parts_across(x, dims)
        if parts is not None:
            return _moments_of_parts(builder, *parts, finish, dtype)
    # shorter reductions read their data twice: it stays near, and plain loops are quicker than Welford's updates
    once = typical > traits.two_pass_elements or _is_split(x, dims, traits)
    if once and (halvings is None or (traits.programs and squares_dtype is None)):

        def compute(ops: Any, index: Index) -> list[Ref]:
            mean, squares, _ = ops.welford(halved(ops, ops.to_dtype(x.load(ops, index), working), halvings or 0))
            mean = halved(ops, mean, -(halvings or 0))
            return [ops.to_dtype(finish(ops, squares), dtype), ops.to_dtype(mean, dtype)]

        spread, mean = builder.reduction(compute, [x], x.shape, dims, [dtype, dtype])
        return spread, mean, [mean]
    x = stored_for_rereading(builder, x)
    halvings = halvings or 0
    smaller = halvings if squares_dtype is None else 0

    rounded = reduce(
        builder,
        "sum",
        x,
        dims,
        working,
        prologue=lambda ops, value: halved(ops, value, 2 * halvings),
        epilogue=lambda ops, total: ops.div(total, _scaled_count(ops, count, halvings, working)),
    )

    def from_deviations(ops: Any, index: Index) -> list[Ref]:
        at = tuple(0 if dim in dims else position for dim, position in enumerate(index))
        center = ops.to_dtype(rounded.load(ops, at), squares_dtype or working)
        deviation = ops.sub(ops.to_dtype(x.load(ops, index), ops.dtype(center)), center)
        deviation = halved(ops, deviation, smaller)
        squares = ops.reduce("sum", ops.mul(deviation, deviation))
        if not corrected:
            return [ops.to_dtype(finish(ops, squares), dtype), ops.to_dtype(center, dtype)]
        total = ops.reduce("sum", deviation)
        # deviations that overflow leave nothing to correct: the squares are infinite, the rounded mean is not
        overflows = ops.ge(ops.abs(squares), ops.constant(math.inf, ops.dtype(squares)))
        total = ops.where(overflows, ops.constant(0.0, ops.dtype(total)), total)
        share = ops.div(total, ops.constant(count, ops.dtype(total)))  # the rounding error of `rounded`
        squares = ops.abs(ops.fma(ops.neg(total), share, squares))
        share = halved(ops, share, -smaller)
        parts = [(finish(ops, squares), dtype), (ops.add(center, share), dtype), (share, working)]
        return [ops.to_dtype(part, to) for part, to in parts]

    dtypes = [dtype, dtype, working] if corrected else [dtype, dtype]
    spread, mean, *rest = builder.reduction(from_deviations, [x, rounded], x.shape, tuple(dims), dtypes)
    return spread, mean, [rounded, *rest]


def _parts_across(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, list[int], list[int]] | None:
    """x with one of these dimensions cut in two, the dimensions over parts, and those within a part; None where
    neighbouring elements lie in one row, or nothing cuts rows evenly."""
    kept, reduced = _in_memory_order(x, dims)
    if not _lies_across(x, kept, reduced) or list(reduced) != list(dims):
        return None
    split = cut_into_parts(tuple([x.shape[dim] for dim in dims]), _PART, True, x.sizes)
    if split is None:
        return None
    at, size = dims[split.at], x.shape[dims[split.at]]
    piece = split.piece if split.whole else 1
    rows = [piece, *(x.shape[dim] for dim in dims if dim > at)]
    if any(isinstance(row, Expr) for row in rows) or not _PART // 8 <= math.prod(rows) <= 2 * _PART:
        return None
    cut = reshape(x, (*x.shape[:at], size // piece, piece, *x.shape[at + 1 :]))
    return cut, [dim for dim in dims if dim <= at], [dim + 1 for dim in dims if dim >= at]


def _moments_of_parts(
    builder: LoweringBuilder,
    x: Tensor,
    over: Sequence[int],
    within: Sequence[int],
    finish: Callable[[Any, Ref], Ref],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Moments of parts, which read x once, then of all (T. Chan, G. Golub and R. LeVeque, 1983). The sums of a part are
    those of distances from its first element. The squares of n such distances add up to at most n + 1 times the sum of
    the squared deviations, because the first element has a deviation, too: this bounds what cancels."""
    working, length = computation_dtype(x.dtype), math.prod([x.shape[dim] for dim in within])
    x = stored_for_rereading(builder, x)

    def of_part(ops: Any, index: Index) -> list[Ref]:
        begin = tuple(0 if dim in within else position for dim, position in enumerate(index))
        first = ops.to_dtype(x.load(ops, begin), working)
        distance = ops.sub(ops.to_dtype(x.load(ops, index), working), first)
        squares, total = ops.reduce("sum", ops.mul(distance, distance)), ops.reduce("sum", distance)
        share = ops.div(total, ops.constant(length, working))
        return [ops.abs(ops.fma(ops.neg(total), share, squares)), ops.add(first, share)]

    squares, means = builder.reduction(of_part, [x], x.shape, tuple(within), [working, working])
    number = element_count(means, over)

    def average(ops: Any, total: Ref) -> Ref:
        return ops.div(total, ops.constant(number, working))  # type: ignore[no-any-return]

    mean = reduce(builder, "sum", means, over, working, epilogue=average)

    def of_all(ops: Any, index: Index) -> list[Ref]:
        at = tuple(0 if dim in over else position for dim, position in enumerate(index))
        away = ops.sub(means.load(ops, index), mean.load(ops, at))
        between = ops.mul(ops.mul(away, away), ops.constant(length, working))
        return [ops.to_dtype(finish(ops, ops.reduce("sum", ops.add(squares.load(ops, index), between))), dtype)]

    (spread,) = builder.reduction(of_all, [squares, means, mean], means.shape, tuple(over), [dtype])
    mean = cast(builder, mean, dtype)
    spread, mean = (squeeze(part, [within[0]]) for part in (spread, mean))
    return spread, mean, [mean]


def _in_memory_order(x: Tensor, dims: Sequence[int]) -> tuple[list[int], list[int]]:
    """The other dimensions and these, the largest steps first."""
    steps = x.sizes.hints(x.strides)
    order = sorted(range(x.rank), key=lambda dim: -steps[dim])
    kept, reduced = ([dim for dim in order if (dim in dims) is inside] for inside in (False, True))
    return kept, reduced


def _lies_across(x: Tensor, kept: Sequence[int], reduced: Sequence[int]) -> bool:
    """True if neighbouring elements lie in other rows."""
    steps = x.sizes.hints(x.strides)
    return bool(kept and reduced) and steps[kept[-1]] < steps[reduced[-1]]


def _is_split(x: Tensor, dims: Sequence[int], traits: DeviceTraits) -> bool:
    """Whether moments over these dimensions are computed in parts, for which reading the data twice is two kernels
    more."""
    kept, reduced = _in_memory_order(x, dims)
    across = _lies_across(x, kept, reduced)
    ranges, reduced_ranges = (tuple([x.shape[dim] for dim in some]) for some in (kept, reduced))
    return across and reads_variance_once(ranges, reduced_ranges, across, x.sizes, traits)


def _scaled_count(ops: Any, count: Any, halvings: int, dtype: torch.dtype) -> Ref:
    """A number of elements, divided by 4**halvings."""
    if not isinstance(count, Expr):
        return ops.constant(count * 0.25**halvings, dtype)
    number = ops.constant(count, dtype)
    return ops.mul(number, ops.constant(0.25**halvings, dtype)) if halvings else number


def _variance(
    builder: LoweringBuilder, x: Tensor, dims: Any, correction: float | None, root: bool
) -> tuple[Tensor, Tensor]:
    over = reduced_dims(x, dims)
    count = element_count(x, over)
    subtracted = 1 if correction is None else correction
    symbolic = isinstance(count, Expr)
    # of symbolic numbers of elements, more than the example's may overflow
    largest = max(builder.sizes.hint(count), _TYPICAL_MOST) if symbolic else count
    halvings = math.ceil(math.log2(largest) / 2)
    squares_dtype, factor = None, 0.25**halvings
    if x.device.type == "cpu" and (root or x.dtype is torch.float64):
        # as in eager's CPU kernels: squares may leave the range of their root
        squares_dtype, factor = torch.float64, 1.0

    def divisor(ops: Any, dtype: torch.dtype) -> Ref:
        if not symbolic:
            return ops.constant(max(count - subtracted, 0) * factor, dtype)
        number = ops.sub(ops.constant(count, torch.float64), ops.constant(subtracted, torch.float64))
        number = ops.maximum(number, ops.constant(0.0, torch.float64))
        return ops.to_dtype(ops.mul(number, ops.constant(factor, torch.float64)), dtype)

    def finish(ops: Any, squares: Ref) -> Ref:
        variance = ops.div(squares, divisor(ops, ops.dtype(squares)))
        return ops.sqrt(variance) if root else variance

    return moments(builder, x, over, finish, x.dtype, squares_dtype, halvings)[:2]


@lowers(aten.var_mean.correction, aten.std_mean.correction)
def _var_mean(
    builder: LoweringBuilder, x: Tensor, dims: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    if not has_elements(x) or is_integral(x.dtype):
        return NotImplemented
    both = _variance(builder, x, dims, correction, ".std" in builder.target)
    return list(both) if keepdim else [squeeze(part, reduced_dims(x, dims)) for part in both]


@lowers(aten.var.correction, aten.std.correction)
def _var(builder: LoweringBuilder, x: Tensor, dims: Any = None, **options: Any) -> Any:
    both = _var_mean(builder, x, dims, **options)
    return both if both is NotImplemented else both[0]


@lowers(aten.linalg_vector_norm.default)
def _vector_norm(
    builder: LoweringBuilder,
    x: Tensor,
    order: float = 2,
    dims: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if order not in (1, 2) or is_integral(x.dtype) or (dtype is not None and dtype is not x.dtype):
        return NotImplemented

    def term(ops: Any, value: Ref) -> Ref:
        return ops.abs(value) if order == 1 else ops.mul(value, value)

    root = None if order == 1 else lambda ops, total: ops.sqrt(total)
    return reduce(builder, "sum", x, reduced_dims(x, dims), x.dtype, prologue=term, epilogue=root, keepdim=keepdim)


# ---- softmax


@lowers(aten._softmax.default)
def _softmax(builder: LoweringBuilder, x: Tensor, dim: int, half_to_float: bool = False) -> Any:
    if x.rank == 0 or not has_elements(x) or is_integral(x.dtype):
        return NotImplemented
    x, largest, dims, working = _softmax_parts(builder, x, dim)
    distance = _distance_of_weights if _weighs_products(builder, working) else _distance
    powers = elementwise(
        builder, lambda ops, v, m: ops.exp(distance(ops, v, m)), [cast(builder, x, working), largest], heavy=True
    )
    builder.realize(powers)
    total = reduce(builder, "sum", powers, dims, working)
    once = bool(traits_of(x.device).programs)  # there a division takes the time of ten products

    def share(ops: Any, power: Ref, total: Ref) -> Ref:
        return ops.mul(power, ops.reciprocal(total)) if once else ops.div(power, total)

    return cast(builder, elementwise(builder, share, [powers, total]), builder.meta.dtype)


def _distance(ops: Any, value: Ref, largest: Ref) -> Ref:
    return ops.sub(value, largest)  # type: ignore[no-any-return]


# Powers of distances between these bounds, divided by their sum, may be denormal numbers, with which processors compute
# a hundred times slower: with a mask of -100, these are most of the weights.
_LEAST_DISTANCE, _VANISHING_DISTANCE = -80.0, -104.0


def _distance_of_weights(ops: Any, value: Ref, largest: Ref) -> Ref:
    """Distances whose powers are no denormal numbers. Weights below 2e-35 are too large by at most as much, so that
    sums of products with these weights change by less than they are rounded; what is zero stays zero."""
    distance = ops.sub(value, largest)
    least, vanishing, infinity = (
        ops.constant(number, torch.float32) for number in (_LEAST_DISTANCE, _VANISHING_DISTANCE, -math.inf)
    )
    vanishes = ops.lt(distance, vanishing)
    return ops.where(vanishes, infinity, ops.maximum(distance, least))  # type: ignore[no-any-return]


_WEIGHING = frozenset((aten.mm.default, aten.bmm.default))


def _weighs_products(builder: LoweringBuilder, working: torch.dtype) -> bool:
    """True for a softmax in float32 on a CPU whose results are only multiplied with matrices."""

    def only_weighs(node: fx.Node) -> bool:
        return bool(node.users) and all(
            user.target in _WEIGHING or (user.target in view_targets and only_weighs(user)) for user in node.users
        )

    meta = builder.meta
    single = working is torch.float32 and meta.dtype is torch.float32
    return single and not traits_of(meta.device).programs and only_weighs(builder.node)


@lowers(aten._log_softmax.default)
def _log_softmax(builder: LoweringBuilder, x: Tensor, dim: int, half_to_float: bool = False) -> Any:
    if x.rank == 0 or not has_elements(x) or is_integral(x.dtype):
        return NotImplemented
    x, largest, dims, working = _softmax_parts(builder, x, dim)
    shifted = elementwise(builder, lambda ops, v, m: ops.sub(v, m), [cast(builder, x, working), largest])
    total = reduce(
        builder, "sum", shifted, dims, working, prologue=lambda ops, v: ops.exp(v), epilogue=lambda ops, s: ops.log(s)
    )
    return cast(builder, elementwise(builder, lambda ops, v, s: ops.sub(v, s), [shifted, total]), builder.meta.dtype)


def _softmax_parts(
    builder: LoweringBuilder, x: Tensor, dim: int
) -> tuple[Tensor, Tensor, tuple[int, ...], torch.dtype]:
    working = computation_dtype(x.dtype)
    dims = reduced_dims(x, dim)
    x = stored_for_rereading(builder, x)
    return x, reduce(builder, "max", x, dims, working), dims, working


@lowers(aten.logsumexp.default)
def _logsumexp(builder: LoweringBuilder, x: Tensor, dims: Any, keepdim: bool = False) -> Any:
    if not has_elements(x) or is_integral(x.dtype):
        return NotImplemented
    working = computation_dtype(x.dtype)
    over = reduced_dims(x, dims)
    x = stored_for_rereading(builder, x)

    def finite(ops: Any, largest: Ref) -> Ref:
        """Replace an infinite maximum, which must not be subtracted from itself."""
        return ops.where(ops.isinf(largest), ops.constant(0, working), largest)

    shift = reduce(builder, "max", x, over, working, epilogue=finite)
    shifted = elementwise(builder, lambda ops, v, m: ops.sub(v, m), [cast(builder, x, working), shift])
    total = reduce(
        builder, "sum", shifted, over, working, prologue=lambda ops, v: ops.exp(v), epilogue=lambda ops, s: ops.log(s)
    )
    result = cast(builder, elementwise(builder, lambda ops, s, m: ops.add(s, m), [total, shift]), x.dtype)
    return result if keepdim else squeeze(result, over)
