"""A backward graph with symbolic sizes, in place of a `CompiledBackward`.

It is compiled once for all sizes. Where that is impossible, or where this code relies on facts that do not hold in a
call, it is compiled for a few sizes, and runs operator by operator for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from stator.base import counters, dumps, logs
from stator.base.errors import MissingToolchain, StatorError
from stator.graph.ir.aten_graph import AtenGraph, LazyGraphModule
from stator.graph.ir.size_bindings import evaluated, symbols_of
from stator.graph.printer import print_graph
from stator.prims.layout import permuted_strides
from stator.prims.record import TensorMeta
from stator.shapes.conditions import Condition
from stator.shapes.environment import Environment
from stator.shapes.expr import Symbol

from .backward import CompiledBackward, CompileGraph
from .eager import run_eagerly

Sizes = Mapping[Symbol, int]

# Sizes that one backward is compiled for where code for all sizes cannot be used
_MOST_FIXED = 8
# Sizes for which the layouts of arguments are remembered
_MOST_KNOWN = 1024


class SymbolicBackward:
    """Like `CompiledBackward`, of a graph whose last placeholders may be ints.

    symbols: those of the step, whose values come in this order. environment: what is known about them. guarded: how
    many of its facts hold in every call, because they were there when the forward was compiled; later ones are checked
    here.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        reads: Sequence[int],
        gradients: Sequence[int | None],
        compile_graph: CompileGraph,
        symbols: Iterable[Symbol],
        environment: Environment,
        guarded: int,
    ) -> None:
        self.graph, self.reads, self.gradients = graph, tuple(reads), tuple(gradients)
        self.compile_graph, self.environment, self.guarded = compile_graph, environment, guarded
        self.symbols = tuple(symbols)
        inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        self.numbers = [one for one in inputs if type(one) is torch.SymInt]
        self.metas = [one for one in inputs if type(one) is not torch.SymInt]
        self.traced_under = self._later_facts()
        self.known: dict[tuple[int, ...], CompiledBackward] = {}
        in_layouts = symbols_of(self.metas)
        # the symbols that layouts of arguments depend on; by their values, a backward that runs the code for all sizes
        self.in_layouts = [at for at, symbol in enumerate(self.symbols) if symbol in in_layouts]
        self.by_layout: dict[tuple[int, ...], CompiledBackward] = {}
        self.strides: list[tuple[Any, ...] | None] = []  # of the tensors that the code for all sizes takes
        self.fixed: dict[tuple[int, ...], Callable[..., Sequence[Any]]] = {}
        self.general: Callable[..., Sequence[Any]] | None = None
        self.compiled_under: list[Condition] = []
        self.tried = False

    def fits(self, values: Sequence[int]) -> bool:
        """Whether the graph is right for these values of the symbols."""
        return not self.traced_under or _hold(self.traced_under, self._sizes(values))

    def _sizes(self, values: Sequence[int]) -> Sizes:
        return dict(zip(self.symbols, values, strict=True))

    def can_run(self, saved: Sequence[torch.Tensor | None]) -> bool:
        return all(saved[index] is not None for index in self.reads)

    def arguments(self, saved: list[torch.Tensor], tangents: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        read = [saved[index] for index in self.reads]
        saved.clear()
        return [*read, *tangents]

    def at(self, values: tuple[int, ...]) -> CompiledBackward:
        """The backward for these values of the symbols."""
        found = self.known.get(values)
        if found is None:
            for kept in (self.known, self.by_layout):
                if len(kept) == _MOST_KNOWN:
                    del kept[next(iter(kept))]
            sizes = self._sizes(values)
            compile_there = partial(self._compile, values, sizes)
            graph = partial(at_sizes, self.graph, sizes)
            alike = self.by_layout.get(self._layout(values))
            if alike is not None and alike.settled is not None and _hold(self.compiled_under, sizes):
                run = _with_numbers(self.general, evaluated(self.numbers, sizes))  # type: ignore[arg-type]
                found = alike.running(run, graph, compile_there)
            else:
                metas = evaluated(self.metas, sizes)
                found = CompiledBackward(graph, metas, self.reads, self.gradients, compile_there)
            self.known[values] = found
        return found

    def _layout(self, values: Sequence[int]) -> tuple[int, ...]:
        return tuple([values[at] for at in self.in_layouts])

    def _later_facts(self) -> list[Condition]:
        return [fact.condition for fact in self.environment.facts[self.guarded :]]

    def _compile(
        self, key: tuple[int, ...], sizes: Sizes, backward: CompiledBackward, arguments: Sequence[torch.Tensor]
    ) -> Callable[..., Sequence[Any]]:
        """The code for these sizes. backward: the graph with these sizes."""
        numbers, count = evaluated(self.numbers, sizes), len(self.reads)
        if not self.tried:
            saved = zip(arguments[:count], self.metas[:count], strict=True)
            self.strides = [_strides_of(tensor, meta, sizes) for tensor, meta in saved]
            self.strides += [meta.stride for meta in self.metas[count:]]
        as_compiled = all(
            strides is not None and _is_laid_out(tensor, evaluated(strides, sizes))
            for tensor, strides in zip(arguments, self.strides, strict=True)
        )
        if as_compiled and not self.tried:
            self.tried = True
            self.general = self._compile_for_all([*arguments, *numbers])
            self.compiled_under = self._later_facts()
        if as_compiled and self.general is not None and _hold(self.compiled_under, sizes):
            self.by_layout[self._layout(key)] = backward
            return _with_numbers(self.general, numbers)
        if key not in self.fixed and len(self.fixed) < _MOST_FIXED:
            counters.count("aot_backward:fixed_sizes")
            self.fixed[key] = backward.compiled_by(arguments, self.compile_graph)
        if key in self.fixed:
            return self.fixed[key]
        logs.log("recompiles", "a backward was compiled for %s sizes, and runs by operators for others", _MOST_FIXED)
        backward.strides = tuple([meta.stride for meta in backward.saved_metas])
        return run_eagerly(backward.graph, arguments)

    def _compile_for_all(self, arguments: Sequence[Any]) -> Callable[..., Sequence[Any]] | None:
        self.graph.meta["boxed"] = True
        self.graph.meta["given_strides"] = self.strides
        dumps.write("22_backward.py", lambda: print_graph(self.graph))
        try:
            return self.compile_graph(self.graph, arguments)
        except MissingToolchain:
            raise
        except StatorError as error:
            logs.log("recompiles", "a backward is compiled for each of its sizes: %s", error)
            return None


def _with_numbers(general: Callable[..., Sequence[Any]], numbers: Sequence[int]) -> Callable[..., Sequence[Any]]:
    """The code for all sizes as code for some."""
    if not getattr(general, "boxed", False):
        return lambda *tensors: general(*tensors, *numbers)

    def run(arguments: list[Any]) -> Sequence[Any]:
        arguments += numbers
        return general(arguments)

    run.boxed = True  # type: ignore[attr-defined]
    return run


def _strides_of(tensor: torch.Tensor, meta: TensorMeta, sizes: Sizes) -> tuple[Any, ...] | None:
    """The strides of a saved value for all sizes: those of the trace, or dense ones with dimensions in the order that
    the forward has chosen. None if the strides at these sizes are others."""
    innermost_first = sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), -dim))
    possible = [meta.stride, permuted_strides(meta.shape, innermost_first)]
    there = [evaluated(strides, sizes) for strides in possible]
    if tensor.stride() in there:
        return possible[there.index(tensor.stride())]
    return next((one for one, own in zip(possible, there, strict=True) if _is_laid_out(tensor, own)), None)


def _is_laid_out(tensor: torch.Tensor, wanted: Sequence[int]) -> bool:
    """Whether the elements are where these strides say. Strides of dimensions of one element do not matter."""
    if tensor.stride() == wanted or not tensor.numel():
        return True
    strides = zip(tensor.stride(), wanted, tensor.shape, strict=True)
    return all(own == other or size == 1 for own, other, size in strides)


def _hold(conditions: Iterable[Any], sizes: Sizes) -> bool:
    try:
        return all(condition.holds(sizes) for condition in conditions)
    except KeyError:  # a condition about a symbol that this program does not know
        return False


def at_sizes(gm: fx.GraphModule, sizes: Sizes) -> fx.GraphModule:
    """A copy of a graph with these sizes. It takes only tensors."""
    graph = AtenGraph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if type(node.meta.get("val")) is torch.SymInt and node.op == "placeholder":
            continue
        args, kwargs = evaluated((node.args, dict(node.kwargs)), sizes)
        args, kwargs = fx.map_arg((args, kwargs), copies.__getitem__)
        copies[node] = copy = graph.create_node(node.op, node.target, args, kwargs, node.name)
        copy.meta.update(node.meta)
        if "val" in node.meta:
            copy.meta["val"] = evaluated(node.meta["val"], sizes)
    module = LazyGraphModule(gm, graph, gm._get_name())
    module.meta.update(gm.meta)
    return module
