"""Compiles one backward graph for the layouts of its inputs, and runs it.
autograd/autograd_step.py decides when a backward is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from stator.base import dumps, logs
from stator.base.errors import StatorError
from stator.base.signals import raised_by_signal_handler
from stator.graph.printer import print_graph
from stator.prims.record import TensorMeta
from stator.runtime.launch import dispatch_keys

from .eager import run_eagerly
from .gradient_memory import aliasing_gradients, with_copies

CompileGraph = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Sequence[Any]]]


class CompiledBackward:
    """One compiled backward graph, for one set of forward values that have a tangent.

    reads: positions of the saved values that it takes. gradients: per primal the position of its gradient, or None.
    metas: the layouts of the tangents that the graph expects.
    """

    def __init__(
        self, graph: fx.GraphModule, reads: Sequence[int], gradients: Sequence[int | None], compile_graph: CompileGraph
    ) -> None:
        self.graph = graph
        self.reads = tuple(reads)
        self.gradients = tuple(gradients)
        self.compile_graph = compile_graph
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.saved_metas: tuple[TensorMeta, ...] = tuple(node.meta["val"] for node in placeholders[: len(reads)])
        self.metas: tuple[TensorMeta, ...] = tuple(node.meta["val"] for node in placeholders[len(reads) :])
        self.strides: tuple[tuple[int, ...], ...] = ()  # strides of the saved values that the graph was compiled for
        self.compiled: Callable[..., Sequence[Any]] | None = None
        self.copied: list[int] | None = None  # positions of results that alias others; None before the first run
        self.deterministic = False  # whether the compiled code is deterministic

    def can_run(self, saved: Sequence[torch.Tensor | None]) -> bool:
        """Whether all saved values that the graph reads are still there."""
        return all(saved[index] is not None for index in self.reads)

    def __call__(self, saved: list[torch.Tensor], tangents: Sequence[torch.Tensor]) -> list[Any]:
        """Gradients per primal. Empties `saved`, so that each tensor can be freed after its last use."""
        arguments = [saved[index] for index in self.reads]
        saved.clear()
        plain = True
        for tangent, meta in zip(tangents, self.metas, strict=True):
            ordinary = dispatch_keys(tangent) == _ordinary_keys(meta.device)
            if not ordinary and not is_plain(tangent):
                plain = False
            elif not ordinary or tangent.stride() != meta.stride:
                tangent = _laid_out(tangent, meta.stride)
            arguments.append(tangent)
        if plain and (self.compiled is None or self.deterministic or not torch.are_deterministic_algorithms_enabled()):
            run = self.compiled or self._compile(arguments)
            self._lay_out(arguments, self.strides)
        # Kernels read plain memory. Operators also handle tensors that vmap batches, subclasses, and a later
        # switch to deterministic algorithms.
        else:
            self._lay_out(arguments, [meta.stride for meta in self.saved_metas])
            run = run_eagerly(self.graph, arguments)
        compiled = run is self.compiled
        # Keep the tangents alive until aliasing is known: freed memory could be reused for results.
        held = arguments[len(self.reads) :] if plain and (self.copied is None or not compiled) else ()
        if getattr(run, "boxed", False):
            saved = tangents = tangent = None  # type: ignore[assignment]  # from here on only the list holds them
            results = run(arguments)
        else:
            results = run(*arguments)
        copied = self.copied if compiled else None
        if copied is None:
            copied = aliasing_gradients(results, self.gradients, held) if plain else []
            self.copied = copied if compiled else self.copied
        if copied:
            results = with_copies(results, copied)
        return [None if position is None else results[position] for position in self.gradients]

    def _lay_out(self, arguments: list[torch.Tensor], strides: Sequence[tuple[int, ...]]) -> None:
        """Bring the saved values, which come first, into these layouts: saved-tensor hooks may have changed them."""
        for at, wanted in enumerate(strides):
            if arguments[at].stride() != wanted:
                arguments[at] = _laid_out(arguments[at], wanted)

    def _compile(self, arguments: Sequence[torch.Tensor]) -> Callable[..., Sequence[Any]]:
        """Compile for the present layouts of the saved values, which the forward has chosen."""
        self.graph.meta["boxed"] = True  # ask for a function that takes one list and empties it
        self.strides = tuple([tensor.stride() for tensor in arguments[: len(self.reads)]])
        self.deterministic = torch.are_deterministic_algorithms_enabled()
        self.graph.meta["given_strides"] = self.strides
        try:
            with dumps.compilation("backward"):
                dumps.write("22_backward.py", lambda: print_graph(self.graph))
                self.compiled = self.compile_graph(self.graph, arguments)
        # A defect of the compiler must not end the user's backward: the traced graph itself is right.
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            kind = "" if isinstance(error, StatorError) else f"{type(error).__name__}: "
            logs.warn_once(
                f"aot:backward:{error}",
                f"stator: a backward graph could not be compiled; it runs operator by operator. {kind}{error}",
            )
            self.strides = tuple([meta.stride for meta in self.saved_metas])
            self.compiled = run_eagerly(self.graph, arguments)
        return self.compiled


_KEY = torch._C.DispatchKey
_BATCHED = (_KEY.FuncTorchBatched, _KEY.FuncTorchGradWrapper)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor owns ordinary memory: it is no subclass, and neither of torch's two vmaps batches it."""
    keys = torch._C._dispatch_keys(tensor)
    return type(tensor) is torch.Tensor and keys.has(_KEY.Dense) and not any(keys.has(key) for key in _BATCHED)


@functools.cache
def _ordinary_keys(device: torch.device) -> int:
    """The dispatch keys of a plain tensor: not lazily conjugated or negated, no zero tensor, not batched."""
    return torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr()


def _laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A copy with these strides."""
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def drop_unused_saved(backward: fx.GraphModule, saved_count: int) -> list[int]:
    """Remove the placeholders of saved values that the backward does not read. Returns the positions of the others."""
    placeholders = [node for node in backward.graph.nodes if node.op == "placeholder"]
    left = [at for at, node in enumerate(placeholders) if node.users or at >= saved_count]
    for at in set(range(saved_count)).difference(left):
        backward.graph.erase_node(placeholders[at])
    held = backward.meta.get("held", ())
    backward.meta["held"] = tuple(now for now, before in enumerate(left) if before in held)
    backward.recompile()
    return [at for at in left if at < saved_count]
