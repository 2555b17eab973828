"""A dispatch mode that compares each operator's shape rule with what eager returned: dtype, shape, stride, aliasing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import stator.prims  # noqa: F401  (fills the records)
from stator.base.errors import Unsupported
from stator.prims.layout import is_dense
from stator.prims.record import TensorMeta, records


class ShapeRuleCheck(TorchDispatchMode):
    """Runs everything eagerly; `mismatches` maps an operator to the first descriptions of how its rule was wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.declined: Counter[str] = Counter()
        self.mismatches: dict[str, list[str]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        entry = records.get(func)
        if entry is None or entry.shape is None:
            self.missing[str(func)] += 1
            return func(*args, **kwargs)
        predicted = self.predict(entry.shape, args, kwargs)
        storages = [_storage(leaf) for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        result = func(*args, **kwargs)
        if predicted is NotImplemented:
            self.declined[str(func)] += 1
            return result
        self.checked[str(func)] += 1
        problem = predicted if isinstance(predicted, str) else differences(predicted, result, storages)
        if problem:
            found = self.mismatches.setdefault(str(func), [])
            if len(found) < 3:
                found.append(f"{problem}\n      called with {describe(args)} {describe(kwargs)}")
        return result

    def predict(self, rule: Any, args: Any, kwargs: Any) -> Any:
        try:
            return rule(*args, **kwargs)
        except Unsupported:  # the shape depends on data
            return NotImplemented
        except Exception as error:  # eager decides below whether an error was right
            return f"the rule raised {type(error).__name__}: {error}"


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def differences(predicted: Any, result: Any, storages: list[int]) -> str | None:
    """How a predicted TensorMeta (or a structure of them) differs from an eager result; None when it does not."""
    if isinstance(result, torch.Tensor):
        if not isinstance(predicted, TensorMeta):
            return f"the rule returned {predicted!r}, eager a tensor"
        return tensor_differences(predicted, result, storages)
    if isinstance(result, (tuple, list)):
        if not isinstance(predicted, (tuple, list)) or len(predicted) != len(result):
            return f"the rule returned {predicted!r}, eager {len(result)} values"
        for index, (left, right) in enumerate(zip(predicted, result, strict=True)):
            problem = differences(left, right, storages)
            if problem:
                return f"output {index}: {problem}"
        return None
    return None if predicted == result else f"the rule returned {predicted!r}, eager {result!r}"


def tensor_differences(predicted: TensorMeta, result: torch.Tensor, storages: list[int]) -> str | None:
    wrong = []
    for name, guess, truth in (
        ("shape", tuple(predicted.shape), tuple(result.shape)),
        ("stride", tuple(predicted.stride), result.stride()),
        ("dtype", predicted.dtype, result.dtype),
        ("device", predicted.device, result.device),
        ("offset", predicted.offset, result.storage_offset()),
    ):
        if guess != truth:
            wrong.append(f"{name} {guess} should be {truth}")
    position = predicted.view_of
    shared = [index for index, storage in enumerate(storages) if storage == _storage(result)]
    if position is None and shared:
        wrong.append(f"view_of None should be {shared[0]}")
    elif position is not None and position not in shared:
        wrong.append(f"view_of {position} should be {shared[0] if shared else None}")
    return "; ".join(wrong) or None


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}@{list(value.stride())}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(describe(item) for item in value) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={describe(item)}" for key, item in value.items()) + "}"
    return repr(value)


# (relative to the element, relative to the largest finite element): a fused kernel and several operators round
# differently by a few units in the last place, and where terms cancel, of the terms' size.
TOLERANCES = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-5, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 1e-3),
    torch.complex64: (1e-5, 1e-5),
    torch.complex128: (1e-14, 1e-14),  # polar: eager's sine and cosine of single numbers round otherwise than vectors
}


# Memory as it happens to be.
UNINITIALISED = ("empty", "new_empty", "empty_permuted", "empty_like", "empty_strided")


class DecompositionCheck(TorchDispatchMode):
    """Runs everything eagerly and compares each decomposition, run on the same arguments, with eager's result."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: Counter[str] = Counter()
        self.declined: Counter[str] = Counter()
        self.mismatches: dict[str, list[str]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        entry = records.get(func)
        if entry is None or entry.decompose is None or func._schema.name.partition("::")[2].startswith(UNINITIALISED):
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        problem = self.compare(entry.decompose, result, args, kwargs)
        if problem:
            found = self.mismatches.setdefault(str(func), [])
            if len(found) < 3:
                found.append(f"{problem}\n      called with {describe(args)} {describe(kwargs)}")
        return result

    def compare(self, rule: Any, result: Any, args: Any, kwargs: Any) -> str | None:
        try:
            ours = rule(*args, **kwargs)
        except Unsupported:  # a graph break, and eager runs it
            self.declined[str(rule)] += 1
            return None
        except Exception as error:
            return f"the decomposition raised {type(error).__name__}: {error}"
        if ours is NotImplemented:
            self.declined[str(rule)] += 1
            return None
        self.checked[str(rule)] += 1
        return value_differences(ours, result)


def value_differences(ours: Any, eager: Any) -> str | None:
    """How tensors differ in dtype, shape, stride or value; None when they agree within `TOLERANCES`."""
    if isinstance(eager, (tuple, list)):
        if len(ours) != len(eager):
            return f"{len(ours)} results instead of {len(eager)}"
        for index, (left, right) in enumerate(zip(ours, eager, strict=True)):
            problem = value_differences(left, right)
            if problem:
                return f"output {index}: {problem}"
        return None
    if not isinstance(eager, torch.Tensor):
        return None if ours == eager else f"{ours!r} instead of {eager!r}"
    strides = strides_that_matter(eager)
    if (ours.shape, ours.dtype) != (eager.shape, eager.dtype) or strides not in (None, strides_that_matter(ours)):
        return f"{describe(ours)} instead of {describe(eager)}"
    relative, absolute = TOLERANCES.get(eager.dtype, (0.0, 0.0))
    if absolute:
        magnitude = eager.abs()
        finite = magnitude[torch.isfinite(magnitude)]
        absolute = absolute * max(1.0, float(finite.max()) if finite.numel() else 1.0)
    if torch.allclose(ours, eager, rtol=relative, atol=absolute, equal_nan=True):
        return None
    wide = torch.float64 if not eager.is_complex() else torch.complex128
    gap = (ours.to(wide) - eager.to(wide)).abs()
    return f"values differ by up to {gap.max().item():.3e} (NaN: {torch.isnan(gap).sum().item()} of {gap.numel()})"


def strides_that_matter(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Strides but those of dimensions of size 1, which address nothing; None for an empty tensor and for a layout with
    gaps, which no decomposition reproduces."""
    if tensor.numel() == 0 or not is_dense(tuple(tensor.shape), tensor.stride()):
        return None
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


def is_no_further(ours: torch.Tensor, eagers: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether our largest distance from the result in float64 is at most eager's own, and the tolerance.

    For eager's kernels that round midway (batch norm in bfloat16) or subtract what nearly cancels (layer norm of one
    element, whose gradient is zero), and for chains in bfloat16 that magnify any rounding (softmax of large products):
    where eager is far from what is right, being far from eager proves nothing.
    """
    if (ours.shape, ours.stride(), ours.dtype) != (eagers.shape, eagers.stride(), eagers.dtype):
        return False
    if not torch.equal(torch.isfinite(ours), torch.isfinite(exact)) or not torch.isfinite(exact).all():
        return False
    wide = exact.dtype
    scale = max(1.0, float(exact.abs().max()))
    error, allowed = (float((part.to(wide) - exact).abs().max()) for part in (ours, eagers))
    return error <= allowed + TOLERANCES[ours.dtype][1] * scale
