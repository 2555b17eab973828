"""Shape rules of layer, batch, group and RMS normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import holds, suggested_strides
from stator.prims.record import ShapeRule, TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.shape_rules.operands import fresh, overloads, shape_table
from stator.prims.type_promotion import computation_dtype

aten = torch.ops.aten
NORM = ("reduction",)


def statistics_dtype(input: Any, weight: Any) -> torch.dtype:
    """Return the dtype of saved statistics: float32 for half-width inputs if the weights are wider, or on
    accelerators."""
    if input.device.type != "cpu" or (weight is not None and weight.dtype is not input.dtype):
        return computation_dtype(input.dtype)
    return input.dtype


def check_normalized(input: Any, normalized_shape: Sequence[Any], weight: Any, bias: Any) -> int:
    rank = len(normalized_shape)
    shape, normalized = tuple(input.shape), tuple(normalized_shape)
    refuse_if(rank == 0 or any(one is not None and tuple(one.shape) != normalized for one in (weight, bias)))
    own = shape[len(shape) - rank :]
    refuse_if(len(shape) < rank or not all(holds(a == b) for a, b in zip(own, normalized, strict=True)))
    return len(shape) - rank


@shape_rule(aten.native_layer_norm.default, tags=NORM)
def native_layer_norm(
    input: Any, normalized_shape: Sequence[Any], weight: Any, bias: Any, eps: float
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    leading = check_normalized(input, normalized_shape, weight, bias)
    shape = tuple(input.shape)
    statistics = fresh((*shape[:leading], *(1,) * (len(shape) - leading)), input, statistics_dtype(input, weight))
    return fresh(shape, input), statistics, statistics


@shape_rule(aten.native_layer_norm_backward.default, tags=NORM)
def native_layer_norm_backward(
    grad_out: Any,
    input: Any,
    normalized_shape: Sequence[Any],
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    output_mask: Sequence[bool],
) -> tuple[TensorMeta | None, ...]:
    leading = len(input.shape) - len(normalized_shape)
    inner = tuple(input.shape)[leading:]
    return (
        fresh(input.shape, input) if output_mask[0] else None,
        fresh(inner, input if weight is None else weight) if output_mask[1] else None,
        fresh(inner, input if bias is None else bias) if output_mask[2] else None,
    )


@shape_rule(*overloads("_fused_rms_norm"), tags=NORM)
def fused_rms_norm(
    input: Any, normalized_shape: Sequence[Any], weight: Any, eps: float | None
) -> tuple[TensorMeta, TensorMeta]:
    leading = check_normalized(input, normalized_shape, weight, None)
    shape = tuple(input.shape)
    return fresh(shape, input), fresh((*shape[:leading], *(1,) * (len(shape) - leading)), input)


def batch_norm_result(input: Any) -> TensorMeta:
    shape = tuple(input.shape)
    return fresh(shape, input, stride=suggested_strides(shape, input.stride(), shape))


def check_channels(input: Any, *parameters: Any) -> None:
    refuse_if(len(input.shape) < 2)
    for parameter in parameters:
        refuse_if(parameter is not None and tuple(parameter.shape) != (input.shape[1],))


# By operator: whether it trains (None: its argument says so), and what it returns behind the statistics: "reserve", the
# memory of cuDNN, and "running", the new running statistics.
BATCH_NORMS: dict[str, tuple[bool | None, tuple[str, ...]]] = {
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats": (None, ()),
    "_native_batch_norm_legit_functional": (None, ("running",)),
    "_native_batch_norm_legit_no_training": (False, ()),
    "cudnn_batch_norm": (None, ("reserve",)),
    "_batch_norm_with_update": (True, ("reserve",)),
    "_batch_norm_with_update_functional": (True, ("reserve", "running")),
    "_batch_norm_no_update": (False, ("reserve",)),
}


def _batch_norm(trains: bool | None, extras: Sequence[str]) -> ShapeRule:
    def rule(input: Any, weight: Any, bias: Any, *rest: Any) -> tuple[TensorMeta, ...]:
        running = () if isinstance(rest[0], bool) else rest[:2]
        check_channels(input, weight, bias, *running)
        training = rest[len(running)] if trains is None else trains
        count = input.shape[1] if training or input.device.type != "cpu" else 0
        statistics = fresh((count,), input, statistics_dtype(input, weight))
        results = [batch_norm_result(input), statistics, statistics]
        if "reserve" in extras:
            results.append(fresh((0,), input, torch.uint8))
        if "running" in extras:
            results += [fresh(one.shape, one) for one in running]
        return tuple(results)

    return rule


for _names, _entry in BATCH_NORMS.items():
    shape_rule(*overloads(_names), tags=NORM)(_batch_norm(*_entry))


@shape_rule(aten.native_group_norm.default, tags=NORM)
def native_group_norm(
    input: Any, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    statistics = fresh((N, group), input, statistics_dtype(input, weight))
    return batch_norm_result(input), statistics, statistics


def gradients(input: Any, weight: Any, output_mask: Sequence[bool]) -> tuple[TensorMeta | None, ...]:
    """Describe the wanted gradients of the input, the weight and the bias."""
    parameter = fresh((input.shape[1],), input if weight is None else weight)
    metas = (batch_norm_result(input), parameter, parameter)
    return tuple([meta if wanted else None for meta, wanted in zip(metas, output_mask, strict=True)])


shape_table(
    NORM,
    {
        "layer_norm": lambda input, shape, weight=None, bias=None, eps=1e-5, *_: native_layer_norm(
            input, shape, weight, bias, eps
        )[0],
        "native_batch_norm_backward": lambda grad, input, weight, *rest: gradients(input, weight, rest[-1]),
        "batch_norm_backward": lambda grad, input, weight, *rest: gradients(input, weight, rest[-2]),
        "native_group_norm_backward": lambda grad, input, mean, rstd, weight, *rest: gradients(input, weight, rest[-1]),
    },
)
