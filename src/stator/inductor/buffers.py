"""Buffers: the result of lowering. Each is memory with a layout and the node that fills it. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload

from stator.graph.ir.size_bindings import ResultPlace, SizeBindings
from stator.shapes.expr import Symbol

from .loops.body import LoopBody
from .sizes import NUMBERS_ONLY, SizeKnowledge


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes, strides and offset in elements.

    The `offset` of an input is its start in its storage. Loop indices and the offset of a View count from there.
    """

    size: tuple[Any, ...]  # ints, or expressions over the symbols of the graph
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    offset: Any = 0


@dataclass(frozen=True, slots=True)
class View:
    """The memory of buffer `base` under another layout. The view's offset counts from the base's own start."""

    base: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Loops:
    """Generated code. The body may store to several buffers (`outputs`), such as the mean and the variance."""

    outputs: tuple[str, ...]
    body: LoopBody
    origins: tuple[str, ...] = ()  # names of the FX nodes this came from


@dataclass(frozen=True, slots=True)
class Extern:
    """A library call. `args` and `kwargs` follow the operator's schema. A buffer appears as a str (its name) or a View;
    every other argument appears as itself (a symbolic size as an expression), nested in lists and tuples as the
    operator expects.

    style "out": call `target(..., out=buffer)` with a preallocated output of exactly the given layout;
    style "returns": the call allocates its own outputs. `outputs` names each output, None where it is unused.
    `Buffer.layout` promises their layouts, which are checked when `verify` is on;
    style "mutates": the call writes into the buffers named in `mutates`, and its return value is not used.

    keeps: buffers that an earlier call reads until this call ends, such as the operands of a collective.
    binds: symbols that the results tell, for all later nodes; promised: by output, the shape and the strides in terms
    of these symbols, where facts that are checked later (`prims.operators.checks.require`) replace none of them.
    """

    outputs: tuple[str | None, ...]
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    style: str = "returns"
    mutates: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    binds: tuple[tuple[Symbol, ResultPlace], ...] = ()
    promised: tuple[tuple[Any, Any] | None, ...] = ()
    keeps: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The callee's name for people: an operator's own text, or the qualified name of a function or of the
        callable's class. Never an address, which differs between processes."""
        if isinstance(self.target, OpOverload):
            return str(self.target)
        return getattr(self.target, "__qualname__", type(self.target).__qualname__)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Named memory. kind: "input" (from the caller), "constant" (fixed at compile time), or "computed"."""

    name: str
    layout: Layout
    kind: str = "computed"
    # for a constant: the tensor, or the integer of a zero-dimensional tensor, or its float, which sizes of inputs tell;
    # for a computed buffer that mutates an input in place: that input's name
    value: Any = None


@dataclass(slots=True)
class Lowered:
    """A lowered graph, the scheduler's input.

    nodes are in a valid order of execution. outputs: buffer names, Views, or plain Python values, in the graph's order.
    mutated: pairs (input, output position). That output holds the new content of that input; the program may write the
    content into the input itself. size_bindings: the inputs that tell the values of symbols; an int among the inputs
    has no buffer.
    """

    buffers: dict[str, Buffer]
    nodes: list[Loops | Extern]
    inputs: list[str]
    outputs: list[Any]
    mutated: tuple[tuple[str, int], ...] = ()
    sizes: SizeKnowledge = NUMBERS_ONLY
    size_bindings: SizeBindings = field(default_factory=dict)
