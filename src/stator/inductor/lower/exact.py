"""The operators that become loops under `exact_rounding`: those with bits that IEEE 754 fixes. ATen computes all
others.

The rule: an operator is listed here if each element of its result is a copy, a comparison, a selection, or a sequence
of sums, differences, products, quotients and `1 / sqrt` in ATen's order, each rounded once. Its usual lowering then
gives ATen's bits for every layout and number of threads. Unlisted, because ATen's bits depend on more: sums and
products of matrices (their order), functions that a library approximates (square roots included), the maximum and
minimum of two floats (zeros of either sign), sums with a factor (one rounding or two), arithmetic in half floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from stator.base.registry import Registry
from stator.graph.subgraphs.subgraph_ops import run, run_random
from stator.prims.layout import wrap_dim
from stator.prims.operators import random
from stator.prims.type_promotion import common_dtype, computation_dtype, is_integral

from .builder import LoweringBuilder
from .registry import Lowering, lowerings, view_targets
from .tensor import Tensor

aten = torch.ops.aten

Condition = Callable[[LoweringBuilder, tuple[Any, ...], dict[str, Any]], bool]

_FLOATS = (torch.float32, torch.float64)
_conditions: Registry[Any, Condition] = Registry("condition of an exact lowering")


def exact_lowering(target: Any) -> Lowering | None:
    """The lowering of an operator that becomes loops under `exact_rounding`; None for all other operators.

    It returns NotImplemented for arguments with which ATen's bits depend on more than IEEE 754."""
    if target in view_targets:
        return lowerings[target]
    if target in _SPLITS:
        return _SPLITS[target]
    condition = _conditions.get(target)
    if condition is None:
        return None

    def guarded(builder: LoweringBuilder, *args: Any, **kwargs: Any) -> Any:
        return lowerings[target](builder, *args, **kwargs) if condition(builder, args, kwargs) else NotImplemented

    return guarded


def _fuse_if(condition: Condition, *targets: Any) -> None:
    """Use the usual lowerings of these overloads where the condition is true, and ATen elsewhere."""
    for target in targets:
        _conditions.add(target, condition)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _overloads(names: str) -> list[Any]:
    found = []
    for name in names.split():
        packet, _, kinds = name.partition(".")
        found += [getattr(getattr(aten, packet), kind) for kind in (kinds or "default").split("|")]
    return found


# ---- conditions


def _always(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def _of_one_dtype(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Elements are copied without conversion: all tensors except masks have the result's dtype."""
    dtype = builder.meta.dtype
    return all(tensor.dtype in (dtype, torch.bool) for tensor in _tensors(args, kwargs))


def _is_plain(dtypes: Any) -> bool:
    """True if arithmetic happens in these dtypes themselves. Half floats are computed in float32, and eager rounds them
    after each operator, but not inside of an operator."""
    return all(computation_dtype(dtype) is dtype for dtype in dtypes)


def _plain(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _is_plain([builder.meta.dtype, *(tensor.dtype for tensor in _tensors(args, kwargs))])


def _unscaled(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A sum or difference without a factor, which ATen rounds once on some processors and twice on others."""
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


def _held_by_dtype(builder: LoweringBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """ATen's conversion of a number that the new dtype cannot represent depends on the processor's instruction."""
    source, dtype = args[0].dtype, builder.meta.dtype
    truncates = source.is_floating_point and dtype is not torch.bool and is_integral(dtype)
    return dtype is source or (not truncates and _is_plain((source, dtype)))


# ---- memory

_fuse_if(_always, run, run_random, random.seed, random.uniform, random.bernoulli, random.integers, random.normal)
_fuse_if(
    _of_one_dtype,
    *_overloads("clone contiguous copy cat stack constant_pad_nd slice_scatter flip roll"),
    *_overloads("where.self|ScalarSelf|ScalarOther|Scalar masked_fill.Scalar|Tensor"),
)
_fuse_if(
    _always,
    *_overloads("full full_like new_full zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor fill.Scalar"),
)
_fuse_if(_held_by_dtype, aten._to_copy.default)

# ---- arithmetic

_fuse_if(_unscaled, *_overloads("add.Tensor|Scalar sub.Tensor|Scalar rsub.Tensor|Scalar"))
_fuse_if(_plain, *_overloads("mul.Tensor|Scalar div.Tensor|Scalar neg abs"))
_fuse_if(_plain, *_overloads("eq.Tensor|Scalar ne.Tensor|Scalar lt.Tensor|Scalar le.Tensor|Scalar"))
_fuse_if(_plain, *_overloads("gt.Tensor|Scalar ge.Tensor|Scalar logical_not isnan isinf"))
_fuse_if(_plain, *_overloads("bitwise_and.Tensor|Scalar bitwise_or.Tensor|Scalar bitwise_xor.Tensor|Scalar"))
_fuse_if(_plain, *_overloads("bitwise_not logical_and logical_or logical_xor relu threshold_backward"))
_fuse_if(_integers, *_overloads("maximum minimum"))
_fuse_if(_floats, *_overloads("rsqrt leaky_relu threshold sigmoid_backward leaky_relu_backward"))
_fuse_if(_between_numbers, *_overloads("clamp clamp_min clamp_max"))
_fuse_if(_small_power, aten.pow.Tensor_Scalar)

# ---- views that schemas do not declare as views


def _split(builder: LoweringBuilder, x: Tensor, size: int, dim: int = 0) -> Any:
    return lowerings[aten.split.Tensor](builder, x, size, dim)


def _split_with_sizes(builder: LoweringBuilder, x: Tensor, sizes: Sequence[int], dim: int = 0) -> Any:
    return lowerings[aten.split_with_sizes.default](builder, x, sizes, dim)


def _chunk(builder: LoweringBuilder, x: Tensor, chunks: int, dim: int = 0) -> Any:
    extent = x.shape[wrap_dim(dim, x.rank)]
    return _split(builder, x, -(-extent // chunks), dim) if extent != 0 else NotImplemented


_SPLITS: dict[Any, Lowering] = {
    aten.unsafe_split.Tensor: _split,
    aten.unsafe_split_with_sizes.default: _split_with_sizes,
    aten.unsafe_chunk.default: _chunk,
}
