"""The decorator that registers decompositions: it computes half floats in float32, and casts and lays out the results
by the operator's shape rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from stator.base.registry import name_lambda
from stator.prims.layout import always_equal, channels_last_strides, contiguous_strides, is_dense, several_sizes
from stator.prims.record import Decomposition, TensorMeta, decomposition, record
from stator.prims.shape_rules.operands import overloads
from stator.prims.type_promotion import computation_dtype

aten = torch.ops.aten


def decomposes(names: str, *, wide: bool = True) -> Callable[[Decomposition], Decomposition]:
    """Decorator: the decomposition of the overloads in a blank-separated list (those that this torch has).

    wide: pass float16 and bfloat16 arguments as float32, in which eager accumulates.
    """

    def decorate(rule: Decomposition) -> Decomposition:
        for target in overloads(names):
            if wide and record(target).shape is None:
                raise ValueError(f"{target} needs a shape rule, which says what dtype to return to")
            decomposition(target)(conforming(target, rule, wide))
        return rule

    return decorate


def decomposition_table(rules: Mapping[str, Decomposition], *, wide: bool = True) -> None:
    """Register decompositions of one expression. Arguments come by name only where the schema asks for it."""
    for names, rule in rules.items():
        decomposes(names, wide=wide)(name_lambda(rule, names.split()[0]))


def conforming(target: torch._ops.OpOverload, rule: Decomposition, wide: bool) -> Decomposition:
    """Wrap a rule: widen its arguments, and cast and lay out its results by the operator's shape rule, if there is
    one."""
    entry = record(target)

    @functools.wraps(rule)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if wide and entry.shape is not None:
            result = rule(*[widened(value) for value in args], **kwargs)
        else:
            result = rule(*args, **kwargs)
        if result is NotImplemented or entry.shape is None:
            return result
        expected = entry.shape(*args, **kwargs)
        return result if expected is NotImplemented else conform(result, expected)

    return decomposed


def widened(value: Any) -> Any:
    """Return a half-width floating tensor as float32; anything else unchanged."""
    if isinstance(value, torch.Tensor):
        dtype = computation_dtype(value.dtype)
        return value if dtype is value.dtype else aten._to_copy.default(value, dtype=dtype)
    if isinstance(value, (tuple, list)):
        return type(value)(widened(item) for item in value)
    return value


def conform(result: Any, expected: Any) -> Any:
    """Cast and lay out results as their TensorMeta say."""
    if isinstance(expected, TensorMeta):
        if result.dtype is not expected.dtype:
            result = aten._to_copy.default(result, dtype=expected.dtype)
        return laid_out(result, expected)
    if isinstance(expected, (tuple, list)):
        return type(expected)(conform(one, meta) for one, meta in zip(result, expected, strict=True))
    return result


def laid_out(tensor: torch.Tensor, expected: TensorMeta) -> torch.Tensor:
    """Return the tensor with the expected strides, copied if need be. Layouts with gaps stay."""
    shape, strides = expected.shape, expected.stride
    own = tensor.stride()
    if all(map(always_equal, own, strides)):
        return tensor
    with several_sizes(shape):  # a copy is right for a size of 1, too
        placed = all(a == b or size == 1 for a, b, size in zip(own, strides, shape, strict=True))
        if not placed:
            return _copied(tensor, expected)
    # With one channel or one pixel, strides that address nothing decide whether later results are channels-last.
    tells = len(shape) == 4 and own != strides and (shape[1] == 1) is not (shape[2] == shape[3] == 1)
    tells = tells and strides == channels_last_strides(shape)
    return aten.clone.default(tensor, memory_format=torch.channels_last) if tells else tensor


def _copied(tensor: torch.Tensor, expected: TensorMeta) -> torch.Tensor:
    shape, strides = expected.shape, expected.stride
    if strides == contiguous_strides(shape):
        return aten.clone.default(tensor, memory_format=torch.contiguous_format)
    if len(shape) == 4 and strides == channels_last_strides(shape):
        return aten.clone.default(tensor, memory_format=torch.channels_last)
    if not is_dense(shape, strides):
        return tensor
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], -shape[dim], dim))
    packed = aten.clone.default(aten.permute.default(tensor, order), memory_format=torch.contiguous_format)
    return aten.permute.default(packed, [order.index(dim) for dim in range(len(order))])


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor if tensor.dtype is dtype else aten._to_copy.default(tensor, dtype=dtype)


def iota(length: Any, like: torch.Tensor) -> torch.Tensor:
    """Return 0, 1, ..., length - 1 on the device of `like`."""
    return aten.arange.start_step(0, length, 1, dtype=torch.int64, device=like.device)
