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
from stator.graph.ir.size_bindings import input_bindings, new_symbols, unknown_symbols
from stator.prims.layout import always_equal, broadcast_shapes, contiguous_strides, has_zero, numel, same_sizes
from stator.prims.operators.checks import require_sizes, tolist
from stator.prims.operators.mask_indices import true_indices
from stator.prims.record import TensorMeta
from stator.prims.shape_rules.indexing import MASKS
from stator.shapes.expr import Symbol
from stator.shapes.sym_node import to_sym_bool

aten = torch.ops.aten
_COMPARED_DEPTH = 8  # of operators, by which two computations are compared
_COMPACTED = frozenset(  # dtypes that loops compare with zero
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
)
_COMPARED = frozenset((fx.Node, int, float, bool, str, type(None), torch.dtype, torch.device))  # arguments of these


def _is_compacted(tensor: FakeTensor) -> bool:
    """Whether a kernel finds the indices of the nonzero elements: on CPUs. GPUs need a scan of the whole device."""
    return (
        tensor.device.type == "cpu" and tensor.dtype in _COMPACTED and tensor.dim() > 0 and not has_zero(tensor.shape)
    )


def _lie_together(tensor: FakeTensor, mask: FakeTensor, at: int) -> bool:
    """Whether the dimensions from `at` are the mask's, and rows of one block of memory."""
    shape, stride = tensor.meta.shape[at : at + mask.dim()], tensor.meta.stride[at : at + mask.dim()]
    if not same_sizes(shape, tuple(mask.shape)):
        return False
    return all(always_equal(stride[dim], stride[dim + 1] * shape[dim + 1]) for dim in range(len(shape) - 1))


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
            tensor, indices = self._over_blocks(*args)
            return tracer.dispatch(func, (tensor, masks_expanded(tensor, indices, self._columns)), {})
        if func is aten.nonzero.default and _is_compacted(args[0]):
            return tracer.dispatch(aten.t.default, (self._indices(args[0]),), {})
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

    # -- indices of a mask's elements -----------------------------------------------------------------------------

    def _columns(self, mask: FakeTensor) -> Sequence[Any]:
        """The indices of the nonzero elements, for each dimension."""
        with self.tracer:
            if _is_compacted(mask):
                return aten.unbind.int(self._indices(mask))  # type: ignore[no-any-return]
            return aten.unbind.int(aten.nonzero.default(mask), 1)  # type: ignore[no-any-return]

    def _indices(self, tensor: FakeTensor, shape: Sequence[Any] | None = None) -> FakeTensor:
        """Rows of indices of the nonzero elements of a tensor, seen in another shape."""
        with self.tracer:
            mask = tensor if tensor.dtype is torch.bool else aten.ne.Scalar(tensor, 0)
            mask = mask if shape is None else aten.reshape.default(mask, shape)
        rows = (mask.dim(), self.unknown.count(tensor))
        meta = TensorMeta(rows, contiguous_strides(rows), torch.int64, tensor.device)
        self.unknown.answered += 1
        return self.tracer._record(op_info(true_indices), meta, (mask,), {}, [mask])  # type: ignore[no-any-return]

    def _over_blocks(self, tensor: FakeTensor, indices: Sequence[Any]) -> tuple[FakeTensor, list[Any]]:
        """Where a mask covers dimensions that lie together in memory, one dimension in their place, and positions of
        the mask's elements as its index."""
        found: list[Any] = []
        for given in indices:
            at = sum(1 if one is None or one.dtype not in MASKS else one.dim() for one in found)
            rank = 0 if given is None or given.dtype not in MASKS else given.dim()
            if rank > 1 and _is_compacted(given) and _lie_together(tensor, given, at):
                sizes, inside = list(tensor.shape), numel(tuple(given.shape))
                with self.tracer:
                    tensor = aten.view.default(tensor, [*sizes[:at], inside, *sizes[at + rank :]])
                    given = aten.select.int(self._indices(given, [-1]), 0, 0)
            found.append(given)
        return tensor, found

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
        behind the nodes that bind its symbols, so that all that relies on it can come later. Guards check facts about
        sizes of inputs."""
        facts = self.environment.facts
        while self._checked < len(facts):
            condition = facts[self._checked].condition
            unknown = unknown_symbols(condition.symbols, self.environment)
            bound = unknown & self._binders.keys()
            if bound != unknown and not unknown - bound <= input_bindings(self.tracer.graph).keys():
                return
            self._checked += 1
            if bound:
                self._check(condition, bound)

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
