"""The result of tracing: a functional ATen graph, and how its outputs become the user's outputs. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.prims.record import TensorMeta

from .size_bindings import SizeBindings


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator applied to a tensor: `func(tensor, *args, **kwargs)`, with the layouts before and after.

    whole: the operator with several results behind this step, its arguments, its keyword arguments, and the index of
        the result.
    """

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: TensorMeta
    after: TensorMeta
    whole: tuple[OpOverload, tuple[Any, ...], dict[str, Any], int] | None = None


@dataclass(frozen=True, slots=True)
class Geometry:
    """How to view a base tensor as the user's output. By as_strided with shape, stride and offset (relative to the
    base's own offset); or, if `steps` is not empty, by running these view operators."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    steps: tuple[ViewStep, ...] = ()


@dataclass(frozen=True, slots=True)
class NewLayout:
    """Input `index` had its layout changed in place `count` times. `geometry` is the final layout relative to the
    input; None means the original layout."""

    index: int
    count: int
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class Fresh:
    """Graph output `position`, unchanged. User outputs with equal positions are one object."""

    position: int


@dataclass(frozen=True, slots=True)
class InputItself:
    """The tensor object passed as input `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewOfInput:
    index: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class ViewOfOutput:
    """A view of graph output `position`, which shares memory with other user outputs."""

    position: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class Moved(Fresh):
    """Graph output `position`, moved to the memory of an input, or of another graph output: for autograd it is no view
    of that tensor."""

    base: int
    of_input: bool
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class ViewOfConstant:
    """A real tensor met while tracing, or a view of it (geometry None: the tensor itself)."""

    tensor: torch.Tensor
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class SameAs:
    """The object made for the earlier user output `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewOfResult:
    """A view of the user's output `index`, which has no autograd history. A later write that gives the output a history
    gives it to the view too."""

    index: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class OutputValue:
    """A Python value; a symbolic number is evaluated in each call."""

    value: Any


def symbolic_parts(described: Any) -> tuple[Any, ...]:
    """The parts of an output, or of a new layout, that may be symbolic."""
    if isinstance(described, OutputValue):
        return (described.value,)
    geometry = getattr(described, "geometry", None)
    if geometry is None:
        return ()
    steps = [(step.args, step.kwargs, step.whole and step.whole[1:3]) for step in geometry.steps]
    return (geometry.shape, geometry.stride, geometry.offset, steps)


class History(Enum):
    """The autograd history of a user output that is made outside of the graph."""

    AMBIENT = "what the grad mode around the call gives it"
    FOLLOWED = "it follows from its base"
    LEAF = "it requires grad by itself: a view made under no_grad of what requires grad"
    NONE = "nothing: it does not require grad"
    DETACHED = "nothing, and it is nobody's view"
    DATA = "nothing, it is nobody's view, and what is written to it is not announced"


Output = Fresh | InputItself | ViewOfInput | ViewOfOutput | ViewOfConstant | SameAs | ViewOfResult | OutputValue


@dataclass(slots=True)
class Traced:
    """A functional ATen graph with everything that its caller must replay.

    graph: placeholders for the tensors of `example_inputs`, then `captured`, then symbolic ints of `example_inputs`,
        each in order; a flat tuple of tensors as output.
    mutated: (input index, output position): the output is the new content of that input.
    outputs: one per leaf of the user's result, in the order of `spec`.
    spec: the pytree spec of the user's result (None if a graph returns a flat tuple).
    constants: tensors that the graph reads by get_attr, by name.
    histories: one per output; empty if the graph was traced below autograd and no output was detached.
    fixed_offsets: indices of inputs that must begin their storage, because the graph addresses memory from there.
    announced: for mutated inputs, by index, the number of version bumps: all writes except those through `.data`.
    layouts: in-place layout changes of inputs.
    numbers: the positions of symbolic ints in `example_inputs`.
    result_sizes: where the graph's results tell symbols of `outputs` and `layouts` that no input tells.
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
    numbers: tuple[int, ...] = ()
    result_sizes: SizeBindings = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether the graph's outputs are the user's outputs, with nothing to replay or check."""
        return (
            not self.mutated
            and not self.fixed_offsets
            and not self.layouts
            and all(type(output) is Fresh and output.position == index for index, output in enumerate(self.outputs))
        )
