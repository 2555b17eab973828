"""One operator, one record: what an ATen overload does to shapes, what it is made of, and how to classify it.

Records are data. Shape rules live in `prims/shape_rules/`, decompositions in `prims/decompositions/`; both register
here. No rule may call `int()` on a size: sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stator.base.registry import Registry


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Everything static about a tensor but its data: sizes and strides in elements, `offset` into its storage.

    Shape rules return it for each output. `view_of` is the position of the argument whose storage the result shares
    (counting only the tensors among the flattened arguments), or None for a result with a fresh storage.
    """

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    offset: Any = 0
    view_of: int | None = None


ShapeRule = Callable[..., Any]
Decomposition = Callable[..., Any]


@dataclass(slots=True)
class OpRecord:
    """What is known about one operator overload.

    target: the overload, e.g. torch.ops.aten.add.Tensor; it is also the eager reference.
    shape: called with the op's own arguments (tensors have .shape .stride() .dtype .device), returns TensorMeta, a
        tuple or list of TensorMeta/None/scalars, or NotImplemented when it does not cover the case.
    decompose: the same op written with simpler ops, called with tensors; returns what the op returns,
        or NotImplemented.
    tags: any of "pointwise", "reduction", "view", "creation", "random", "inplace", "matmul", "conv", "attention",
        "index", "scatter", "sort", "data_dependent", "prim" (one of the at most 250 primitives), "canonical".
    """

    target: torch._ops.OpOverload
    shape: ShapeRule | None = None
    decompose: Decomposition | None = None
    tags: frozenset[str] = field(default_factory=frozenset)


records: Registry[torch._ops.OpOverload, OpRecord] = Registry("operator record")


def record(target: torch._ops.OpOverload) -> OpRecord:
    """The record of an overload, made empty when there is none yet."""
    found = records.get(target)
    if found is None:
        found = OpRecord(target)
        records.add(target, found)
    return found


def shape_rule(*targets: torch._ops.OpOverload, tags: Sequence[str] = ()) -> Callable[[ShapeRule], ShapeRule]:
    """Decorator: register the shape rule of overloads (one each, refused twice) and add tags to their records."""

    def decorate(rule: ShapeRule) -> ShapeRule:
        for target in targets:
            entry = record(target)
            if entry.shape is not None:
                raise ValueError(f"duplicate shape rule for {target}")
            entry.shape = rule
            entry.tags |= frozenset(tags)
        return rule

    return decorate


def decomposition(*targets: torch._ops.OpOverload) -> Callable[[Decomposition], Decomposition]:
    """Decorator: register the decomposition of overloads (one each, refused twice)."""

    def decorate(rule: Decomposition) -> Decomposition:
        for target in targets:
            entry = record(target)
            if entry.decompose is not None:
                raise ValueError(f"duplicate decomposition for {target}")
            entry.decompose = rule
        return rule

    return decorate
