"""Shape rules of operators on lists of tensors: the single operator's rule, applied to each element."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.foreach import FOREACH, Foreach, in_place
from stator.prims.record import ShapeRule, record, shape_rule

aten = torch.ops.aten


def _each(entry: Foreach) -> ShapeRule:
    def rule(*args: Any, **kwargs: Any) -> Any:
        single = record(entry.single).shape
        if single is None:
            return NotImplemented
        metas = [single(*given, **named) for given, named in entry.applications(args, kwargs)]
        return NotImplemented if any(meta is NotImplemented for meta in metas) else metas

    return rule


def _written(rule: ShapeRule) -> ShapeRule:
    """Make the in-place form's rule: it returns nothing, and each result must fit its target."""

    def in_place(self: Any, *args: Any, **kwargs: Any) -> None:
        metas = rule(self, *args, **kwargs)
        if metas is NotImplemented:
            return NotImplemented
        for tensor, meta in zip(self, metas, strict=True):
            if tuple(meta.shape) != tuple(tensor.shape):
                raise RuntimeError(
                    f"output with shape {list(tensor.shape)} doesn't match the broadcast shape {list(meta.shape)}"
                )
            if not torch.can_cast(meta.dtype, tensor.dtype):
                raise RuntimeError(f"result type {meta.dtype} can't be cast to the desired output type {tensor.dtype}")
        return None

    return in_place


for _entry in FOREACH:
    _rule = _each(_entry)
    shape_rule(_entry.target, tags=("foreach",))(_rule)
    _twin = in_place(_entry.target)
    if _twin is not None:
        shape_rule(_twin, tags=("foreach",))(_written(_rule))


# `scalars` is a one-dimensional tensor here: one number per element.
@shape_rule(aten._foreach_addcdiv.Tensor, aten._foreach_addcmul.Tensor, tags=("foreach",))
def _addc(self: Any, tensor1: Any, tensor2: Any, scalars: Any) -> Any:
    single = record(aten.addcmul.default).shape
    assert single is not None
    return [single(*each) for each in zip(self, tensor1, tensor2, strict=True)]


shape_rule(aten._foreach_addcdiv_.Tensor, aten._foreach_addcmul_.Tensor, tags=("foreach",))(_written(_addc))


@shape_rule(aten._foreach_zero.default, tags=("foreach",))
def _zero(self: Any) -> Any:
    like = record(aten.zeros_like.default).shape
    assert like is not None
    return [like(tensor) for tensor in self]


@shape_rule(aten._foreach_zero_.default, tags=("foreach",))
def _zero_in_place(self: Any) -> None:
    return None
