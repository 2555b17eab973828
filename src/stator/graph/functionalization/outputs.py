"""From the fake tensors that the traced code returns, to graph outputs and a description of how to make the user's.

Decides by storages (who shares memory with whom), never by graph values.
"""

from __future__ import annotations

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
from stator.graph.ir.traced import (
    Fresh,
    Geometry,
    History,
    InputItself,
    Output,
    OutputValue,
    SameAs,
    Traced,
    ViewOfConstant,
    ViewOfInput,
    ViewOfOutput,
    ViewOfResult,
)
from stator.prims.record import TensorMeta

from .functionalize import FunctionalTracer, same_strides
from .views import REINTERPRETING

aten = torch.ops.aten


@dataclass(slots=True)
class DescribedOutputs:
    """What a traced program returns and writes, in terms of the values its graph must return.

    handles: for each value the tensor through which autograd knows it, or None (contents nobody returned by itself).
    mutated: (input index, position of its new contents among the values). outputs: one per leaf of the result.
    histories: one per leaf. announced: how many writes autograd is told of, by the index of the input.
    """

    values: list[FakeTensor]
    handles: list[FakeTensor | None]
    mutated: list[tuple[int, int]]
    outputs: list[Output]
    histories: tuple[History, ...]
    announced: dict[int, int]

    def traced(
        self, tracer: FunctionalTracer, graph: fx.GraphModule, constants: dict[str, torch.Tensor], spec: pytree.TreeSpec
    ) -> Traced:
        """With the graph that returns the values, and the spec of the program's result."""
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
    """The values the graph returns, while they are being collected."""

    def __init__(self, tracer: FunctionalTracer, differentiable: bool) -> None:
        self.tracer = tracer
        self.differentiable = differentiable
        self.values: list[FakeTensor] = []
        self.handles: list[FakeTensor | None] = []
        self.positions: dict[int, int] = {}  # id(fake) -> position in values
        self.owners: dict[fx.Node, int] = {}  # memory of the graph -> id of the storage that may be returned in it

    def position(self, fake: FakeTensor, handle: FakeTensor | None) -> int:
        """Where the graph returns this tensor, appended when it does not yet."""
        found = self.positions.get(id(fake))
        if found is None:
            found = self.positions[id(fake)] = len(self.values)
            self._own_memory(fake)
            self.tracer.current(fake)
            self.values.append(fake)
            self.handles.append(handle)
        return found

    def _own_memory(self, fake: FakeTensor) -> None:
        """Make sure that the graph does not return an input's, a constant's or another output's memory for it."""
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

    differentiable: leaves may require grad; those made outside of the graph must then follow from their base for
    autograd too. Raises Unsupported where they do not, and for every leaf that requires grad otherwise.
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
    """A leaf that is a view, for autograd too, of another one which was detached. first: places of leaves, by id."""
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
    """Distinct output tensors by the id of their storage, for storages that are neither inputs nor constants."""
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
        if leaf.grad_fn is not None and not itself:
            _check_view_of(tracer.constant(constant), leaf)
        return ViewOfConstant(constant, None if itself else geometry(storage.meta, leaf))
    index = tracer.input_storages.get(id(storage))
    if index is not None:
        if tracer.inputs[index] is leaf:
            return InputItself(index)
        if leaf.grad_fn is not None:
            _check_view_of(tracer.inputs[index], leaf)
        return ViewOfInput(index, geometry(storage.meta, leaf))
    group = sharing[id(storage)]
    if len(group) == 1 and not (leaf.is_conj() or leaf.is_neg()):
        if leaf.requires_grad and leaf.is_leaf:
            raise Unsupported("requires-grad-output", "the traced code makes a leaf that requires grad")
        position = collected.position(leaf, leaf)
        stored = leaf.node.meta["val"]
        if stored.stride == leaf.meta.stride or not same_strides(stored, leaf.meta):
            return Fresh(position)  # elements that overlap in eager's result have places of their own here
        # strides of dimensions of size one: they hold no meaning, but eager shows them
        return ViewOfOutput(position, Geometry(leaf.meta.shape, leaf.meta.stride, 0))
    base = _base_of(tracer, group, storage)
    position = collected.position(base, base)
    if not same_strides(base.node.meta["val"], base.meta):
        raise Unsupported("overlapping-output", "outputs share memory whose elements overlap each other")
    if leaf is base:
        return Fresh(position)
    if leaf.grad_fn is not None:
        _check_view_of(base, leaf)
    return ViewOfOutput(position, geometry(storage.meta, leaf))


def _base_of(tracer: FunctionalTracer, group: list[FakeTensor], storage: FakeStorage) -> FakeTensor:
    """The tensor that the outputs in `group`, which share a storage, are views of: one of them if possible."""
    found = _spanning(group, storage)
    if found is None:
        bases = [fake._base for fake in group if fake.requires_grad and fake._is_view()]
        found = _spanning([base for base in bases if isinstance(base, FakeTensor)], storage)
    if found is None:
        found = tracer.storage_value(storage)
        found.fake_storage, found.seen = storage, storage.version
    if not any(found is fake for fake in group):
        group.append(found)
    return found


def _spanning(candidates: Sequence[FakeTensor], storage: FakeStorage) -> FakeTensor | None:
    """Of the tensors that are laid out as the whole storage one that requires grad, else any."""
    fits = [
        fake
        for fake in candidates
        if fake.fake_storage is storage and not fake.steps and fake.meta.stride == storage.meta.stride
    ]
    return next((fake for fake in fits if fake.requires_grad), fits[0] if fits else None)


# views of views of views ...: how far back a base is looked for
_DEEPEST_VIEW = 100


def _check_view_of(base: FakeTensor, view: FakeTensor) -> None:
    """Refuse what only shares memory with its base: made anew as a view of it, its gradients would be other ones.

    So does what a custom function, or a hook, stands behind.
    """
    step, depth = view.grad_fn, 0
    while step is not None and depth < _DEEPEST_VIEW and not view._backward_hooks:
        if step is base.grad_fn or getattr(step, "variable", None) is base:
            return
        if isinstance(step, torch.autograd.function.BackwardCFunction):
            break
        inputs = [source for source, _ in step.next_functions if source is not None]
        step, depth = inputs[0] if len(inputs) == 1 else None, depth + 1
    raise Unsupported(
        "aliased-gradient", "an output shares memory with another tensor without being its view for autograd"
    )


def geometry(base: TensorMeta, view: FakeTensor) -> Geometry:
    """How to see a tensor laid out as `base` as `view`, which shares its storage."""
    meta = view.meta
    # the gradient of the view operators themselves is cheaper than that of as_strided
    exact = view.requires_grad or any(step.func in REINTERPRETING for step in view.steps)
    steps = view.steps if exact else ()
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
        if any(stride == 0 and size > 1 for size, stride in zip(value.meta.shape, value.meta.stride, strict=True)):
            raise Unsupported("overlapping-input", "the traced code writes to an input that is expanded")
        if memory_root(value.node) in written:
            # the new contents are copied in one after the other: none may be read from memory that is overwritten
            value = tracer.apply(aten.clone.default, value)
        mutated.append((index, len(collected.values)))
        collected.values.append(value)
        collected.handles.append(tracer.inputs[index])
    return mutated
