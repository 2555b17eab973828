"""Compiles graphs that write to inputs overlapping others in memory.

The overlapping inputs become views, made in the graph, of one input that spans them all. A write through one view is
then visible through the others, as in any graph. This works only for tensors that autograd does not track. How graphs
are traced and compiled is the caller's choice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.base import counters, logs
from stator.base.errors import MissingToolchain, StatorError, Unsupported
from stator.graph.fake.fake_tensor import FakeTensor
from stator.graph.ir.captured_tensors import captured_tensors
from stator.graph.ir.graph_text import PlainGraphModule
from stator.graph.subgraphs.custom_autograd import graph_target
from stator.graph.tracing.symbolic_inputs import refuse_symbols, symbolic_placeholders, without_symbols
from stator.prims.layout import contiguous_strides

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
    """

    positions: tuple[int, ...]
    starts: tuple[int, ...]
    length: int
    related: bool

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
    return _Group(tuple(members), starts, max(map(operator.add, starts, lengths)), related)


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
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # of the members

    def __call__(
        self, results: Sequence[Any], members: Sequence[torch.Tensor], bases: Sequence[torch.Tensor]
    ) -> tuple[Any, ...]:
        if any(base.requires_grad for base in bases):
            raise _refused("what it writes requires grad")
        if any((tuple(one.shape), one.stride()) != layout for one, layout in zip(members, self.layouts, strict=True)):
            raise _refused("it changes the layout of one of them")
        positions = [position for group in self.groups for position in group.positions]
        given = {id(member): _GroupMember(position) for position, member in zip(positions, members, strict=True)}
        named = tuple([given.get(id(one), one) for one in results])
        apart = [base for group, base in zip(self.groups, bases, strict=True) if not group.related]
        if any(_shares(one, base) for one in named for base in apart):
            raise _refused("it returns a view of them, and they are views of different tensors")
        return named


def _shares(result: Any, base: torch.Tensor) -> bool:
    return isinstance(result, FakeTensor) and result.fake_storage is getattr(base, "fake_storage", None)


def _over_bases(
    gm: fx.GraphModule, groups: Sequence[_Group], tensors: Sequence[torch.Tensor], places: Sequence[int]
) -> fx.GraphModule:
    """A copy of the graph that takes the spanning tensors, behind its other inputs, instead of the members.

    places: positions of the tensors among all inputs.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    members = {position: placeholders[places[position]] for group in groups for position in group.positions}
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in placeholders:
        if node not in members.values():
            copied[node] = graph.node_copy(node)
    bases = [graph.placeholder(f"memory_{index}") for index in range(len(groups))]
    for group, base in zip(groups, bases, strict=True):
        for position, start in zip(group.positions, group.starts, strict=True):
            copied[members[position]] = _member(graph, base, start, tensors[position])
    results = graph.graph_copy(gm.graph, copied)
    if not isinstance(results, (tuple, list)):
        raise _refused("its results are no flat tuple")
    chosen = [tensors[position] for position in members]
    layouts = tuple([(tuple(tensor.shape), tensor.stride()) for tensor in chosen])
    ending = graph_target(_EndOfGraph(tuple(groups), layouts), "end_of_shared_memory")
    checked = graph.call_function(ending, (tuple(results), [copied[node] for node in members.values()], bases))
    graph.output(tuple([graph.call_function(operator.getitem, (checked, at)) for at in range(len(results))]))
    module = PlainGraphModule(gm, graph)
    module.meta.update(gm.meta)
    return module


def _member(graph: fx.Graph, base: fx.Node, start: int, tensor: torch.Tensor) -> fx.Node:
    shape = tuple(tensor.shape)
    if not _is_dense(tensor):
        return graph.call_method("as_strided", (base, shape, tensor.stride(), start))
    part = graph.call_method("narrow", (base, 0, start, tensor.numel()))
    order = _outermost_first(tensor)
    rows = graph.call_method("view", (part, tuple([shape[dim] for dim in order])))
    if order == sorted(order):
        return rows
    return graph.call_method("permute", (rows, tuple([order.index(dim) for dim in range(len(order))])))


# -- running ----------------------------------------------------------------------------------------------------------

_Way = tuple[_Group, ...]


def _sizes_of(args: Sequence[Any]) -> tuple[Any, ...]:
    """The sizes and strides of tensors, and ints."""
    return tuple([(one.shape, one.stride()) if isinstance(one, torch.Tensor) else one for one in args])


class _OverlapVersions:
    """A graph, compiled for each way in which its inputs overlap, up to a limit, and for fixed sizes of these."""

    def __init__(self, gm: fx.GraphModule, compile_disjoint: CompileDisjoint) -> None:
        self.gm, self.compile_disjoint = gm, compile_disjoint
        self.has_symbols = bool(symbolic_placeholders(gm))
        self.ways: dict[Any, Callable[..., Any]] = {}  # by way, and sizes where these change

    def run(self, written: Mapping[int, int], args: Sequence[Any]) -> Any:
        """Run the version for the way in which these inputs overlap."""
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        try:
            way = _groups(tensors, written)
            key = (way, _sizes_of(args)) if self.has_symbols else way
            compiled = self.ways.get(key)
            if compiled is None and len(self.ways) < _MOST_WAYS:
                compiled = self.ways[key] = self._compiled(way, written, args)
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
        return compiled(*args)

    def compile(self, error: OverlappingInputs, args: Sequence[Any]) -> None:
        """Compile for the way in which these inputs overlap; raises `error` where no overlap is found, and Unsupported
        for a graph with symbolic sizes."""
        refuse_symbols(self.gm, "inputs that overlap have fixed sizes")
        way = _groups([value for value in args if isinstance(value, torch.Tensor)], error.written)
        if not way:
            raise error
        self.ways[way] = self._compiled(way, error.written, args)

    def _compiled(self, way: _Way, written: Mapping[int, int], args: Sequence[Any]) -> Callable[..., Any]:
        counters.count("aot_shared_memory")
        gm = without_symbols(self.gm) if self.has_symbols else self.gm
        if not way:
            return self.compile_disjoint(gm, args, self.run)
        if captured_tensors(self.gm, args):
            raise _refused("the graph holds tensors of its own")
        places = [at for at, value in enumerate(args) if isinstance(value, torch.Tensor)]
        tensors = [args[at] for at in places]
        members = [position for group in way for position in group.positions]
        within = frozenset(places[position] for position in members)
        apart = [position for group in way if not group.related for position in group.positions]

        def over_bases(args: Sequence[Any]) -> list[Any]:
            tensors = [args[at] for at in places]
            others = [value for at, value in enumerate(args) if at not in within]
            return [*others, *[group.base(tensors) for group in way]]

        def overlap_again(written: Mapping[int, int], args: Sequence[Any]) -> Any:
            raise AssertionError("what spans tensors that overlap shares memory with no other tensor")

        inner = self.compile_disjoint(_over_bases(gm, way, tensors, places), over_bases(args), overlap_again)

        def run(*args: Any) -> Any:
            results = inner(*over_bases(args))
            tensors = [args[at] for at in places]
            announced = [tensors[position] for position in apart for _ in range(written.get(position, 0))]
            if announced:
                torch.autograd.graph.increment_version(announced)
            return tuple([tensors[one.position] if type(one) is _GroupMember else one for one in results])

        return run
