"""Buffers: the result of lowering. Each is memory with a layout and the node that fills it. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload

from .loops.body import LoopBody


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes, strides and offset in elements.

    An input's `offset` tells where in its storage it starts; loop indices and a View's offset count from its element 0.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """Memory of buffer `base` seen under another layout (offset counted from the base's own start); costs nothing."""

    base: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Loops:
    """Generated code. The body may store to several buffers (`outputs`, horizontally computed by one reduction)."""

    outputs: tuple[str, ...]
    body: LoopBody
    origins: tuple[str, ...] = ()  # names of the FX nodes this came from


@dataclass(frozen=True, slots=True)
class Extern:
    """A library call. `args`/`kwargs` mirror the op's schema: buffers appear as str (a buffer's name) or View,
    everything else as itself, nested in lists and tuples as the op wants them.

    style "out": call `target(..., out=buffer)` with a preallocated output of exactly the given layout;
    style "returns": the call allocates its own outputs (one name per output in `outputs`, None for an unused one),
    whose layouts are promised by `Buffer.layout` and checked when `verify` is on;
    style "mutates": the call writes into the buffers named in `mutates` and returns nothing that is used.
    """

    outputs: tuple[str | None, ...]
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    style: str = "returns"
    mutates: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What is called, for people: an operator as it writes itself, a function's or else its class's name, without
        an address, which would be another one in every process."""
        if isinstance(self.target, OpOverload):
            return str(self.target)
        return getattr(self.target, "__qualname__", type(self.target).__qualname__)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Named memory. kind: "input" (given by the caller), "constant" (fixed at compile time), or "computed"."""

    name: str
    layout: Layout
    kind: str = "computed"
    # for a constant: the tensor, or the integer that one without dimensions holds; for a computed buffer that mutates
    # an input in place: that input's name
    value: Any = None


@dataclass(slots=True)
class Lowered:
    """A whole graph, lowered: what scheduling takes.

    nodes are in a valid order of execution. outputs: buffer names, Views, or plain Python values, in the graph's order.
    mutated: (input, output position): the output is the new content of that input, which the program may write itself.
    """

    buffers: dict[str, Buffer]
    nodes: list[Loops | Extern]
    inputs: list[str]
    outputs: list[Any]
    mutated: tuple[tuple[str, int], ...] = ()
