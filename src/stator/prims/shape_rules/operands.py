"""Helpers of shape rules: which arguments are tensors, their common device, a new or shared TensorMeta."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from stator.base.registry import name_lambda
from stator.prims.layout import (
    Sizes,
    always_equal,
    broadcast_shapes,
    contiguous_strides,
    elementwise_strides,
    holds,
    preserved_strides,
)
from stator.prims.record import ShapeRule, TensorMeta, shape_rule
from stator.prims.refusal import refuse_if

aten = torch.ops.aten


def is_tensor(value: Any) -> bool:
    """Whether an argument is a tensor (real, fake, or a TensorMeta stand-in) and no number, None or list."""
    return hasattr(value, "stride")


def overload(name: str) -> torch._ops.OpOverload | None:
    """Return the ATen overload "name" or "name.overload"; None if this version of torch lacks it."""
    packet_name, _, overload_name = name.partition(".")
    packet = getattr(aten, packet_name, None)
    return getattr(packet, overload_name or "default", None)


def overloads(names: str) -> list[torch._ops.OpOverload]:
    """Return the overloads in a blank-separated list, without those that this version of torch lacks."""
    return [found for name in names.split() if (found := overload(name)) is not None]


def common_device(tensors: Sequence[Any]) -> torch.device:
    """Return the device of the result. Raises RuntimeError if tensors of rank > 0 live on different devices."""
    device = tensors[0].device
    if len(tensors) == 1:
        return device
    rank = len(tensors[0].shape)
    for tensor in tensors:
        other = tensor.device
        if other != device:
            if rank == 0 and device.type == "cpu":
                device, rank = other, len(tensor.shape)
            elif len(tensor.shape) or other.type != "cpu":
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, {device} "
                    f"and {other}!"
                )
    return device


def fresh(shape: Iterable[Any], like: Any, dtype: torch.dtype | None = None, stride: Sizes | None = None) -> TensorMeta:
    """Describe a new tensor on the device of `like`, by default of its dtype and contiguous."""
    shape = tuple(shape)
    return TensorMeta(
        shape, contiguous_strides(shape) if stride is None else tuple(stride), dtype or like.dtype, like.device
    )


def view(
    base: Any, shape: Iterable[Any], stride: Iterable[Any], offset: Any = None, dtype: torch.dtype | None = None
) -> TensorMeta:
    """Describe a tensor that shares the storage of the first tensor argument."""
    return TensorMeta(
        tuple(shape),
        tuple(stride),
        dtype or base.dtype,
        base.device,
        base.storage_offset() if offset is None else offset,
        0,
    )


def unchanged_argument(tensor: Any, position: int = 0) -> TensorMeta:
    """Describe the unchanged tensor argument at this position: the result of an in-place operator."""
    return TensorMeta(
        tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.storage_offset(), position
    )


def elementwise(operands: Sequence[Any], dtype: torch.dtype, computed_in: torch.dtype | None = None) -> TensorMeta:
    """Describe the result of an elementwise computation: broadcast shape, and strides ordered like the operands'.

    Numbers count as zero-dim operands; None is skipped. On a CPU, operands of another dtype than `computed_in` are
    first converted, by a dense copy.
    """
    tensors = []
    layouts: list[tuple[Sizes, Sizes]] = []
    shape: Sizes | None = None
    for operand in operands:
        if operand is None:
            continue
        if hasattr(operand, "stride"):
            own = tuple(operand.shape)
            tensors.append(operand)
            stride = operand.stride()
            if computed_in is not None and operand.dtype is not computed_in and operand.device.type == "cpu":
                stride = preserved_strides(own, stride)
            layouts.append((own, stride))
            if shape is None:
                shape = own
            elif not always_equal(own, shape):
                shape = broadcast_shapes(shape, own)
        else:
            layouts.append(((), ()))
    if shape is None:
        raise TypeError("an elementwise operator needs at least one tensor")
    return TensorMeta(shape, elementwise_strides(shape, layouts), dtype, common_device(tensors))


def in_place_twin(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the in-place overload `name_` of `name`; None if there is none."""
    packet_name = target._schema.name.partition("::")[2]
    if packet_name.endswith("_") and not packet_name.endswith("__"):
        return None
    packet = getattr(torch.ops.aten, packet_name + "_", None)
    twin = getattr(packet, target._overloadname, None)
    if twin is None or not twin._schema.arguments:
        return None
    alias = twin._schema.arguments[0].alias_info
    return twin if alias is not None and alias.is_write else None


def in_place_rule(functional: ShapeRule) -> ShapeRule:
    """Make the rule of the in-place twin: the result must fit the first argument, which is returned."""

    def rule(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = functional(self, *args, **kwargs)
        if result is NotImplemented:
            return NotImplemented
        own = tuple(self.shape)
        fits = len(result.shape) == len(own) and all(holds(a == b) for a, b in zip(result.shape, own, strict=True))
        refuse_if(not fits or (result.dtype is not self.dtype and not torch.can_cast(result.dtype, self.dtype)))
        return unchanged_argument(self)

    return rule


def with_in_place(*targets: torch._ops.OpOverload, tags: Sequence[str] = ()) -> Callable[[ShapeRule], ShapeRule]:
    """Like `shape_rule`, and also registers the in-place twin of every target that has one."""

    def decorate(rule: ShapeRule) -> ShapeRule:
        shape_rule(*targets, tags=tags)(rule)
        twins = [twin for target in targets if (twin := in_place_twin(target)) is not None]
        shape_rule(*twins, tags=(*tags, "inplace"))(in_place_rule(rule))
        return rule

    return decorate


def shape_table(tags: Sequence[str], rules: Mapping[str, ShapeRule]) -> None:
    """Register rules of one expression, by the names of their overloads. The dispatcher passes arguments by name only
    where the schema asks for it."""
    for names, rule in rules.items():
        shape_rule(*overloads(names), tags=tags)(name_lambda(rule, names.split()[0]))
