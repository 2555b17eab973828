"""The invariants of a functional ATen graph, checked between stages."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.base.errors import StatorError, Unsupported, VerificationError
from stator.base.registry import Registry
from stator.prims.layout import equal_sizes, surely
from stator.prims.record import TensorMeta

from .fake.fake_mode import FakeMode, meta_of_real
from .ir.format import format_meta
from .ir.schema import op_info
from .ir.size_bindings import environment_of, is_symbolic, size_bindings, symbols_of, symbols_of_graph


def verify(gm: fx.GraphModule) -> None:
    """Check a functional ATen graph. Raises VerificationError with the first node that breaks an invariant.

    Placeholders come first and one output last. Call targets are getitem and OpOverloads with functional schemas, whose
    arguments fit the schema. Every value is defined before its use. Every node has `meta["val"]`, which agrees with the
    operator's shape rule, if there is one. Placeholders and earlier nodes bind all symbols.
    """
    state = _State(gm)
    environment = environment_of(gm.graph)
    with nullcontext() if environment is None else environment.without_assumptions():
        for node in gm.graph.nodes:
            state.step(node)
    if not state.finished:
        raise VerificationError("the graph has no output node")


class _State:
    """State of the check."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.mode = FakeMode()
        self.defined: set[fx.Node] = set()
        self.bound = set(size_bindings(gm.graph))
        self.symbolic = bool(symbols_of_graph(gm.graph))
        self.body_started = False
        self.finished = False

    def step(self, node: fx.Node) -> None:
        self.expect(not self.finished, node, "comes after the output")
        check = checks.get(node.op)
        if check is None:
            raise self.error(node, f"a node of kind {node.op!r} is not allowed in an ATen graph")
        for used in node.all_input_nodes:
            self.expect(used in self.defined, node, f"uses {used.name} before it is defined")
        try:
            check(self, node)
        except Unsupported as error:  # the trace has assumed more about sizes that depend on data
            if error.kind != "data-dependent":
                raise
        self.bound.update(node.meta.get("binds", ()))
        unbound = symbols_of((node.args, node.kwargs, node.meta.get("val"))) - self.bound if self.symbolic else ()
        self.expect(
            not unbound,
            node,
            f"needs {', '.join(map(str, unbound))}, which neither a placeholder nor an earlier node binds",
        )
        self.body_started = self.body_started or node.op == "call_function"
        self.defined.add(node)

    def expect(self, condition: bool, node: fx.Node, reason: str) -> None:
        if not condition:
            raise self.error(node, reason)

    def error(self, node: fx.Node, reason: str) -> VerificationError:
        place = node.meta.get("place")
        where = f"\n  {place}" if place else ""
        return VerificationError(f"node {node.name} {reason}\n  {node.format_node()}{where}")

    def meta(self, node: fx.Node) -> Any:
        self.expect("val" in node.meta, node, 'has no meta["val"]')
        return node.meta["val"]

    def tensor_meta(self, node: fx.Node) -> TensorMeta:
        meta = self.meta(node)
        self.expect(isinstance(meta, TensorMeta), node, f"should be a tensor, but its meta is {meta!r}")
        return meta

    def stand_in(self, value: Any) -> Any:
        """Replace nodes in an argument by fake tensors."""
        if isinstance(value, fx.Node):
            meta = self.meta(value)
            return self.mode.make(_as_fresh(meta)) if isinstance(meta, TensorMeta) else meta
        if isinstance(value, (list, tuple)):
            return [self.stand_in(item) for item in value]
        return value


checks: Registry[str, Callable[[_State, fx.Node], None]] = Registry("node kind")


@checks.register("placeholder")
def _placeholder(state: _State, node: fx.Node) -> None:
    state.expect(not state.body_started, node, "is a placeholder after the first operator")
    if type(state.meta(node)) is torch.SymInt:
        state.expect(is_symbolic(state.meta(node)), node, "is a number without symbols")
    else:
        state.tensor_meta(node)


@checks.register("get_attr")
def _get_attr(state: _State, node: fx.Node) -> None:
    owner, _, name = str(node.target).rpartition(".")
    value = getattr(state.gm.get_submodule(owner), name, None)
    if not isinstance(value, torch.Tensor):
        raise state.error(node, "reads an attribute that is not a tensor of the module")
    _compare(state, node, state.tensor_meta(node), meta_of_real(value))


@checks.register("output")
def _output(state: _State, node: fx.Node) -> None:
    state.finished = True
    values = node.args[0]
    if not isinstance(values, tuple):
        raise state.error(node, "does not return a flat tuple")
    for value in values:
        known = isinstance(value, fx.Node) or type(value) is torch.SymInt
        state.expect(known, node, f"returns {value!r}, which is not a node, nor a symbolic number")


@checks.register("call_function")
def _call_function(state: _State, node: fx.Node) -> None:
    if node.target is operator.getitem:
        _getitem(state, node)
    elif isinstance(node.target, OpOverload):
        _operator(state, node, node.target)
    else:
        raise state.error(node, f"calls {node.target!r}, which is neither an OpOverload nor getitem")


def _getitem(state: _State, node: fx.Node) -> None:
    source, index = node.args
    if not isinstance(source, fx.Node):
        raise state.error(node, "takes an item of something that is not a node")
    whole = state.meta(source)
    state.expect(isinstance(whole, (tuple, list)), node, f"takes an item of {source.name}, which is one value")
    if not (isinstance(index, int) and 0 <= index < len(whole)):
        raise state.error(node, f"takes item {index!r} of {source.name}, which has {len(whole)}")
    _compare(state, node, state.meta(node), whole[index])


def _operator(state: _State, node: fx.Node, target: OpOverload) -> None:
    info = op_info(target)
    state.expect(not info.mutates, node, f"calls {target}, which writes to its arguments")
    schema = target._schema
    state.expect(len(node.args) <= len(schema.arguments), node, f"has more arguments than {target} takes")
    names = {argument.name for argument in schema.arguments}
    for name in node.kwargs:
        state.expect(name in names, node, f"passes {name!r}, which {target} does not take")
    meta = state.meta(node)
    if info.record.shape is None:
        return
    args = tuple(state.stand_in(arg) for arg in node.args)
    kwargs = {name: state.stand_in(value) for name, value in node.kwargs.items()}
    try:
        expected = info.record.shape(*args, **kwargs)
    except StatorError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise state.error(node, f"does not fit the shape rule of {target}: {error}") from error
    if expected is not NotImplemented:
        _compare(state, node, meta, expected)


def _compare(state: _State, node: fx.Node, meta: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        state.expect(isinstance(meta, (tuple, list)) and len(meta) == len(expected), node, _mismatch(meta, expected))
        for own, other in zip(meta, expected, strict=True):
            _compare(state, node, own, other)
    elif isinstance(expected, TensorMeta):
        state.expect(isinstance(meta, TensorMeta) and agrees(meta, expected), node, _mismatch(meta, expected))


def _mismatch(meta: Any, expected: Any) -> str:
    return f"has meta {format_meta(meta)}, where {format_meta(expected)} follows from its arguments"


def agrees(first: TensorMeta, second: TensorMeta) -> bool:
    """Whether shape, dtype, device and significant strides are equal (strides of size-one dimensions and of empty
    tensors are not). Symbolic sizes are equal if they are known to be."""
    if first.dtype is not second.dtype or first.device != second.device:
        return False
    if not equal_sizes(tuple(first.shape), tuple(second.shape)):
        return False
    if any(surely(size == 0) for size in first.shape):
        return True
    sizes = zip(first.stride, second.stride, first.shape, strict=True)
    return all(surely(own == other) or surely(size == 1) for own, other, size in sizes)


def _as_fresh(meta: TensorMeta) -> TensorMeta:
    return TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device, meta.offset)
