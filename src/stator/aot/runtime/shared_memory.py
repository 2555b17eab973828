"""Compiles graphs that write to inputs overlapping others in memory.

The overlapping inputs become views, made in the graph, of one input that spans them all. A write through one view is
then visible through the others, as in any graph. This works only for tensors that autograd does not track. How graphs
are traced and compiled is the caller's choice.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.base import counters, logs
from stator.base.errors import MissingToolchain, StatorError, Unsupported
from stator.graph.fake.fake_mode import FakeMode
from stator.graph.fake.fake_tensor import FakeTensor
from stator.graph.ir.aten_graph import PlainGraphModule
from stator.graph.ir.captured_tensors import captured_tensors
from stator.graph.ir.size_bindings import SizeBindings, bind_sizes, read_sizes, symbols_of
from stator.graph.subgraphs.custom_autograd import graph_target
from stator.graph.tracing.symbolic_inputs import symbolic_placeholders, without_symbols
from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta
from stator.shapes.expr import Symbol
from stator.shapes.sym_node import to_expression, to_sym_int

from .overlap_check import are_disjoint, byte_span

RunOverlapping = Callable[[Mapping[int, int], Sequence[Any]], Any]
# (graph, inputs, run_overlapping) -> callable of the inputs. The callable calls run_overlapping(written, inputs) where
# inputs overlap in another way than when it was compiled; `written`: see `OverlappingInputs`.
CompileDisjoint = Callable[[fx.GraphModule, Sequence[Any], RunOverlapping], Callable[..., Any]]

# The most ways of overlapping that one graph is compiled for; in others it runs eagerly.
_MOST_WAYS = 8


class OverlappingInputs(Unsupported):
    """A graph writes to an input that shares memory with another input.

    written: per tensor input that is written to, by position, how many writes autograd is told of.
    """

    def __init__(self, written: Mapping[int, int]) -> None:
        super().__init__(
            "overlapping-inputs",
            "the graph writes to an input that shares its memory with another input",
            hint="pass a clone, or write to the base tensor only",
        )
        self.written = dict(written)


def with_shared_memory(gm: fx.GraphModule, example_inputs: Sequence[Any], compile_disjoint: CompileDisjoint) -> Any:
    """Compile a graph whose tensor inputs may overlap, differently in later calls. Raises the errors of
    `compile_disjoint` where these inputs cannot become views of one tensor either."""
    shared = _OverlapVersions(gm, compile_disjoint)
    try:
        return compile_disjoint(gm, example_inputs, shared.run)
    except OverlappingInputs as error:
        shared.compile(error, example_inputs)
        written = error.written
    return lambda *args: shared.run(written, args)


# -- which tensors overlap --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """Tensors that overlap. positions: among all tensors. starts: where each begins, in elements of the spanning
    tensor.
    length: elements of the spanning tensor. related: whether autograd knows the tensors as views of one tensor.
    last: the index of the position whose tensor ends where the spanning tensor does.
    """

    positions: tuple[int, ...]
    starts: tuple[int, ...]
    length: int
    related: bool
    last: int

    def form(self) -> tuple[Any, ...]:
        """What is known of the group beside the sizes of its tensors."""
        return self.positions, self.starts, self.related, self.last

    def base(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A tensor that spans the group: a view of the common base, or a tensor that is unrelated to the members."""
        first = tensors[self.positions[0]]
        begin = first.storage_offset() - self.starts[0]
        if self.related:
            return _root(first).as_strided((self.length,), (1,), begin)
        base: Any = torch.empty(0, dtype=first.dtype, device=first.device)
        return base.set_(first.untyped_storage(), begin, (self.length,), (1,))  # type: ignore[no-any-return]


def _root(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._base if tensor._is_view() else tensor  # type: ignore[return-value]


def _groups(tensors: Sequence[torch.Tensor], written: Mapping[int, int]) -> tuple[_Group, ...]:
    """The groups of tensors that overlap a written tensor. Raises Unsupported where a group cannot be views of one
    tensor."""
    spans = [byte_span(tensor) for tensor in tensors]
    runs: list[list[int]] = []
    reach = 0
    for at in sorted((at for at, (start, end) in enumerate(spans) if end > start), key=lambda at: spans[at]):
        if runs and spans[at][0] < reach:
            runs[-1].append(at)
        else:
            runs.append([at])
        reach = max(reach, spans[at][1])
    overlapping = (
        sorted(run)
        for run in runs
        if len(run) > 1 and not are_disjoint([tensors[at] for at in run], [at in written for at in run])
    )
    return tuple([_group(members, tensors) for members in overlapping])


def _group(members: Sequence[int], tensors: Sequence[torch.Tensor]) -> _Group:
    chosen = [tensors[at] for at in members]
    first = chosen[0]
    for tensor in chosen:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_conj() or tensor.is_neg():
            raise _refused("one of them is no plain tensor")
        if tensor.requires_grad or tensor.is_inference():
            raise _refused("autograd follows one of them, or it was made in inference mode")
        if tensor.dtype is not first.dtype or tensor.untyped_storage()._cdata != first.untyped_storage()._cdata:
            raise _refused("they differ in dtype, or memory from elsewhere is two storages")
    # as_strided, which makes members with gaps, counts from the start of the storage.
    begin = min(tensor.storage_offset() for tensor in chosen) if all(map(_is_dense, chosen)) else 0
    starts = tuple([int(tensor.storage_offset() - begin) for tensor in chosen])
    item = first.element_size()
    lengths = [(end - start) // item for start, end in map(byte_span, chosen)]
    root = _root(first)
    related = root.dtype is first.dtype and all(_root(tensor) is root for tensor in chosen)
    if root.requires_grad and related:
        raise _refused("they are views of what autograd follows, which it does not follow")
    ends = list(map(operator.add, starts, lengths))
    return _Group(tuple(members), starts, max(ends), related, ends.index(max(ends)))


def _refused(why: str) -> Unsupported:
    return Unsupported("overlapping-inputs", f"the graph writes to an input that shares memory with another one; {why}")


def _outermost_first(tensor: torch.Tensor) -> list[int]:
    return sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), tensor.shape[dim]), reverse=True)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a permuted row-major tensor, dimensions of size one included."""
    order = _outermost_first(tensor)
    sizes = [tensor.shape[dim] for dim in order]
    return [tensor.stride(dim) for dim in order] == list(contiguous_strides(sizes))


# -- the graph of the spanning tensors --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _GroupMember:
    """Replaces a result that is itself an input tensor; `position` counts the tensor inputs."""

    position: int


@dataclass(frozen=True, slots=True)
class _EndOfGraph:
    """Runs at the end of the graph, on its results, the members of each group, and the spanning tensors. Raises
    Unsupported where replay would need more than new contents."""

    groups: tuple[_Group, ...]

    def __call__(
        self,
        results: Sequence[Any],
        members: Sequence[torch.Tensor],
        layouts: Sequence[tuple[Any, Any]],  # of the members at the beginning
        bases: Sequence[torch.Tensor],
    ) -> tuple[Any, ...]:
        if any(base.requires_grad for base in bases):
            raise _refused("what it writes requires grad")
        if any(layout != before for layout, before in zip(_layouts(members), layouts, strict=True)):
            raise _refused("it changes the layout of one of them")
        positions = [position for group in self.groups for position in group.positions]
        given = {id(member): _GroupMember(position) for position, member in zip(positions, members, strict=True)}
        named = tuple([given.get(id(one), one) for one in results])
        apart = [base for group, base in zip(self.groups, bases, strict=True) if not group.related]
        if any(_shares(one, base) for one in named for base in apart):
            raise _refused("it returns a view of them, and they are views of different tensors")
        return named


def _layouts(members: Sequence[torch.Tensor]) -> list[tuple[Any, Any]]:
    return [(tuple(one.shape), one.stride()) for one in members]


def _shares(result: Any, base: torch.Tensor) -> bool:
    return isinstance(result, FakeTensor) and result.fake_storage is getattr(base, "fake_storage", None)


def _over_bases(
    gm: fx.GraphModule, groups: Sequence[_Group], tensors: Sequence[torch.Tensor], places: Sequence[int]
) -> tuple[fx.GraphModule, SizeBindings]:
    """A copy of the graph that takes, instead of the members, the spanning tensors behind its other inputs, and behind
    these the sizes of members that are symbols. Also returns where the graph's own inputs tell these sizes.

    places: positions of the tensors among all inputs.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    members = {position: placeholders[places[position]] for group in groups for position in group.positions}
    examples = symbolic_placeholders(gm)
    layouts = {at: examples.get(places[at], tensors[at]) for at in members}
    sizes = _sizes_of_members(layouts.values(), examples)
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in placeholders:
        if node not in members.values():
            copied[node] = graph.node_copy(node)
    bases = [graph.placeholder(f"memory_{index}") for index in range(len(groups))]
    ways = {symbol: graph.placeholder(f"size_{index}") for index, symbol in enumerate(sizes)}
    for symbol, node in ways.items():
        node.meta["example_value"] = to_sym_int(_environment(layouts.values()), symbol)
    for group, base in zip(groups, bases, strict=True):
        _describe(base, group, [layouts[position] for position in group.positions])
        for position, start in zip(group.positions, group.starts, strict=True):
            copied[members[position]] = _member(graph, base, start, tensors[position], layouts[position], ways)
    held = [copied[node] for node in members.values()]
    before = graph.call_function(graph_target(_layouts, "layouts"), (held,))
    results = graph.graph_copy(gm.graph, copied)
    if not isinstance(results, (tuple, list)):
        raise _refused("its results are no flat tuple")
    ending = graph_target(_EndOfGraph(tuple(groups)), "end_of_shared_memory")
    checked = graph.call_function(ending, (tuple(results), held, before, bases))
    graph.output(tuple([graph.call_function(operator.getitem, (checked, at)) for at in range(len(results))]))
    module = PlainGraphModule(gm, graph)
    module.meta.update(gm.meta)
    return module, sizes


def _sizes_of_members(layouts: Iterable[Any], examples: Mapping[int, Any]) -> SizeBindings:
    """The symbols in the layouts of members, and which inputs tell their values."""
    needed = symbols_of([(tuple(one.shape), tuple(one.stride())) for one in layouts])
    known = bind_sizes([examples.get(at) for at in range(max(examples, default=-1) + 1)])
    if needed - known.keys():
        raise _refused("their sizes follow from sizes that no input has")
    return {symbol: known[symbol] for symbol in known if symbol in needed}


def _environment(layouts: Iterable[Any]) -> Any:
    sizes = [size for one in layouts for size in (*one.shape, *one.stride())]
    return next(size.node.environment for size in sizes if type(size) is torch.SymInt)


def _describe(base: fx.Node, group: _Group, layouts: Sequence[Any]) -> None:
    """Note the symbolic layout of a spanning tensor."""
    last = layouts[group.last]
    length = group.starts[group.last] + 1
    for size, stride in zip(last.shape, last.stride(), strict=True):
        length = length + (size - 1) * stride
    if type(length) is torch.SymInt:
        mode = FakeMode()
        base.meta["example_value"] = mode.make(TensorMeta((length,), (1,), last.dtype, last.device))
        mode.forget()


def _member(
    graph: fx.Graph,
    base: fx.Node,
    start: int,
    tensor: torch.Tensor,
    layout: Any,
    sizes: Mapping[Symbol, fx.Node],
) -> fx.Node:
    """The node of a view of `base`. layout: a tensor with the sizes and strides of `tensor`, or symbols for these."""
    tracer = fx.proxy.GraphAppendingTracer(graph)
    known = {symbol: fx.Proxy(node, tracer) for symbol, node in sizes.items()}

    def node_of(size: Any) -> Any:
        made = to_expression(size).evaluate(known) if type(size) is torch.SymInt else size
        return made.node if isinstance(made, fx.Proxy) else made

    shape = tuple([node_of(size) for size in layout.shape])
    if not _is_dense(tensor):
        return graph.call_method("as_strided", (base, shape, tuple(map(node_of, layout.stride())), start))
    part = graph.call_method("narrow", (base, 0, start, node_of(math.prod(layout.shape))))
    order = _outermost_first(tensor)
    rows = graph.call_method("view", (part, tuple([shape[dim] for dim in order])))
    if order == sorted(order):
        return rows
    return graph.call_method("permute", (rows, tuple([order.index(dim) for dim in range(len(order))])))


# -- running ----------------------------------------------------------------------------------------------------------

_Way = tuple[_Group, ...]
_RunWay = Callable[[_Way, Sequence[Any]], Any]  # takes the way of this call, and its arguments


def _forms(way: _Way) -> tuple[Any, ...]:
    return tuple([group.form() for group in way])


def _sizes_of(args: Sequence[Any]) -> tuple[Any, ...]:
    """The sizes and strides of tensors, and ints."""
    return tuple([(one.shape, one.stride()) if isinstance(one, torch.Tensor) else one for one in args])


class _OverlapVersions:
    """A graph, compiled for each way in which its inputs overlap, up to a limit. For the ways of the first call, sizes
    are symbols, about which the caller checks what was relied on; for later ways they are fixed."""

    def __init__(self, gm: fx.GraphModule, compile_disjoint: CompileDisjoint) -> None:
        self.gm, self.compile_disjoint = gm, compile_disjoint
        self.has_symbols = bool(symbolic_placeholders(gm))
        self.ways: dict[Any, _RunWay] = {}  # by way, and sizes where these change
        self.of_all_sizes: dict[Any, _RunWay] = {}  # by the forms of the groups of a way

    def run(self, written: Mapping[int, int], args: Sequence[Any]) -> Any:
        """Run the version for the way in which these inputs overlap."""
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        try:
            way = _groups(tensors, written)
            key = (way, _sizes_of(args)) if self.has_symbols else way
            compiled = self.of_all_sizes.get(_forms(way)) or self.ways.get(key)
            if compiled is None and len(self.ways) < _MOST_WAYS:
                gm = without_symbols(self.gm) if self.has_symbols else self.gm
                compiled = self.ways[key] = self._compiled(gm, way, written, args)
        except MissingToolchain:
            raise
        except StatorError as error:
            compiled, why = None, str(error)
        else:
            why = "there were too many ways before"
        if compiled is None:
            logs.warn_once(
                "aot:overlapping-inputs",
                "stator: inputs share memory in another way than when this graph was compiled; running it eagerly. "
                + why,
            )
            return self.gm(*args)
        return compiled(way, args)

    def compile(self, error: OverlappingInputs, args: Sequence[Any]) -> None:
        """Compile for the way in which these inputs overlap; raises `error` where no overlap is found."""
        way = _groups([value for value in args if isinstance(value, torch.Tensor)], error.written)
        if not way:
            raise error
        known = self.of_all_sizes if self.has_symbols else self.ways
        known[_forms(way) if self.has_symbols else way] = self._compiled(self.gm, way, error.written, args)

    def _compiled(self, gm: fx.GraphModule, way: _Way, written: Mapping[int, int], args: Sequence[Any]) -> _RunWay:
        counters.count("aot_shared_memory")
        if not way:
            disjoint = self.compile_disjoint(gm, args, self.run)
            return lambda way, args: disjoint(*args)
        if captured_tensors(self.gm, args):
            raise _refused("the graph holds tensors of its own")
        places = [at for at, value in enumerate(args) if isinstance(value, torch.Tensor)]
        tensors = [args[at] for at in places]
        members = [position for group in way for position in group.positions]
        within = frozenset(places[position] for position in members)
        apart = [position for group in way if not group.related for position in group.positions]
        module, sizes = _over_bases(gm, way, tensors, places)

        def over_bases(way: _Way, args: Sequence[Any]) -> list[Any]:
            tensors = [args[at] for at in places]
            others = [value for at, value in enumerate(args) if at not in within]
            return [*others, *[group.base(tensors) for group in way], *read_sizes(sizes, args).values()]

        def overlap_again(written: Mapping[int, int], args: Sequence[Any]) -> Any:
            raise AssertionError("what spans tensors that overlap shares memory with no other tensor")

        inner = self.compile_disjoint(module, over_bases(way, args), overlap_again)

        def run(way: _Way, args: Sequence[Any]) -> Any:
            results = inner(*over_bases(way, args))
            tensors = [args[at] for at in places]
            announced = [tensors[position] for position in apart for _ in range(written.get(position, 0))]
            if announced:
                torch.autograd.graph.increment_version(announced)
            return tuple([tensors[one.position] if type(one) is _GroupMember else one for one in results])

        return run
