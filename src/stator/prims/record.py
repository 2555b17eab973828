"""One record per operator overload: its shape rule, its decomposition and its tags.

Records are data. Shape rules live in `prims/shape_rules/`, decompositions in `prims/decompositions/`; both register
here. No rule may call `int()` on a size: sizes may be symbolic.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stator.base.registry import Registry


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Everything static about a tensor but its data: sizes and strides in elements, `offset` into its storage.

    Shape rules return it for each output. `view_of` is the position of the argument whose storage the result shares
    (counting only the tensors among the flattened arguments), or None for a fresh storage.
    """

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    offset: Any = 0
    view_of: int | None = None


ShapeRule = Callable[..., Any]
Decomposition = Callable[..., Any]


@dataclass(slots=True, repr=False)
class OpRecord:
    """Knowledge about one operator overload. Its repr is one line, its str a short report.

    target: the overload, e.g. torch.ops.aten.add.Tensor; it is also the eager reference.
    shape: called with the op's own arguments (tensors have .shape .stride() .dtype .device), returns TensorMeta, a
        tuple or list of TensorMeta/None/scalars, or NotImplemented for cases that it does not cover.
    decompose: the op written with simpler ops, called with tensors; returns the op's results, or NotImplemented.
    tags: any of "pointwise", "reduction", "view", "creation", "random", "inplace", "matmul", "conv", "attention",
        "index", "scatter", "sort", "data_dependent", "prim" (one of the at most 250 primitives), "canonical".
    """

    target: torch._ops.OpOverload
    shape: ShapeRule | None = None
    decompose: Decomposition | None = None
    tags: frozenset[str] = field(default_factory=frozenset)

    @property
    def name(self) -> str:
        """The name as written after `torch.ops.`: "aten.add.Tensor"."""
        return str(self.target)

    @property
    def schema(self) -> str:
        """The signature as torch prints it: "aten::add.Tensor(Tensor self, Tensor other, ...) -> Tensor"."""
        return str(self.target._schema)

    @property
    def level(self) -> str | None:
        """The lowest published level of the operator: "prims", "aten" (canonical ATen), or None."""
        return "prims" if "prim" in self.tags else "aten" if "canonical" in self.tags else None

    @property
    def families(self) -> tuple[str, ...]:
        """The tags for kinds of operators, sorted: all tags except those of the levels."""
        return tuple(sorted(self.tags - {"prim", "canonical"}))

    def __repr__(self) -> str:
        kind = {"prims": "prim", "aten": "canonical"}.get(self.level or "", "no level")
        known = [word for word, rule in (("shape rule", self.shape), ("decomposition", self.decompose)) if rule]
        return f"<{self.name}: {', '.join((kind, *self.families))}; {' and '.join(known) or 'no rules'}>"

    def __str__(self) -> str:
        return "\n".join(
            (
                self.name,
                f"  schema         {self.schema}",
                f"  level          {self.level or 'none'}",
                f"  tags           {' '.join(self.families) or 'none'}",
                f"  shape rule     {_where(self.shape)}",
                f"  decomposition  {_where(self.decompose)}",
            )
        )


def _where(rule: Callable[..., Any] | None) -> str:
    """Return a function's name and module."""
    if rule is None:
        return "none"
    origin = inspect.unwrap(rule)
    return f"{getattr(origin, '__qualname__', origin)} in {getattr(origin, '__module__', '?')}"


records: Registry[torch._ops.OpOverload, OpRecord] = Registry("operator record")
# decompositions of operators that torch defines only when a program imports their module, by "namespace::name.overload"
decompositions_by_name: Registry[str, Decomposition] = Registry("decomposition by name")


def record(target: torch._ops.OpOverload) -> OpRecord:
    """Return the record of an overload; makes an empty one if there is none yet."""
    found = records.get(target)
    if found is None:
        found = OpRecord(target)
        if target.namespace != "aten":
            found.decompose = decompositions_by_name.get(target.name())
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
