"""Operators whose result's size depends on data, in traced graphs: nodes whose results bind new symbols
(`node.meta["binds"]`), and nodes that check what the trace relied on about these symbols.

graph/fake/unknown_sizes.py has the layouts of the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeMode, FakeTensor
from stator.graph.fake.unknown_sizes import UnknownSizes, masks_expanded, nested_lists
from stator.graph.ir.schema import op_info
from stator.graph.ir.size_bindings import new_symbols, unknown_symbols
from stator.prims.layout import broadcast_shapes
from stator.prims.operators.checks import require_sizes, tolist
from stator.prims.record import TensorMeta
from stator.shapes.expr import Symbol
from stator.shapes.sym_node import to_sym_bool

aten = torch.ops.aten
_COMPARED_DEPTH = 8  # of operators, by which two computations are compared
_COMPARED = frozenset((fx.Node, int, float, bool, str, type(None), torch.dtype, torch.device))  # arguments of these


class UnknownSizeRecorder:
    """Records into the graph of a tracer. unknown: the sizes of the traced program, which traces it perhaps again."""

    def __init__(self, tracer: Any, unknown: UnknownSizes) -> None:
        self.tracer, self.unknown = tracer, unknown
        self.environment = unknown.environment
        unknown.begin_anew()
        self._checked = len(self.environment.facts)
        self._binders: dict[Symbol, fx.Node] = {}
        self._behind: dict[fx.Node, fx.Node] = {}  # the last check behind a node that binds symbols
        self._listed: dict[fx.Node, list[Any]] = {}  # the numbers in the results of nodes
        self._first: dict[Any, fx.Node] = {}  # by computation the first node of it

    def results(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[FakeTensor]
    ) -> Any:
        """The results of an operator whose result's size depends on data; NotImplemented if there is no rule."""
        tracer: FakeMode = self.tracer
        if func is aten.index.Tensor:
            return tracer.dispatch(func, (args[0], masks_expanded(args[0], args[1], self._columns)), {})
        if func is aten.masked_select.default:
            return self._selected(*args)
        metas = self.unknown.results(func, args, kwargs)
        if metas is NotImplemented:
            return NotImplemented
        return self.tracer._record(op_info(func), metas, args, kwargs, tensors)

    def listed(self, fake: FakeTensor) -> Any:
        """The numbers in a tensor as nested lists; NotImplemented if they are no symbols. Lists of a tensor that is
        computed again, in a backward for instance, hold the numbers of the first list."""
        node = self._first_like(self.tracer.current(fake))
        numbers = self._listed.get(node)
        if numbers is None:
            numbers = self.unknown.whole_numbers(fake)
            if numbers is None:
                return NotImplemented
            self._listed[node] = numbers
            self.tracer._record(op_info(tolist), numbers, (fake,), {}, [fake])
            self._move_to_forward(next(iter(reversed(self.tracer.graph.nodes))))
        return nested_lists(iter(numbers), tuple(fake.shape))

    def _move_to_forward(self, node: fx.Node) -> None:
        """Let the forward compute a value that the backward computes of the forward's inputs alone. So the forward
        checks what the backward relies on."""
        found: dict[fx.Node, None] = {}
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one.meta.get("backward") and one not in found:
                found[one] = None
                waiting += one.all_input_nodes
            if (
                one.op == "placeholder"
                and one not in self.tracer.input_nodes
                and isinstance(one.meta["val"], TensorMeta)
            ):
                return  # a tangent
            if isinstance(one.target, OpOverload) and op_info(one.target).random:
                return
        for one in found:
            del one.meta["backward"]

    def _first_like(self, node: fx.Node, depth: int = _COMPARED_DEPTH) -> fx.Node:
        """The first node of the computation of a node, as far as its last operators show."""
        if depth == 0 or node.op != "call_function":
            return node
        if isinstance(node.target, OpOverload) and (node.target.namespace != "aten" or op_info(node.target).random):
            return node  # another call may give other values
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        leaves = [self._first_like(leaf, depth - 1) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        if not all(type(leaf) in _COMPARED for leaf in leaves):
            return node
        return self._first.setdefault((node.target, spec, *[(type(leaf), leaf) for leaf in leaves]), node)

    def _columns(self, mask: FakeTensor) -> Sequence[Any]:
        places = self.tracer.dispatch(aten.nonzero.default, (mask,), {})
        return [self.tracer.dispatch(aten.select.int, (places, 1, dim), {}) for dim in range(mask.dim())]

    def _selected(self, tensor: FakeTensor, mask: FakeTensor) -> Any:
        if mask.dtype is not torch.bool:
            raise RuntimeError("masked_select: expected BoolTensor for mask")
        shape = list(broadcast_shapes(tuple(tensor.shape), tuple(mask.shape))) or [1]
        given = [self.tracer.dispatch(aten.expand.default, (one, shape), {}) for one in (tensor, mask)]
        return self.tracer.dispatch(aten.index.Tensor, (given[0], self._columns(given[1])), {})

    # -- symbols --------------------------------------------------------------------------------------------------

    def note(self, node: fx.Node) -> None:
        """Note the symbols that the result of a new node binds."""
        found = new_symbols(node)
        if found:
            node.meta["binds"] = found
            for symbol in found:
                self._binders.setdefault(symbol, node)

    def check_facts(self) -> None:
        """Add checks of facts about unknown sizes that the trace relied on since the last call. A check stands directly
        behind the nodes that bind its symbols, so that all that relies on it can come later."""
        facts = self.environment.facts
        while self._checked < len(facts):
            condition = facts[self._checked].condition
            unknown = unknown_symbols(condition.symbols, self.environment)
            if not unknown <= self._binders.keys():
                return
            self._checked += 1
            if unknown:
                self._check(condition, unknown)

    def _check(self, condition: Any, unknown: frozenset[Symbol]) -> None:
        binder = [node for symbol, node in self._binders.items() if symbol in unknown][-1]
        if binder.meta.get("backward"):
            raise Unsupported("data-dependent", f"a backward that relies on {condition}, which depends on data")
        graph = self.tracer.graph
        with graph.inserting_after(self._behind.get(binder, binder)):
            truth = to_sym_bool(self.environment, condition)
            node = graph.call_function(require_sizes, (truth, str(condition)))
        node.meta["val"] = None
        self._behind[binder] = node  # in order: a condition may make sense only where earlier ones hold
        if self.tracer.place is not None:
            node.meta["place"] = self.tracer.place

    def finish(self) -> None:
        """Check all facts. Raises Unsupported for facts about symbols that no node binds."""
        self.check_facts()
        if self._checked < len(self.environment.facts):
            condition = self.environment.facts[self._checked].condition
            raise Unsupported("data-dependent", f"the graph relies on {condition} and does not know these numbers")
