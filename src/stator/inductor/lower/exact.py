"""Lowerings that give the bits of ATen's kernels, whatever the layout and the number of threads: what `exact_rounding`
puts into loops. Every operator that is not registered here is called under that option. Nothing is lowered otherwise
than without the option, but for formulas that ATen computes step by step in an order of its own.

An operator belongs here when IEEE arithmetic alone fixes its value: ATen's kernels compute vectors and what is left of
a row by different code, which must agree for NaN, infinities and zeros of either sign too, or else where an element
lies would matter. Not here: sums (their order), transcendental functions (each has a vector and a scalar form), float
maximum and minimum of two tensors (of zeros of either sign), fused multiplications (not on every processor).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from stator.base.registry import Registry
from stator.graph.subgraphs.subgraph_ops import run, run_random
from stator.inductor.loops.body import Ref
from stator.inductor.loops.folding import as_dtype
from stator.prims.layout import contiguous_strides, wrap_dim
from stator.prims.operators import random
from stator.prims.operators.table_gradients import add_rows_of_table
from stator.prims.type_promotion import common_dtype, computation_dtype, is_integral
from stator.runtime.batch_statistics import BatchStatistics, is_as_aten
from stator.runtime.softmax_gradient import may_overwrite_gradient
from stator.runtime.table_rows import add_rows

from .builder import LoweringBuilder, same_strides
from .operators.library import is_overwritable
from .operators.pointwise import elementwise
from .operators.views import reshape
from .registry import Lowering, lowerings, view_targets
from .tensor import Tensor

aten = torch.ops.aten

exact_lowerings: Registry[Any, Lowering] = Registry("exact lowering")
Condition = Callable[[LoweringBuilder, tuple[Any, ...], dict[str, Any]], bool]

_FLOATS = (torch.float32, torch.float64)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _as_registered(condition: Condition, *targets: Any) -> None:
    """The usual lowerings of these overloads, where the condition holds."""
    for target in targets:
        exact_lowerings.add(target, _guarded(condition, lowerings[target]))


def _guarded(condition: Condition, lowering: Lowering) -> Lowering:
    def guarded(builder: LoweringBuilder, *args: Any, **kwargs: Any) -> Any:
        return lowering(builder, *args, **kwargs) if condition(builder, args, kwargs) else NotImplemented

    return guarded


def _overloads(names: str) -> list[Any]:
    found = []
    for name in names.split():
        packet, _, kinds = name.partition(".")
        found += [getattr(getattr(aten, packet), kind) for kind in (kinds or "default").split("|")]
    return found


# ---- memory


def _always(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def _of_one_dtype(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Elements are moved as they are: all tensors have the result's dtype, apart from masks."""
    dtype = builder.meta.dtype
    return all(tensor.dtype in (dtype, torch.bool) for tensor in _tensors(args, kwargs))


_as_registered(_always, *sorted(view_targets, key=str))
exact_lowerings.add(aten.unsafe_split.Tensor, lowerings[aten.split.Tensor])  # they are views, but say nothing of it
exact_lowerings.add(aten.unsafe_split_with_sizes.default, lowerings[aten.split_with_sizes.default])
_as_registered(_always, run, run_random, random.seed, random.uniform, random.bernoulli, random.integers, random.normal)
_as_registered(
    _of_one_dtype,
    *_overloads(
        "clone contiguous copy cat stack constant_pad_nd slice_scatter select_scatter flip roll repeat tril triu"
    ),
    *_overloads("where.self|ScalarSelf|ScalarOther|Scalar masked_fill.Scalar|Tensor"),
)
_as_registered(
    _always,
    *_overloads("full full_like new_full zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor fill.Scalar"),
)


@exact_lowerings.register(aten.unsafe_chunk.default)
def _unsafe_chunk(builder: LoweringBuilder, x: Tensor, chunks: int, dim: int = 0) -> Any:
    extent = x.shape[wrap_dim(dim, x.rank)]
    if not extent:
        return NotImplemented
    return lowerings[aten.split.Tensor](builder, x, -(-extent // chunks), dim)


@exact_lowerings.register(aten._to_copy.default)
def _to_copy(builder: LoweringBuilder, x: Tensor, **kwargs: Any) -> Any:
    """Numbers that the new dtype does not hold are converted by whatever instruction a kernel has for it."""
    dtype = builder.meta.dtype
    truncates = x.dtype.is_floating_point and dtype is not torch.bool and is_integral(dtype)
    if dtype is not x.dtype and (truncates or not _is_plain((x.dtype, dtype))):
        return NotImplemented
    return lowerings[aten._to_copy.default](builder, x, **kwargs)


# ---- arithmetic


def _is_plain(dtypes: Any) -> bool:
    """Computed as they are: half floats are rounded after each operator by eager, but not inside of each."""
    return all(computation_dtype(dtype) is dtype for dtype in dtypes)


def _plain(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _is_plain([builder.meta.dtype, *(tensor.dtype for tensor in _tensors(args, kwargs))])


def _unscaled(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A sum or difference without a factor, which would be one rounding on some processors and two on others."""
    alpha = args[2] if len(args) > 2 else kwargs.get("alpha", 1)
    return alpha == 1 and builder.meta.dtype is not torch.bool and _plain(builder, args, kwargs)


def _integers(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return is_integral(common_dtype(args)) and _plain(builder, args, kwargs)


def _floats(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return all(tensor.dtype in _FLOATS for tensor in _tensors(args, kwargs))


def _between_numbers(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    bounds = [bound for bound in (*args[1:], *kwargs.values()) if bound is not None]
    known = all(isinstance(bound, int | float) and not math.isnan(bound) for bound in bounds)
    return known and builder.meta.dtype is args[0].dtype and _plain(builder, args, kwargs)


def _small_power(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return args[1] in (2, 3) and _floats(builder, args, kwargs)


_as_registered(_unscaled, *_overloads("add.Tensor|Scalar sub.Tensor|Scalar rsub.Tensor|Scalar"))
_as_registered(_plain, *_overloads("mul.Tensor|Scalar div.Tensor|Scalar neg abs"))
_as_registered(_plain, *_overloads("eq.Tensor|Scalar ne.Tensor|Scalar lt.Tensor|Scalar le.Tensor|Scalar"))
_as_registered(_plain, *_overloads("gt.Tensor|Scalar ge.Tensor|Scalar logical_not isnan isinf"))
_as_registered(_plain, *_overloads("bitwise_and.Tensor|Scalar bitwise_or.Tensor|Scalar bitwise_xor.Tensor|Scalar"))
_as_registered(_plain, *_overloads("bitwise_not logical_and logical_or logical_xor"))
_as_registered(_integers, *_overloads("maximum minimum"))
_as_registered(_floats, *_overloads("rsqrt"))
_as_registered(_between_numbers, *_overloads("clamp clamp_min clamp_max"))
_as_registered(_small_power, aten.pow.Tensor_Scalar)


# ---- gradients of losses and tables


@exact_lowerings.register(aten._log_softmax_backward_data.default)
def _log_softmax_backward(
    builder: LoweringBuilder, gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    """In the memory of the loss's gradient: over a large vocabulary each of them is as large as a layer's weight."""
    plain = gradient.rank == 2 and wrap_dim(dim, 2) == 1 and input_dtype is gradient.dtype
    alike = gradient.shape == output.shape == builder.meta.shape and builder.meta.dtype is gradient.dtype
    if not plain or not alike or not all(map(is_contiguous_float, (gradient, output))):
        return NotImplemented
    if not is_overwritable(builder, gradient, (aten.nll_loss_backward.default,), ("returns",)):
        return NotImplemented
    if not may_overwrite_gradient(gradient.dtype, torch.get_num_threads()):
        return NotImplemented
    target = aten._log_softmax_backward_data.out
    return builder.add_to(gradient, target, [builder.argument(output), dim, input_dtype])


@exact_lowerings.register(add_rows_of_table)
def _add_rows_of_table(builder: LoweringBuilder, total: Tensor, gradient: Tensor, indices: Tensor, *rest: Any) -> Any:
    if not is_overwritable(builder, total, (aten.mm.default, add_rows_of_table), ("out", "returns")):
        return NotImplemented
    return builder.add_to(total, add_rows, [builder.argument(gradient), builder.argument(indices), *rest])


# ---- activations


_as_registered(_plain, *_overloads("relu threshold_backward"))
_as_registered(_floats, *_overloads("leaky_relu threshold sigmoid_backward leaky_relu_backward"))


def _formula(*targets: Any) -> Callable[[Callable[..., Ref]], Callable[..., Ref]]:
    """Decorator: `function(ops, *values)` of the operator's tensors, in the order in which ATen computes it."""

    def decorate(function: Callable[..., Ref]) -> Callable[..., Ref]:
        def lowering(builder: LoweringBuilder, *operands: Any) -> Any:
            return elementwise(builder, function, operands) if _floats(builder, operands, {}) else NotImplemented

        for target in targets:
            exact_lowerings.add(target, lowering)
        return function

    return decorate


def _number(ops: Any, like: Ref, value: float) -> Ref:
    return ops.constant(value, ops.dtype(like))


def _up_to_six(ops: Any, x: Ref) -> Ref:
    shifted = ops.maximum(_number(ops, x, 0), ops.add(x, _number(ops, x, 3)))
    return ops.minimum(_number(ops, x, 6), shifted)


@_formula(aten.hardsigmoid.default)
def _hardsigmoid(ops: Any, x: Ref) -> Ref:
    return ops.div(_up_to_six(ops, x), _number(ops, x, 6))


@_formula(aten.hardswish.default)
def _hardswish(ops: Any, x: Ref) -> Ref:
    return ops.div(ops.mul(x, _up_to_six(ops, x)), _number(ops, x, 6))


@_formula(aten.hardsigmoid_backward.default)
def _hardsigmoid_backward(ops: Any, grad: Ref, x: Ref) -> Ref:
    inside = ops.bitwise_and(ops.gt(x, _number(ops, x, -3)), ops.lt(x, _number(ops, x, 3)))
    sixth = _number(ops, x, as_dtype(1 / 6, torch.float32))  # in single precision, whatever the dtype
    return ops.where(inside, ops.mul(grad, sixth), _number(ops, x, 0))


@exact_lowerings.register(aten.tanh_backward.default)
def _tanh_backward(builder: LoweringBuilder, grad: Tensor, y: Tensor) -> Any:
    """Where the processor has fused multiplications, ATen's code has one."""
    known = is_as_aten() and _floats(builder, (grad, y), {})
    return lowerings[aten.tanh_backward.default](builder, grad, y) if known else NotImplemented


# ---- batch normalisation


@exact_lowerings.register(aten._native_batch_norm_legit_functional.default)
def _batch_norm(
    builder: LoweringBuilder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Of contiguous images, by statistics that are added up in ATen's order. ATen normalises with one fused
    multiplication of a vector, also for what is left of a row."""
    given = [x, running_mean, running_var, weight, bias]
    batch, channels, *rest = x.shape
    # images of one number are summed along with the channels; strides of one channel may say another layout to ATen
    if not training or math.prod(rest) == 1 or channels == 1 or not is_as_aten():
        return NotImplemented
    if not all(map(is_contiguous_float, given)):
        return NotImplemented
    arguments = [builder.argument(part, contiguous_strides(part.shape)) for part in given if part is not None]
    metas = [*builder.meta[1:], builder.meta[1], builder.meta[1]]
    statistics = BatchStatistics(batch, channels, math.prod(rest), momentum, eps)
    *results, factor, offset = builder.extern(statistics, arguments, {}, metas)
    per_channel = (1, channels, *([1] * len(rest)))
    operands: list[Any] = [x, *(reshape(part, per_channel) for part in (factor, offset))]  # type: ignore[arg-type]
    return [elementwise(builder, lambda ops, value, scale, shift: ops.fma(value, scale, shift), operands), *results]


def is_contiguous_float(part: Tensor | None) -> bool:
    if part is None or part.dtype is not torch.float32 or part.device.type != "cpu" or part.numel == 0:
        return False
    return not part.deviates and same_strides(part.shape, part.strides, contiguous_strides(part.shape))
