"""Graphs that functional graphs run as one operator: the branches of a condition, the body of a loop.

Which of them run, and how often, is decided while the graph runs by a `Part`; kinds of parts are in the files beside.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import fx

from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.graph.ir.memory import memory_root
from stator.graph.tracing.tracer import close_graph
from stator.prims.record import TensorMeta, shape_rule

from .differentiated import run_part

aten = torch.ops.aten
Compiled = Callable[..., Sequence[torch.Tensor]]

# What a part of the program computes: called with the tracer at work and its fake tensors.
Function = Callable[..., Sequence[torch.Tensor]]


class Control(Protocol):
    """How the graphs of a part are run: called with them as callables and the tensors that the part is given."""

    def __call__(self, functions: Sequence[Compiled], tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]: ...


class SubgraphOp:
    """Functional graphs with how they are run. results: what a run gives, whichever graphs ran; `functions`: what runs
    in place of the graphs."""

    def __init__(
        self,
        kind: str,
        graphs: Sequence[fx.GraphModule],
        results: Sequence[TensorMeta],
        control: Control,
        functions: Sequence[Compiled] = (),
    ) -> None:
        self.kind = kind
        self.graphs = tuple(graphs)
        self.results = tuple(results)
        self.control = control
        self._functions = tuple(functions) or tuple(map(_callable, graphs))

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """On real tensors, below autograd. What it gives is nobody else's memory."""
        return list(self.control(self._functions, tensors))

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """As compiled graphs call it: a single result by itself."""
        made = self.run(tensors)
        return made[0] if len(made) == 1 else made

    def compiled(self, compile_graph: Callable[[fx.GraphModule], Compiled]) -> SubgraphOp:
        """The same with compiled graphs."""
        return SubgraphOp(
            self.kind, self.graphs, self.results, self.control, [compile_graph(graph) for graph in self.graphs]
        )

    def __str__(self) -> str:
        return self.kind


class PartKey(int):
    """The argument by which the operator finds its part; whoever holds it holds the part."""

    part: SubgraphOp

    def __new__(cls, part: SubgraphOp) -> PartKey:
        key = super().__new__(cls, next(_numbers))
        key.part = part
        _parts[int(key)] = part
        return key

    def __deepcopy__(self, memo: Any) -> PartKey:
        return self

    __copy__ = __deepcopy__  # type: ignore[assignment]


_numbers = itertools.count()
_parts: weakref.WeakValueDictionary[int, SubgraphOp] = weakref.WeakValueDictionary()


def _callable(graph: fx.GraphModule) -> Compiled:
    return lambda *tensors: run_part(graph, tensors)


def _run(tensors: Sequence[torch.Tensor], part: int) -> list[torch.Tensor]:
    return _parts[part].run(tensors)


_library = torch.library.Library("stator_parts", "DEF")
_library.define("run(Tensor[] tensors, int part) -> Tensor[]")
_library.define("run.random(Tensor[] tensors, int part) -> Tensor[]", tags=(torch.Tag.nondeterministic_seeded,))
_library.impl("run", _run, "CompositeExplicitAutograd")
_library.impl("run.random", _run, "CompositeExplicitAutograd")

run = torch.ops.stator_parts.run.default
run_random = torch.ops.stator_parts.run.random  # of parts that draw random numbers


@shape_rule(run, run_random)
def run_shape(tensors: Sequence[Any], part: int) -> list[TensorMeta]:
    """What the part says; it was traced for tensors of these layouts."""
    return list(_parts[part].results)


def part_of(node: fx.Node) -> SubgraphOp | None:
    """The part that a node of a functional graph runs."""
    if node.target not in (run, run_random) or not isinstance(node.args[1], PartKey):
        return None
    return node.args[1].part


def record_part(
    mode: FunctionalTracer, part: SubgraphOp, tensors: Sequence[FakeTensor], draws: bool = False
) -> list[FakeTensor]:
    """Record the operator that runs a part; one that draws random numbers is never run again, merged or moved."""
    return mode.dispatch(run_random if draws else run, (list(tensors), PartKey(part)), {})


def fresh_layout(meta: TensorMeta) -> TensorMeta:
    """The meta of a tensor laid out alike in memory of its own."""
    return TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device)


def trace_part(
    outer: FunctionalTracer, function: Function, given: Sequence[TensorMeta], results: Sequence[TensorMeta], name: str
) -> fx.GraphModule:
    """Trace what a part computes to a functional graph, in the grad mode of now: from tensors laid out as `given` to
    fresh ones laid out as `results`.

    Raises Unsupported for code that writes to what it is given.
    """
    tracer = FunctionalTracer(outer.keep)
    with ExitStack() as stack:
        stack.callback(tracer.forget)
        stack.enter_context(torch._C._InferenceMode(False))
        fakes = [
            tracer.add_input(tracer.make(fresh_layout(meta)), f"arg_{position}") for position, meta in enumerate(given)
        ]
        with tracer:
            made = function(tracer, *fakes)
            taken: set[fx.Node] = set()
            nodes = [_own(tracer, value, meta, taken) for value, meta in zip(made, results, strict=True)]
        tracer.check_layouts()
        if any(fake.fake_storage.version for fake in fakes):
            raise Unsupported("mutation", f"{name} writes to a tensor from outside")
        if tracer.fixed_offsets:
            raise Unsupported("as-strided", f"{name} addresses memory from the beginning of a tensor's storage")
        graph, _ = close_graph(tracer, nodes)
        return graph


def _own(tracer: FunctionalTracer, value: Any, meta: TensorMeta, taken: set[fx.Node]) -> fx.Node:
    """A result in memory of its own, in the layout that is promised."""
    fake = tracer.laid_out(value if isinstance(value, FakeTensor) else tracer.constant(value), meta)
    root = memory_root(tracer.current(fake))
    if root.op != "call_function" or root in taken:
        fake = tracer.laid_out(tracer.apply(aten.clone.default, fake), meta)
        root = memory_root(tracer.current(fake))
    taken.add(root)
    return tracer.current(fake)
