"""The program IR: the host's steps in order, as small dataclasses. Printers turn them into Python or C++."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from stator.graph.ir.size_bindings import SizeBindings
from stator.inductor.buffers import Buffer, Extern, Layout
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge
from stator.prims.devices import CPU
from stator.shapes.expr import ExprLike

from .aliases import layout_bytes


@dataclass(frozen=True, slots=True)
class Allocate:
    name: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Reuse:
    """`name` gets the memory of `old`, which is dead and has as many bytes or more."""

    name: str
    old: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class ReuseIfUnshared:
    """`name` gets the memory of `old`, which is dead and has exactly its size. If the running program finds that
    others hold that memory too, `name` gets fresh memory."""

    name: str
    old: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Free:
    name: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a generated kernel on buffers (reads then writes) and sizes; ABI in runtime/kernel_abi.md."""

    kernel: str
    args: tuple[str, ...]
    sizes: tuple[ExprLike, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """Run a library operator."""

    extern: Extern


@dataclass(frozen=True, slots=True)
class ReturnValues:
    values: tuple[Any, ...]


Step = Allocate | Reuse | ReuseIfUnshared | Free | Launch | Call | ReturnValues


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One generated kernel. `source` is self-contained text with the entry point `symbol`; identical text is shared.
    `sizes`: the values of its size arguments."""

    name: str
    symbol: str
    source: str
    language: str  # "cpp" or "triton"
    sizes: tuple[ExprLike, ...] = ()


@dataclass(frozen=True, slots=True)
class HostSource:
    """The text of a program in Python, without its kernels. objects: the values that the text refers to by name through
    `rt.object`. constants: the tensors that it reads by `rt.constant`: packed ones instead of the originals, where the
    program reads these alone."""

    text: str
    objects: dict[str, Any]
    constants: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Program:
    inputs: tuple[str, ...]
    buffers: dict[str, Buffer]
    kernels: dict[str, KernelSource]  # by symbol; `Launch.kernel` is a symbol
    steps: tuple[Step, ...]
    static_inputs: frozenset[str] = frozenset()  # inputs that are nearly always the same tensor: parameters, buffers
    escaping: frozenset[str] = frozenset()  # computed buffers with memory that the caller receives
    device: torch.device = CPU  # that the arena is on; buffers of other devices are allocated one by one
    boxed: bool = False  # inputs come in one list, which is emptied, and are freed after their last use
    heap_from: int | None = None  # intermediates of this many bytes (in the example) or more are not in the arena
    sizes: SizeKnowledge = NUMBERS_ONLY
    size_bindings: SizeBindings = field(default_factory=dict)

    def is_on_heap(self, layout: Layout) -> bool:
        """True if memory of this layout is allocated and freed by itself: large memory, where that has a limit, and
        memory of sizes that depend on data, which are others in each call."""
        need = layout_bytes(layout)
        return self.sizes.is_unknown(need, *layout.size) or (
            self.heap_from is not None and self.sizes.hint(need) >= self.heap_from
        )

    @property
    def tensor_inputs(self) -> tuple[str, ...]:
        """The inputs that are no sizes."""
        return tuple([name for name in self.inputs if name in self.buffers])
