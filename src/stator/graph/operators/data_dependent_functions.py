"""Replacements, on fake tensors, for torch functions whose C++ reads tensor data above autograd, where no decomposition
reaches. Captured graphs hold the original functions."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload, OpOverloadPacket

from stator.base.registry import Registry
from stator.graph.fake.fake_mode import FakeMode, FakeTensor, specials
from stator.prims.decompositions import quantiles
from stator.prims.layout import always_equal, is_unknown
from stator.prims.operators.checks import check
from stator.prims.record import record

# Keyed by the call target: a function, or the name of a method.
stand_ins: Registry[Any, Callable[..., Any]] = Registry("torch function that reads data")


def decomposed(target: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The decomposition of an operator, which autograd differentiates step by step."""
    rule = record(target).decompose
    assert rule is not None, target
    return rule(*args, **kwargs)


def _quantile_by(rule: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        input: Any,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        out: Any = None,
    ) -> Any:
        # Autocast knows torch's own function by name.
        if out is not None or torch.is_autocast_enabled(input.device.type):
            return original(input, q, dim, keepdim, interpolation=interpolation, out=out)
        return rule(input, q, dim, keepdim, interpolation=interpolation)

    return run


stand_ins.register(torch.quantile, "quantile")(_quantile_by(quantiles.quantile, torch.quantile))
stand_ins.register(torch.nanquantile, "nanquantile")(_quantile_by(quantiles.nanquantile, torch.nanquantile))


@stand_ins.register(F.gaussian_nll_loss)
def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """Compute (log(var) + (input - target)^2 / var) / 2. The clamp of var to `eps` does not affect the gradient. The
    graph checks when it runs that no variance is negative."""
    if not isinstance(var, torch.Tensor):
        return F.gaussian_nll_loss(input, target, var, full, eps, reduction)  # reads no data
    check(torch.any(var < 0).logical_not(), "ValueError", "var has negative entry/entries")
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.dim() != var.dim() or sum(b for a, b in zip(input.shape, var.shape, strict=True) if a != b) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss += 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


@stand_ins.register(F.one_hot)
def _one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Run below autograd: above autograd, the C++ skips the check of the classes for tensors without data."""
    if not isinstance(input, FakeTensor):
        return F.one_hot(input, num_classes)
    if type(num_classes) is torch.SymInt and num_classes >= 1 and input.dtype is torch.int64:
        return decomposed(torch.ops.aten.one_hot.default, input, num_classes)  # type: ignore[no-any-return]
    with torch._C._AutoDispatchBelowAutograd():
        return F.one_hot(input, num_classes)


@specials.register(torch.ops.aten.one_hot.default)
def _as_many_classes_as_met(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Without a number of classes, the result's size depends on data."""
    if (*args[1:], *kwargs.values()) not in ((), (-1,)) or args[0].dtype is not torch.int64:
        return NotImplemented
    return mode._data_dependent(torch.ops.aten.one_hot.default, args, kwargs, [args[0]])


@specials.register(check)
def _known_check(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Check known values at once."""
    known = _known_in_every_call(args[0])
    return NotImplemented if known is None else check(known, *args[1:])


@specials.register(torch.ops.aten._assert_async.msg)
def _assertion(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Assert known values at once."""
    known = _known_in_every_call(args[0])
    if known is None:
        return NotImplemented
    if not known:
        raise RuntimeError(args[1])
    return None


def _known_in_every_call(fake: FakeTensor) -> torch.Tensor | None:
    """Return the value unless it was read from inputs: a check when the graph runs is cheaper than a guard on the
    value."""
    return None if fake.known_from else fake.tracked_value()


@stand_ins.register("transformers::grouped_mm_fallback")
def _grouped_mm_fallback(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Multiply groups of rows by ATen's product, whose gradient is an operator, too. Rows behind the last group are
    zero; ATen leaves them undefined. ATen takes matrices whose rows, or columns, begin at multiples of 16 bytes."""
    strides = [stride for one in (input, weight) for stride in one.stride()[-2:]]
    sizes = (*input.shape[1:], *weight.shape[1:], *[stride for stride in strides if stride != 1])
    taken = input.dtype in (torch.float32, torch.float16, torch.bfloat16) and strides.count(1) == 2
    if not taken or any(size * input.element_size() % 16 for size in sizes):
        return torch.ops.transformers.grouped_mm_fallback(input, weight, offs)
    rows = torch.arange(input.shape[0], device=input.device).unsqueeze(1) < offs[-1]
    if input.requires_grad:
        input = torch.where(rows, input, 0)  # in the backward, for the gradient
    return torch.where(rows, torch._grouped_mm(input, weight, offs=offs.to(torch.int32)), 0)


def stand_in_for(target: Any) -> Callable[..., Any] | None:
    """The function that runs instead of a call's target. Known by name are methods of tensors, and custom operators,
    which may not exist yet."""
    if type(target) in (MethodDescriptorType, WrapperDescriptorType):
        return stand_ins.get(target.__name__)
    if isinstance(target, OpOverload):
        target = target.overloadpacket
    return stand_ins.get(target._qualified_op_name if isinstance(target, OpOverloadPacket) else target)


@stand_ins.register("__setitem__", operator.setitem)
def _setitem(tensor: Any, key: Any, value: Any) -> None:
    """Write to views of unknown sizes, and by indices, without questions about sizes. Torch before 2.13 compares the
    sizes of views with the value's, although broadcasting suffices; all of torch asks which of the value's first sizes
    are 1, to drop these, although they broadcast."""
    if not isinstance(tensor, FakeTensor) or not isinstance(value, FakeTensor):
        tensor[key] = value
    elif _is_view(key):
        part = tensor[key]
        if value.dim() <= part.dim() and not (_has_known_sizes(part) and _has_known_sizes(value)):
            part.copy_(value)
        else:
            tensor[key] = value
    else:
        parts = key if type(key) is tuple else (key,)
        spans = [1 if type(part) is slice else _indexed_dimensions(part) for part in parts]
        plain = 0 not in spans and sum(type(part) is not slice for part in parts) == 1
        plain = plain and 0 < value.dim() <= tensor.dim() - max(spans) + 1 and not _has_known_sizes(value)
        if plain and all(_is_counted(size, part) for part in parts if type(part) is not slice for size in value.shape):
            whole = [[part] if type(part) is slice else [slice(None)] * n for part, n in zip(parts, spans, strict=True)]
            indices = [None if type(part) is slice else part for part in parts]
            torch.ops.aten.index_put_.default(tensor[tuple(itertools.chain(*whole))], indices, value)
        else:
            tensor[key] = value


def _has_known_sizes(tensor: torch.Tensor) -> bool:
    return all(type(size) is int for size in tensor.shape)


def _is_counted(size: Any, index: FakeTensor) -> bool:
    """Whether a size is no unknown one, or is the number of a mask's Trues: else gradients would need to know which
    of the two broadcasts."""
    if not is_unknown(size) or index.dtype is not torch.bool:
        return True
    found = index.fake_mode.counted(index)
    return found is not None and always_equal(size, found)


def _indexed_dimensions(part: Any) -> int:
    """How many dimensions a vector of indices, or a mask, chooses from; 0 for another part of an index."""
    if not isinstance(part, FakeTensor):
        return 0
    if part.dtype is torch.bool:
        return part.dim()
    return 1 if part.dim() == 1 and part.dtype is torch.int64 else 0


def _is_view(key: Any) -> bool:
    """Whether an index selects a view."""
    if type(key) is tuple:
        return all(map(_is_view, key))
    return key is None or key is ... or type(key) in (int, slice, torch.SymInt)
