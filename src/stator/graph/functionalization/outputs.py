"""Turns the fake tensors that traced code returns into graph outputs and recipes for the user's outputs.

Decisions follow storages (which tensors share memory), never graph values.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import DataDependent, FakeStorage, FakeTensor
from stator.graph.fake.number_stand_ins import holds_numbers
from stator.graph.ir.memory import memory_root
from stator.graph.ir.size_bindings import SizeBinding, bind_sizes, symbols_of, unknown_symbols
from stator.graph.ir.traced import (
    Fresh,
    Geometry,
    History,
    InputItself,
    Moved,
    Output,
    OutputValue,
    SameAs,
    Traced,
    ViewOfConstant,
    ViewOfInput,
    ViewOfOutput,
    ViewOfResult,
    ViewStep,
    symbolic_parts,
)
from stator.prims.layout import equal_sizes, same_strides, surely
from stator.prims.record import TensorMeta
from stator.shapes.expr import Symbol
from stator.shapes.sym_node import to_sym_int

from .functionalize import FunctionalTracer
from .views import REINTERPRETING

aten = torch.ops.aten


@dataclass(slots=True)
class DescribedOutputs:
    """The outputs and mutations of a traced program, in terms of the values that its graph returns.

    handles: for each value the tensor through which autograd knows it, or None (the program does not return the
        contents).
    mutated: (input index, position of its new contents among the values).
    outputs, histories: one per leaf of the result.
    announced: by input index, the number of writes that bump autograd's version counter.
    """

    values: list[FakeTensor]
    handles: list[FakeTensor | None]
    mutated: list[tuple[int, int]]
    outputs: list[Output]
    histories: tuple[History, ...]
    announced: dict[int, int]

    def unknown_sizes(self, tracer: FunctionalTracer) -> tuple[dict[Symbol, SizeBinding], list[Any]]:
        """Where the results of the graph tell the sizes that depend on data and that recipes of outputs need; and
        numbers that the graph has to return behind the values."""
        if tracer.unknown is None:
            return {}, []
        environment = tracer.unknown.environment
        layouts = tracer.layouts_left()
        needed = symbols_of([*map(symbolic_parts, self.outputs), *map(symbolic_parts, layouts)])
        wanted = unknown_symbols(needed, environment)
        bound = bind_sizes(value.meta for value in self.values)
        found = {symbol: bound[symbol] for symbol in wanted & bound.keys()}
        missing = sorted(wanted - bound.keys(), key=str)
        for position, symbol in enumerate(missing, len(self.values)):
            found[symbol] = SizeBinding(position, None)
        return found, [to_sym_int(environment, symbol) for symbol in missing]

    def traced(
        self, tracer: FunctionalTracer, graph: fx.GraphModule, constants: dict[str, torch.Tensor], spec: pytree.TreeSpec
    ) -> Traced:
        """Combine with the graph that returns the values and the spec of the program's result."""
        offsets = tuple(sorted(tracer.fixed_offsets))
        return Traced(
            graph,
            self.mutated,
            self.outputs,
            spec,
            constants,
            self.histories,
            offsets,
            self.announced,
            tracer.layouts_left(),
        )


class _Outputs:
    """Collects the values that the graph returns."""

    def __init__(self, tracer: FunctionalTracer, differentiable: bool) -> None:
        self.tracer = tracer
        self.differentiable = differentiable
        self.values: list[FakeTensor] = []
        self.handles: list[FakeTensor | None] = []
        self.positions: dict[int, int] = {}  # id(fake) -> position in values
        self.owners: dict[fx.Node, int] = {}  # memory root in the graph -> id of the storage that may be returned in it

    def position(self, fake: FakeTensor, handle: FakeTensor | None) -> int:
        """Return the position of this tensor among the graph outputs; append it if it is not there yet."""
        found = self.positions.get(id(fake))
        if found is None:
            found = self.positions[id(fake)] = len(self.values)
            self._own_memory(fake)
            self.tracer.current(fake)
            self.values.append(fake)
            self.handles.append(handle)
        return found

    def _own_memory(self, fake: FakeTensor) -> None:
        """Copy the tensor if the graph would otherwise return the memory of an input, a constant or another output."""
        root = memory_root(self.tracer.current(fake))
        storage = fake.fake_storage
        taken = root.op in ("placeholder", "get_attr") or self.owners.setdefault(root, id(storage)) != id(storage)
        if not taken:
            return
        tracer = self.tracer
        owner = tracer.storage_value(storage)
        copy = tracer.laid_out(tracer.apply(aten.clone.default, owner), storage.meta)
        storage.node = copy.node
        storage.version += 1
        self.owners[memory_root(copy.node)] = id(storage)


def describe_outputs(tracer: FunctionalTracer, leaves: Sequence[Any], differentiable: bool = False) -> DescribedOutputs:
    """Decide how each leaf of a program's result is made from the values that its graph returns.

    differentiable: leaves may require grad. Leaves made outside of the graph must then follow from their base for
        autograd too, else Unsupported is raised. If not set, Unsupported is raised for every leaf that requires grad.
    """
    storages = [fake.fake_storage for fake in tracer.inputs]
    announced = {index: one.version - one.unannounced for index, one in enumerate(storages) if one.version}
    collected = _Outputs(tracer, differentiable)
    leaves = [tracer.constant(leaf) if _is_real(leaf) else leaf for leaf in leaves]
    sharing = _fresh_sharing(tracer, leaves)
    first: dict[int, int] = {}
    outputs: list[Output] = []
    for position, leaf in enumerate(leaves):
        earlier = first.setdefault(id(leaf), position) if isinstance(leaf, FakeTensor) else position
        outputs.append(SameAs(earlier) if earlier != position else _describe(tracer, collected, leaf, sharing))
    mutated = _mutated_inputs(tracer, collected)
    apart = {at: made for at, leaf in enumerate(leaves) if (made := _view_of_detached(leaf, first)) is not None}
    outputs = [output if isinstance(output, SameAs) else apart.get(at, output) for at, output in enumerate(outputs)]
    detached = any(isinstance(leaf, FakeTensor) and leaf.detached for leaf in leaves)
    histories = tuple([_history(leaf, differentiable) for leaf in leaves]) if differentiable or detached else ()
    histories = tuple([History.AMBIENT if at in apart else one for at, one in enumerate(histories)])
    return DescribedOutputs(collected.values, collected.handles, mutated, outputs, histories, announced)


def _view_of_detached(leaf: Any, first: dict[int, int]) -> ViewOfResult | None:
    """Describe a leaf that is a view, for autograd too, of another leaf that was detached. first: positions of leaves,
    by id."""
    if not isinstance(leaf, FakeTensor) or not leaf.detached or leaf.requires_grad or not leaf._is_view():
        return None
    base = leaf._base
    if not isinstance(base, FakeTensor) or base is leaf or id(base) not in first or not base.detached:
        return None
    begun = len(base.steps)
    if leaf.steps[:begun] == base.steps:
        meta = leaf.meta
        return ViewOfResult(first[id(base)], Geometry(meta.shape, meta.stride, 0, leaf.steps[begun:]))
    return ViewOfResult(first[id(base)], geometry(base.meta, leaf))


def _history(leaf: Any, differentiable: bool) -> History:
    if isinstance(leaf, FakeTensor) and leaf.detached and not leaf.requires_grad:
        return History.DATA if leaf.is_data else History.DETACHED
    if not differentiable:
        return History.AMBIENT
    if not isinstance(leaf, FakeTensor) or not leaf.requires_grad:
        return History.NONE
    return History.LEAF if leaf.grad_fn is None else History.FOLLOWED


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)


def _fresh_sharing(tracer: FunctionalTracer, leaves: Sequence[Any]) -> dict[int, list[FakeTensor]]:
    """Group distinct output tensors by the id of their storage."""
    sharing: defaultdict[int, list[FakeTensor]] = defaultdict(list)
    for leaf in leaves:
        if isinstance(leaf, FakeTensor) and not any(other is leaf for other in sharing[id(leaf.fake_storage)]):
            sharing[id(leaf.fake_storage)].append(leaf)
    return sharing


def _describe(tracer: FunctionalTracer, collected: _Outputs, leaf: Any, sharing: dict[int, list[FakeTensor]]) -> Output:
    if holds_numbers(leaf):
        raise DataDependent("data-dependent", "a Python number that depends on data leaves the traced code")
    if not isinstance(leaf, FakeTensor):
        return OutputValue(leaf)
    if leaf.requires_grad and not collected.differentiable:
        raise Unsupported("requires-grad-output", "the traced code makes a tensor that requires grad")
    storage = leaf.fake_storage
    constant = tracer.constant_storages.get(id(storage))
    if constant is not None:
        itself = tracer.constant(constant) is leaf
        if leaf.grad_fn is not None and not itself and not _is_view_of(tracer.constant(constant), leaf):
            raise Unsupported("aliased-gradient", "an output shares memory with a constant without being its view")
        return ViewOfConstant(constant, None if itself else geometry(storage.meta, leaf))
    index = tracer.input_storages.get(id(storage))
    if index is not None:
        if tracer.inputs[index] is leaf:
            return InputItself(index)
        place = ViewOfInput(index, geometry(storage.meta, leaf))
        return _viewing(collected, leaf, tracer.inputs[index], place)
    group = sharing[id(storage)]
    if len(group) == 1 and not (leaf.is_conj() or leaf.is_neg()):
        if leaf.requires_grad and leaf.is_leaf:
            raise Unsupported("requires-grad-output", "the traced code makes a leaf that requires grad")
        position = collected.position(leaf, leaf)
        stored = leaf.node.meta["val"]
        if equal_sizes(stored.stride, leaf.meta.stride) or not same_strides(
            stored.shape, stored.stride, leaf.meta.stride
        ):
            return Fresh(position)  # elements that overlap in eager's result are separate here
        # Strides of dimensions of size one hold no meaning, but eager shows them.
        return ViewOfOutput(position, Geometry(leaf.meta.shape, leaf.meta.stride, 0))
    base = _base_of(tracer, group, storage)
    position = collected.position(base, base)
    if not same_strides(base.meta.shape, base.node.meta["val"].stride, base.meta.stride):
        raise Unsupported("overlapping-output", "outputs share memory whose elements overlap each other")
    if leaf is base:
        return Fresh(position)
    return _viewing(collected, leaf, base, ViewOfOutput(position, geometry(storage.meta, leaf, base.steps)))


def _viewing(
    collected: _Outputs, leaf: FakeTensor, base: FakeTensor, place: ViewOfInput | ViewOfOutput
) -> ViewOfInput | ViewOfOutput | Moved:
    """A view of the base if autograd sees it as one. Else a value of its own, which moves to the base's memory."""
    if leaf.grad_fn is None or _is_view_of(base, leaf):
        return place
    if leaf.is_conj() or leaf.is_neg():
        raise Unsupported(
            "aliased-gradient", "an output shares memory with another tensor without being its view for autograd"
        )
    position = collected.position(collected.tracer.apply(aten.clone.default, leaf), leaf)
    if isinstance(place, ViewOfInput):
        return Moved(position, place.index, True, place.geometry)
    return Moved(position, place.position, False, place.geometry)


def _base_of(tracer: FunctionalTracer, group: list[FakeTensor], storage: FakeStorage) -> FakeTensor:
    """Return the base of the outputs in `group`, which share a storage; one of the outputs if possible."""
    found = _spanning(group, storage)
    if found is None:
        bases = [fake._base for fake in group if fake.requires_grad and fake._is_view()]
        found = _spanning([base for base in bases if isinstance(base, FakeTensor)], storage)
    if found is None or not found.requires_grad:
        # A custom function that returns its argument cuts the result off from the argument's place in autograd's graph.
        found = next((fake for fake in group if fake.requires_grad and _is_whole(fake, storage)), found)
    if found is None:
        found = tracer.storage_value(storage)
        found.fake_storage, found.seen = storage, storage.version
    if not any(found is fake for fake in group):
        group.append(found)
    return found


def _spanning(candidates: Sequence[FakeTensor], storage: FakeStorage) -> FakeTensor | None:
    """Return a candidate that is laid out as the whole storage, preferably one that requires grad."""
    fits = [
        fake
        for fake in candidates
        if fake.fake_storage is storage and not fake.steps and equal_sizes(fake.meta.stride, storage.meta.stride)
    ]
    return next((fake for fake in fits if fake.requires_grad), fits[0] if fits else None)


def _is_whole(fake: FakeTensor, storage: FakeStorage) -> bool:
    """Whether a view, perhaps, of a storage shows it as it is laid out."""
    mine, whole = fake.meta, storage.meta
    if mine.dtype != whole.dtype or fake.is_conj() or fake.is_neg() or not equal_sizes(mine.shape, whole.shape):
        return False
    return equal_sizes(mine.stride, whole.stride) and equal_sizes((mine.offset,), (whole.offset,))


# The number of view steps that the search for a base follows.
_DEEPEST_VIEW = 100


def _is_view_of(base: FakeTensor, view: FakeTensor) -> bool:
    """Whether a tensor that shares memory with its base is its view for autograd, too: as a rebuilt view its gradients
    would differ otherwise. Tensors behind a custom function or a hook are none."""
    step, depth = view.grad_fn, 0
    while step is not None and depth < _DEEPEST_VIEW and not view._backward_hooks:
        if step is base.grad_fn or getattr(step, "variable", None) is base:
            return True
        if isinstance(step, torch.autograd.function.BackwardCFunction):
            break
        inputs = [source for source, _ in step.next_functions if source is not None]
        step, depth = inputs[0] if len(inputs) == 1 else None, depth + 1
    return False


def geometry(base: TensorMeta, view: FakeTensor, done: tuple[ViewStep, ...] = ()) -> Geometry:
    """Describe `view` relative to a tensor laid out as `base`, whose storage it shares. `done`: the steps from the
    storage to that tensor."""
    meta = view.meta
    # The gradients of the view operators are cheaper than that of as_strided.
    behind = len(view.steps) >= len(done) and all(map(operator.is_, view.steps, done))
    steps = view.steps[len(done) :] if behind else view.steps
    exact = view.requires_grad or any(step.func in REINTERPRETING for step in steps)
    steps = steps if exact else ()
    return Geometry(meta.shape, meta.stride, meta.offset - base.offset if not steps else 0, steps)


def _mutated_inputs(tracer: FunctionalTracer, collected: _Outputs) -> list[tuple[int, int]]:
    changed = {
        index: tracer.storage_value(tracer.inputs[index].fake_storage)
        for index in tracer.input_storages.values()
        if tracer.inputs[index].fake_storage.node is not tracer.input_nodes[index]
    }
    written = {tracer.input_nodes[index] for index in changed}
    mutated = []
    for index, value in changed.items():
        if any(
            surely(stride == 0) and size > 1 for size, stride in zip(value.meta.shape, value.meta.stride, strict=True)
        ):
            raise Unsupported("overlapping-input", "the traced code writes to an input that is expanded")
        if memory_root(value.node) in written:
            # The new contents are copied into the inputs in turn: none may be read from memory that is overwritten
            # earlier.
            value = tracer.apply(aten.clone.default, value)
        mutated.append((index, len(collected.values)))
        collected.values.append(value)
        collected.handles.append(tracer.inputs[index])
    return mutated
