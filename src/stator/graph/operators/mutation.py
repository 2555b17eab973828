"""Operators that write to their arguments and have no functional twin, or whose schemas hide the write: one handler
each.

Importing this file registers the handlers with the tracer. In-place and out= operators with a twin need none.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.graph.fake.fake_tensor import FakeTensor
from stator.graph.fake.writes import check_overlap, check_statistics
from stator.graph.functionalization.functionalize import FunctionalTracer, mutations
from stator.graph.ir.schema import SchemaFacts
from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta

aten = torch.ops.aten


@mutations.register(aten.copy_.default, aten.fill_.Tensor)
def _copy(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeTensor:
    target, source = args[0], args[1]
    check_overlap(info, args, kwargs)
    wanted, given = target.meta, source.meta
    known = source.known_value()
    if known is not None and known.dim() == 0:
        return _fill_with(tracer, target, known.to(wanted.dtype).item())
    changes: dict[str, Any] = {}
    if given.dtype is not wanted.dtype:
        changes["dtype"] = wanted.dtype
    if given.device != wanted.device:
        changes["device"] = wanted.device
    if changes:
        source = tracer.apply(aten._to_copy.default, source, **changes)
    if given.shape != wanted.shape:
        source = tracer.apply(aten.expand.default, source, list(wanted.shape))
    tracer.write(target, tracer.snapshot(source))
    return target


def _fill_with(tracer: FunctionalTracer, target: FakeTensor, number: Any) -> FakeTensor:
    meta = target.meta
    tracer.write(
        target, tracer.apply(aten.full.default, list(meta.shape), number, dtype=meta.dtype, device=meta.device)
    )
    return target


@mutations.register(aten._fused_moving_avg_obs_fq_helper.default)
def _observe(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The observer of a fake quantization of channels has empty ranges before its first call, which resizes them."""
    if 0 in args[3].meta.shape or 0 in args[4].meta.shape:
        raise Unsupported("storage-mutation", f"{info.target} resizes the ranges of its observer in the first call")
    return NotImplemented


@mutations.register(aten.bernoulli_.float)
def _bernoulli(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Draw in memory order, as the in-place operator does; the functional twin draws in the order of elements."""
    x, p = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    order = sorted(range(len(x.meta.shape)), key=lambda dim: (-x.meta.stride[dim], -x.meta.shape[dim]))
    if order == sorted(order):
        return NotImplemented
    check_overlap(info, args, kwargs)
    if kwargs.get("generator") is not None:
        raise Unsupported("random-generator", "an explicit torch.Generator cannot be traced")
    drawn = tracer.apply(aten.bernoulli.p, tracer.apply(aten.permute.default, x, order), p)
    inverse = [order.index(dim) for dim in range(len(order))]
    tracer.store(x, tracer.apply(aten.permute.default, drawn, inverse))
    return x


@mutations.register(aten.rrelu_with_noise.default, aten.rrelu_with_noise_.default)
def _rrelu(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Use the mean of the bounds as slope outside of training, and leave the noise alone."""
    x, noise, lower, upper, training = (*args, *(0.125, 1 / 3, False)[len(args) - 2 :])[:5]
    if training:
        value, drawn = tracer.apply(aten.rrelu_with_noise_functional.default, x, noise, lower, upper, True)
        tracer.store(noise, drawn)
    else:
        value = tracer.apply(aten.leaky_relu.default, x, (lower + upper) / 2)
    if info.target is aten.rrelu_with_noise.default:
        return tracer.laid_out(value, TensorMeta(x.meta.shape, contiguous_strides(x.meta.shape), x.dtype, x.device))
    tracer.store(x, value)
    return x


@mutations.register(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def _native_batch_norm(
    tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return batch_norm(tracer, *args[:8])


@mutations.register(aten._batch_norm_impl_index.default)
def _batch_norm_impl_index(
    tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if 0 in args[0].shape:
        return NotImplemented
    return (*batch_norm(tracer, *args[:8]), _no_reserve(tracer, args[0]), 0)


@mutations.register(aten._batch_norm_with_update.default)
def _batch_norm_with_update(
    tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    x, weight, bias, running_mean, running_var, momentum, eps = args
    results = batch_norm(tracer, x, weight, bias, running_mean, running_var, True, momentum, eps)
    return (*results, _no_reserve(tracer, x))


@mutations.register(aten.cudnn_batch_norm_backward.default)
def _cudnn_batch_norm_backward(
    tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    x, grad, weight, _, _, mean, rstd, eps, reserve = args
    if 0 in x.shape or tuple(reserve.shape) != (0,):
        return NotImplemented
    wanted = [True, True, True]
    return tracer.apply(
        aten.native_batch_norm_backward.default, grad, x, weight, None, None, mean, rstd, True, eps, wanted
    )


@mutations.register(aten.native_batch_norm_backward.default)
def _native_batch_norm_backward(
    tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Drop the running statistics in training: the kernel takes but does not read them, so they need not be saved."""
    running, training = args[3:5], args[7]
    if not training or running == (None, None):
        return NotImplemented
    return tracer.apply(info.target, *args[:3], None, None, *args[5:])


def _no_reserve(tracer: FunctionalTracer, x: FakeTensor) -> FakeTensor:
    """Make the empty workspace that libraries such as cuDNN would fill for the backward."""
    return tracer.apply(aten.empty.memory_format, [0], dtype=torch.uint8, device=x.meta.device)


def batch_norm(
    tracer: FunctionalTracer,
    x: FakeTensor,
    weight: FakeTensor | None,
    bias: FakeTensor | None,
    running_mean: FakeTensor | None,
    running_var: FakeTensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """Run batch norm by the functional operators. In training it writes to the running statistics, which no schema
    says.

    x: [N, C, *]; the others [C]. Returns the output, the batch mean and the reciprocal of the standard deviation.
    """
    if not training:
        return tracer.apply(
            aten._native_batch_norm_legit_no_training.default, x, weight, bias, running_mean, running_var, momentum, eps
        )
    if running_mean is None or running_var is None:
        return tracer.apply(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, momentum, eps)
    check_statistics([x, weight, bias], [running_mean, running_var])
    out, mean, rstd, new_mean, new_var = tracer.apply(
        aten._native_batch_norm_legit_functional.default,
        x,
        weight,
        bias,
        running_mean,
        running_var,
        True,
        momentum,
        eps,
    )
    for statistics, new in ((running_mean, new_mean), (running_var, new_var)):
        tracer.write(statistics, new)
        statistics.fake_storage.unannounced += not statistics.is_data  # eager's kernels do not bump autograd's versions
    return out, mean, rstd


@mutations.register(aten._foreach_addcdiv_.Tensor, aten._foreach_addcmul_.Tensor)
def _write_list(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    torch.autograd.graph.increment_version(args[0])  # eager's single-tensor operators bump the versions
    return NotImplemented


mutations.add_all(
    {
        aten.fill_.Scalar: lambda tracer, info, args, kwargs: _fill_with(tracer, args[0], args[1]),
        aten.zero_.default: lambda tracer, info, args, kwargs: _fill_with(tracer, args[0], 0),
        aten.detach_.default: lambda tracer, info, args, kwargs: args[0],
        aten.batch_norm.default: lambda tracer, info, args, kwargs: (
            NotImplemented if 0 in args[0].shape else batch_norm(tracer, *args[:8])[0]
        ),
        # What eager calls for float32 and float16 on NVIDIA GPUs.
        aten.cudnn_batch_norm.default: lambda tracer, info, args, kwargs: (
            NotImplemented if 0 in args[0].shape else (*batch_norm(tracer, *args[:8]), _no_reserve(tracer, args[0]))
        ),
    }
)
