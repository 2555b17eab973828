"""Compiles one backward graph for the layouts of its inputs, and runs it.
autograd/autograd_step.py decides when a backward is compiled.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import fx

from stator.base import dumps, logs
from stator.base.errors import StatorError
from stator.base.signals import raised_by_signal_handler
from stator.graph.printer import print_graph
from stator.prims.record import TensorMeta
from stator.runtime.launch import dispatch_keys, layouts

from .eager import run_eagerly
from .gradient_memory import aliasing_gradients, with_copies

Run = Callable[..., Sequence[Any]]
CompileGraph = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Run]
MakeGraph = Callable[[], fx.GraphModule]
CompileFor = Callable[["CompiledBackward", Sequence[torch.Tensor]], Run]


class CompiledBackward:
    """One compiled backward graph, for one set of forward values that have a tangent.

    reads: positions of the saved values that it takes. gradients: per primal the position of its gradient, or None.
    metas: the layouts of the tangents that the graph expects.
    """

    def __init__(
        self,
        make_graph: MakeGraph,
        metas: Sequence[TensorMeta],
        reads: Sequence[int],
        gradients: Sequence[int | None],
        compile_for: CompileFor,
    ) -> None:
        """make_graph: called when the graph is needed. metas: the layouts of its placeholders. compile_for: makes the
        code for arguments."""
        self.make_graph = make_graph
        self.reads = tuple(reads)
        self.gradients = tuple(gradients)
        self.compile_for = compile_for
        self.saved_metas: tuple[TensorMeta, ...] = tuple(metas[: len(reads)])
        self.metas: tuple[TensorMeta, ...] = tuple(metas[len(reads) :])
        self.strides: tuple[tuple[int, ...], ...] = ()  # strides of the saved values that the graph was compiled for
        self.compiled: Callable[..., Sequence[Any]] | None = None
        self.copied: list[int] | None = None  # positions of results that alias others; None before the first run
        self.deterministic = False  # whether the compiled code is deterministic
        # compiled code that aliases nothing, the layouts of the arguments that it ran with, and whether it is
        # deterministic
        self.settled: tuple[Callable[[list[torch.Tensor]], Sequence[Any]], Any, bool] | None = None
        self.keys = [_ordinary_keys(meta.device) for meta in self.metas]
        self.pick = selection([0, *[0 if position is None else position + 1 for position in gradients]])

    @staticmethod
    def of(
        graph: fx.GraphModule, reads: Sequence[int], gradients: Sequence[int | None], compile_graph: CompileGraph
    ) -> CompiledBackward:
        metas = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        compile_for = partial(CompiledBackward.compiled_by, compile_graph=compile_graph)
        return CompiledBackward(lambda: graph, metas, reads, gradients, compile_for)

    def running(self, run: Run, make_graph: MakeGraph, compile_for: CompileFor) -> CompiledBackward:
        """This backward, which has settled, with code for other numbers that takes arguments of equal layouts."""
        assert self.settled is not None
        made = copy(self)
        made.__dict__.pop("graph", None)
        made.make_graph, made.compile_for, made.compiled = make_graph, compile_for, run
        made.settled = run, *self.settled[1:]
        return made

    @functools.cached_property
    def graph(self) -> fx.GraphModule:
        return self.make_graph()

    def compiled_by(
        self, arguments: Sequence[torch.Tensor], compile_graph: CompileGraph
    ) -> Callable[..., Sequence[Any]]:
        """The graph, compiled for the layouts of these arguments."""
        self.graph.meta["boxed"] = True  # ask for a function that takes one list and empties it
        self.graph.meta["given_strides"] = self.strides
        dumps.write("22_backward.py", lambda: print_graph(self.graph))
        return compile_graph(self.graph, arguments)

    def can_run(self, saved: Sequence[torch.Tensor | None]) -> bool:
        """Whether all saved values that the graph reads are still there."""
        return all(saved[index] is not None for index in self.reads)

    def arguments(self, saved: list[torch.Tensor], tangents: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """The arguments of a call. Empties `saved`, so that each tensor can be freed after its last use."""
        read = [saved[index] for index in self.reads]
        saved.clear()
        return [*read, *tangents]

    def __call__(self, arguments: list[torch.Tensor]) -> Sequence[Any]:
        """None, then gradients per primal, as autograd wants them: there is none for the step, which comes before the
        primals. Empties the list of arguments."""
        if self.settled is not None:
            run, expected, deterministic = self.settled
            if deterministic or not _are_deterministic():
                # the backward of a sum gives an expanded tangent
                fit = layouts(arguments) == expected
                if fit or (self._lay_out_tangents(arguments) and layouts(arguments) == expected):
                    return self.pick((None, *run(arguments)))
        return self.pick((None, *self._run(arguments)))

    def _lay_out_tangents(self, arguments: list[torch.Tensor]) -> bool:
        """Bring the tangents into the layouts that the graph expects. Returns whether all of them are plain tensors;
        others stay as they are."""
        plain = True
        for at, (meta, keys) in enumerate(zip(self.metas, self.keys, strict=True), len(self.reads)):
            ordinary = dispatch_keys(arguments[at]) == keys
            if not ordinary and not is_plain(arguments[at]):
                plain = False
            elif not ordinary or arguments[at].stride() != meta.stride:
                arguments[at] = _laid_out(arguments[at], meta.stride)
        return plain

    def _run(self, arguments: list[torch.Tensor]) -> Sequence[Any]:
        plain = self._lay_out_tangents(arguments)
        if plain and (self.compiled is None or self.deterministic or not _are_deterministic()):
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
        boxed, present = getattr(run, "boxed", False), layouts(arguments)
        results = run(arguments) if boxed else run(*arguments)
        copied = self.copied if compiled else None
        if copied is None:
            copied = aliasing_gradients(results, self.gradients, held) if plain else []
            self.copied = copied if compiled else self.copied
        if compiled and boxed and not copied:
            self.settled = run, present, self.deterministic
        return with_copies(results, copied) if copied else results

    def _lay_out(self, arguments: list[torch.Tensor], strides: Sequence[tuple[int, ...]]) -> None:
        """Bring the saved values, which come first, into these layouts: saved-tensor hooks may have changed them."""
        for at, wanted in enumerate(strides):
            if arguments[at].stride() != wanted:
                arguments[at] = _laid_out(arguments[at], wanted)

    def _compile(self, arguments: Sequence[torch.Tensor]) -> Callable[..., Sequence[Any]]:
        """Compile for the present layouts of the saved values, which the forward has chosen."""
        self.strides = tuple([tensor.stride() for tensor in arguments[: len(self.reads)]])
        self.deterministic = _are_deterministic()
        try:
            with dumps.compilation("backward"):
                self.compiled = self.compile_for(self, arguments)
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


_are_deterministic = torch._C._get_deterministic_algorithms


def selection(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that returns the items at these positions."""
    if len(positions) < 2:  # itemgetter would return no tuple
        return lambda items: [items[position] for position in positions]
    return operator.itemgetter(*positions)


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
