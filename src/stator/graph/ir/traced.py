"""What tracing yields: a functional ATen graph, and how its outputs become the user's outputs. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.prims.record import TensorMeta


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator applied to a tensor: `func(tensor, *args, **kwargs)`, with the layouts before and after.

    whole: the operator with several results that it stands for, its arguments, and the number of the result.
    """

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: TensorMeta
    after: TensorMeta
    whole: tuple[OpOverload, tuple[Any, ...], dict[str, Any], int] | None = None


@dataclass(frozen=True, slots=True)
class Geometry:
    """How to see `base` (a tensor laid out as `base_meta`) as the user's output.

    By as_strided with shape, stride and offset (relative to the base's own offset); or, where the dtype changes, by
    running the view operators in `steps`.
    """

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    steps: tuple[ViewStep, ...] = ()


@dataclass(frozen=True, slots=True)
class NewLayout:
    """Input `index` has had its layout changed in place `count` times; `geometry` is what it is left with, seen from
    the input itself, or None for the one it came with."""

    index: int
    count: int
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class Fresh:
    """Graph output `position`, as it is. Two user outputs with one position are one object."""

    position: int


@dataclass(frozen=True, slots=True)
class InputItself:
    """The very tensor given as input `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewOfInput:
    index: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class ViewOfOutput:
    """A view of graph output `position`; the output shares memory with other user outputs."""

    position: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class ViewOfConstant:
    """A real tensor met while tracing, or a view of it (geometry None: itself)."""

    tensor: torch.Tensor
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class SameAs:
    """The very object made for the user's output `index`, which comes earlier."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewOfResult:
    """A view of the user's output `index`, which has no history: if it gets one by a write, so does the view."""

    index: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class OutputValue:
    """A Python value."""

    value: Any


class History(Enum):
    """What autograd knows of one of the user's outputs that is made outside of the graph."""

    AMBIENT = "what the grad mode around the call gives it"
    FOLLOWED = "it follows from its base"
    LEAF = "it requires grad by itself: a view made under no_grad of what requires grad"
    NONE = "nothing: it does not require grad"
    DETACHED = "nothing, and it is nobody's view"
    DATA = "nothing, it is nobody's view, and what is written to it is not announced"


Output = Fresh | InputItself | ViewOfInput | ViewOfOutput | ViewOfConstant | SameAs | ViewOfResult | OutputValue


@dataclass(slots=True)
class Traced:
    """A functional ATen graph with what its caller must replay.

    graph: placeholders for `example_inputs` then `captured`, in order; a flat tuple of tensors as output.
    mutated: (input index, output position): the output is the new content of that input.
    outputs: one per leaf of the user's result, in the order of `spec`.
    spec: the pytree spec of the user's result (None for a flat tuple of a graph).
    constants: tensors the graph reads by get_attr, by name.
    histories: one per output; empty when the graph was traced below autograd and nothing was detached.
    fixed_offsets: indices of inputs that have to begin their storage, as when they were traced: memory is addressed
        from there.
    announced: for mutated inputs, by index, how many writes autograd is told of: all but those through `.data`. Their
        versions rise by it.
    layouts: of inputs whose layouts are changed in place.
    """

    graph: fx.GraphModule
    mutated: list[tuple[int, int]]
    outputs: list[Output]
    spec: Any = None
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    histories: tuple[History, ...] = ()
    fixed_offsets: tuple[int, ...] = ()
    announced: Mapping[int, int] = field(default_factory=dict)
    layouts: tuple[NewLayout, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the graph's outputs are the user's outputs, with nothing to replay or check."""
        return (
            not self.mutated
            and not self.fixed_offsets
            and not self.layouts
            and all(type(output) is Fresh and output.position == index for index, output in enumerate(self.outputs))
        )
