"""Functional graphs that another functional graph runs as one operator: the branches of a condition, the body of a
loop.

At run time a `Control` decides which graphs run, and how often. The kinds of controls are in the neighbouring files.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import fx

from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.graph.ir import identity
from stator.graph.ir.memory import memory_root
from stator.graph.ir.size_bindings import environment_of, evaluated, read_sizes, size_bindings, symbols_of_graph
from stator.graph.tracing.tracer import close_graph
from stator.prims.record import TensorMeta, shape_rule
from stator.shapes.expr import Symbol
from stator.shapes.sym_node import to_sym_int

from .custom_autograd import run_subgraph

aten = torch.ops.aten
Compiled = Callable[..., Sequence[torch.Tensor]]

# The computation of a subgraph: called with the active tracer and its fake tensors.
SubgraphFunction = Callable[..., Sequence[torch.Tensor]]


class Control(Protocol):
    """Runs the graphs of an operator: called with the graphs as callables and the operator's tensors. Its text tells it
    from other controls, in all processes."""

    def __call__(self, functions: Sequence[Compiled], tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]: ...


class SubgraphOp:
    """Functional graphs and the control that runs them. results: layouts of the results of any run. functions:
    callables that replace the graphs (compiled ones)."""

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

    def run(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Run on real tensors, below autograd. The results share no memory with the arguments. sizes: the values of the
        symbols of the graphs."""
        functions = [_with_sizes(function, sizes) for function in self._functions] if sizes else self._functions
        return list(self.control(functions, tensors))

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Any:
        """Called by compiled graphs. A single result is returned without a list."""
        made = self.run(tensors, sizes)
        return made[0] if len(made) == 1 else made

    def compiled(self, compile_graph: Callable[[fx.GraphModule], Compiled]) -> SubgraphOp:
        """Return the operator with compiled graphs."""
        return SubgraphOp(
            self.kind, self.graphs, self.results, self.control, [compile_graph(graph) for graph in self.graphs]
        )

    def __str__(self) -> str:
        return self.kind


class SubgraphKey(int):
    """The operator's integer argument that finds its SubgraphOp. The key holds a strong reference to it."""

    part: SubgraphOp

    def __new__(cls, part: SubgraphOp) -> SubgraphKey:
        key = super().__new__(cls, next(_numbers))
        key.part = part
        _parts[int(key)] = part
        return key

    def __deepcopy__(self, memo: Any) -> SubgraphKey:
        return self

    __copy__ = __deepcopy__  # type: ignore[assignment]


@identity.writes(SubgraphKey)
def _identity(key: SubgraphKey) -> str:
    part = key.part
    return f"{part.kind} {part.control} {identity.text(part.results)} {[*map(identity.graph_identity, part.graphs)]}"


_numbers = itertools.count()
_parts: weakref.WeakValueDictionary[int, SubgraphOp] = weakref.WeakValueDictionary()


def _with_sizes(function: Compiled, sizes: Sequence[int]) -> Compiled:
    return lambda *tensors: function(*tensors, *sizes)


def _callable(graph: fx.GraphModule) -> Compiled:
    def run(*values: Any) -> Sequence[torch.Tensor]:
        bindings = size_bindings(graph.graph)
        if not bindings:
            return run_subgraph(graph, values)
        return _AtSizes(graph, read_sizes(bindings, values)).run(*values)  # type: ignore[no-any-return]

    return run


class _AtSizes(fx.Interpreter):
    """Runs a functional graph with symbolic sizes, node by node."""

    def __init__(self, graph: fx.GraphModule, sizes: Mapping[Symbol, int]) -> None:
        super().__init__(graph)
        self.sizes = sizes

    def fetch_args_kwargs_from_env(self, node: fx.Node) -> Any:
        return evaluated(super().fetch_args_kwargs_from_env(node), self.sizes)


def _run(tensors: Sequence[torch.Tensor], part: int, sizes: Sequence[int]) -> list[torch.Tensor]:
    return _parts[part].run(tensors, sizes)


_library = torch.library.Library("stator_parts", "DEF")
_library.define("run(Tensor[] tensors, int part, SymInt[] sizes) -> Tensor[]")
_library.define(
    "run.random(Tensor[] tensors, int part, SymInt[] sizes) -> Tensor[]", tags=(torch.Tag.nondeterministic_seeded,)
)
_library.impl("run", _run, "CompositeExplicitAutograd")
_library.impl("run.random", _run, "CompositeExplicitAutograd")

run = torch.ops.stator_parts.run.default
run_random = torch.ops.stator_parts.run.random  # for subgraphs that draw random numbers


@shape_rule(run, run_random)
def run_shape(tensors: Sequence[Any], part: int, sizes: Sequence[Any]) -> list[TensorMeta]:
    """Return the recorded layouts; the graphs were traced for tensors of the given layouts."""
    return list(_parts[part].results)


def subgraph_of(node: fx.Node) -> SubgraphOp | None:
    """Return the SubgraphOp that a node of a functional graph runs, or None."""
    if node.target not in (run, run_random) or not isinstance(node.args[1], SubgraphKey):
        return None
    return node.args[1].part


def record_subgraph(
    mode: FunctionalTracer, part: SubgraphOp, tensors: Sequence[FakeTensor], draws: bool = False
) -> list[FakeTensor]:
    """Record the operator that runs a SubgraphOp. With `draws`, rewrites never repeat, merge or move the operator."""
    return mode.dispatch(run_random if draws else run, (list(tensors), SubgraphKey(part), _sizes_of(part)), {})


def _sizes_of(part: SubgraphOp) -> list[Any]:
    """The symbols of the graphs, which take their values behind the tensors."""
    environments = filter(None, (environment_of(graph.graph) for graph in part.graphs))
    environment = next(environments, None)
    if environment is None:
        return []
    symbols = frozenset().union(*[symbols_of_graph(graph.graph) for graph in part.graphs])
    sizes = [to_sym_int(environment, symbol) for symbol in sorted(symbols, key=str)]
    for graph in part.graphs:
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        for at, size in enumerate(sizes):
            with graph.graph.inserting_after(placeholders[-1]):
                placeholders.append(graph.graph.placeholder(f"size_{at}"))
            placeholders[-1].meta["val"] = size
    return sizes


def fresh_layout(meta: TensorMeta) -> TensorMeta:
    """Return the layout of a copy in fresh memory."""
    return TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device)


def trace_subgraph(
    outer: FunctionalTracer,
    function: SubgraphFunction,
    given: Sequence[TensorMeta],
    results: Sequence[TensorMeta],
    name: str,
) -> fx.GraphModule:
    """Trace a subgraph to a functional graph, in the current grad mode. Its inputs are laid out as `given`, its fresh
    results as `results`. Raises Unsupported for code that writes to its inputs."""
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
    """Return a result in memory of its own, in the promised layout."""
    fake = tracer.laid_out(value if isinstance(value, FakeTensor) else tracer.constant(value), meta)
    root = memory_root(tracer.current(fake))
    if root.op != "call_function" or root in taken:
        fake = tracer.laid_out(tracer.apply(aten.clone.default, fake), meta)
        root = memory_root(tracer.current(fake))
    taken.add(root)
    return tracer.current(fake)
