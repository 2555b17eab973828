"""Lowers an ATen FX graph to buffers and nodes, in one walk over its nodes. Knows no particular operator."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from stator.base.errors import CompileError, StatorError, Unsupported, UserPlace
from stator.base.signals import raised_by_signal_handler
from stator.graph.ir.cleanup import remove_dead
from stator.graph.tracing.functional import trace_operator
from stator.inductor.buffers import Lowered, View
from stator.inductor.devices import traits_of
from stator.inductor.loops.float8 import BYTES
from stator.inductor.passes.symbolic_sizes import described_graph
from stator.inductor.sizes import NUMBERS_ONLY, UNKNOWN, SizeKnowledge, product
from stator.prims.layout import same_strides
from stator.prims.record import TensorMeta, record
from stator.prims.rule_checks import place_of, raised_at
from stator.shapes.expr import Expr
from stator.shapes.floats import FloatExpr

from .aligned_rows import padded_strides, values_to_pad
from .builder import CompiledConvolutions, LoweringBuilder
from .exact import exact_lowering
from .fallback import call_library, gives_view, is_read
from .heuristics import store_before_reuse, too_large_to_inline
from .registry import can_lower, lowerings, view_targets
from .tensor import Computed, Strides, Tensor, Viewed

aten = torch.ops.aten

# Operators that are elementwise in their first two operands, which may be numbers
FLOAT_OPERANDS = frozenset(
    getattr(getattr(aten, name), kind)
    for name in ("add", "sub", "rsub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("Tensor", "Scalar")
)
_PLAIN_DTYPES = frozenset(
    (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
)
# 8-bit floats are stored and converted; torch has no arithmetic with them
_STORED_DTYPES = _PLAIN_DTYPES.union(BYTES)
_CONVERSIONS = frozenset(
    (
        *(aten._to_copy.default, aten.clone.default, aten.contiguous.default, aten.copy.default, aten.cat.default),
        torch.ops.prims.convert_element_type.default,
    )
)


def lower(
    gm: fx.GraphModule,
    exact: bool = False,
    sizes: SizeKnowledge = NUMBERS_ONLY,
    *,
    compiled_convolutions: CompiledConvolutions | None = None,
    tunes: bool = False,
) -> Lowered:
    """Lower a functional ATen graph with `meta["val"]` on its nodes. Raises CompileError naming the node,
    and Unsupported for lowerings that do not serve symbolic sizes.

    sizes: what is known about the expressions in place of sizes; without it, all sizes are numbers.
    exact: only operators with bits that IEEE 754 fixes become loops; ATen is called for all others.
    compiled_convolutions: makes kernels of ours for timing them beside libraries.
    tunes: choose by timing the sizes of this graph.

    Optional entries of `gm.meta`: "mutated" has (input index, output position) for each output that is an input's new
    content; "free_layouts" has the positions of outputs that may have other strides than eager's; "given_strides" has
    the strides of the first inputs, where they may differ from those in their nodes' metas; "part" names the forward or
    backward of a training step.
    """
    return _GraphLowering(gm, exact, LoweringBuilder(sizes, compiled_convolutions, "part" in gm.meta, tunes)).run()


class _GraphLowering:
    def __init__(self, gm: fx.GraphModule, exact: bool, builder: LoweringBuilder) -> None:
        self.gm = gm
        self.exact = exact
        self.builder = builder
        self.values: dict[fx.Node, Any] = {}
        self.uses: dict[fx.Node, int] = {}
        self.outputs: list[Any] = []
        self.place: UserPlace | None = None  # the user's line of the node that is being lowered
        self.decomposing: set[Any] = set()  # operators with a decomposition that is being lowered

    def run(self) -> Lowered:
        environment = self.builder.sizes.environment
        with nullcontext() if environment is None else environment.located(lambda: self.place):
            return self.lower_all()

    def lower_all(self) -> Lowered:
        if not self.exact:
            free = self.gm.meta.get("free_layouts", ())
            self.builder.padded = values_to_pad(self.gm.graph, free)
        for node in self.gm.graph.nodes:
            self.place = node.meta.get("place")
            try:
                _HANDLERS[node.op](self, node)
            except CompileError as error:
                place = error.place or self.place
                raise CompileError(error.stage, error.reason, place=place, hint=error.hint) from error
            except StatorError:
                raise
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                text = f"lowering of {node.format_node()} failed: {type(error).__name__}: {error}"
                raised = raised_at(error)
                text = f"{text}\n  {raised}" if raised is not None else text
                if self.builder.sizes.environment is not None:
                    raise Unsupported("dynamic-shape", text, place=self.place) from error
                raise CompileError("inductor", text, place=self.place) from error
        builder = self.builder
        mutated = tuple([(builder.inputs[index], position) for index, position in self.gm.meta.get("mutated", ())])
        bindings = self.gm.meta.get("size_bindings", {})
        return Lowered(builder.buffers, builder.nodes, builder.inputs, self.outputs, mutated, builder.sizes, bindings)

    def placeholder(self, node: fx.Node) -> None:
        meta = node.meta["val"]
        if isinstance(meta, int | Expr) and self.builder.sizes.environment is not None:
            self.builder.inputs.append(f"in_{node.name}")
            self.values[node] = meta
            return
        if not isinstance(meta, TensorMeta):
            raise CompileError("inductor", f"the graph's input {node.name} is {meta!r}, not a tensor")
        given = self.gm.meta.get("given_strides", ())
        at = len(self.builder.inputs)
        stride = tuple(map(self.builder.sizes.expression, given[at])) if at < len(given) else meta.stride
        deviates = not same_strides(meta.shape, stride, meta.stride)
        if deviates:
            meta = replace(meta, stride=stride)
        self.values[node] = value = self.builder.add_input(f"in_{node.name}", meta)
        value.deviates = deviates

    def get_attr(self, node: fx.Node) -> None:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise CompileError("inductor", f"the attribute {node.target} is {type(value).__name__}, not a tensor")
        self.values[node] = self.builder.add_constant(value, f"const_{node.name}")

    def call_function(self, node: fx.Node) -> None:
        builder = self.builder
        if node.target is operator.getitem:
            self.values[node] = self.values[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if node in self.builder.with_previous:
            self.values[node] = self.builder.with_previous[node]
            return
        self.begin_node(node)
        args, kwargs = self.map_arguments(node.args), self.map_arguments(node.kwargs)
        lowering = exact_lowering(node.target) if self.exact else lowerings.get(node.target)  # type: ignore[arg-type]
        if (_has_no_data(builder.meta) and node.target not in view_targets) or "binds" in node.meta:
            lowering = None  # there is nothing to compute, and no memory with an address for a kernel; or a library
        if lowering is not None and not _takes_floats(node.target, args, kwargs):
            lowering = None
        result = NotImplemented
        try:
            if lowering is not None:
                result = self.lower_by(lowering, node, args, kwargs)
        except Unsupported as error:
            if error.kind != UNKNOWN:
                raise
            self.begin_node(node)
        if result is NotImplemented:
            if self.exact and gives_view(node.target):
                raise CompileError("inductor", f"{node.target} returns a view, and no lowering takes these arguments")
            result = call_library(builder, node, args, kwargs)
        _check_results(node, lowering, result)
        self.follow_eager(result, node.meta["val"])
        if node in builder.padded and isinstance(result, Tensor) and isinstance(result.source, Computed):
            result.lay_out(padded_strides(result.shape, result.dtype))
        self.values[node] = result
        self.store_if_worthwhile(node, result)

    def lower_by(self, lowering: Any, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The result of a lowering, or of the operator's decomposition; NotImplemented if neither takes the
        arguments."""
        converts = node.target in _CONVERSIONS or node.target in view_targets
        if _are_among(_STORED_DTYPES if converts else _PLAIN_DTYPES, args, self.builder.meta):
            result = lowering(self.builder, *args, **kwargs)
            return (
                self.lower_decomposition(node, args, kwargs) if result is NotImplemented and not self.exact else result
            )
        if node.target not in view_targets:
            return NotImplemented
        result = lowering(self.builder, *args, **kwargs)  # relabels memory with any content
        return result if _is_memory(result) else NotImplemented

    def begin_node(self, node: fx.Node) -> None:
        builder = self.builder
        builder.node, builder.origin, builder.target = node, node.name, str(node.target)
        builder.meta = node.meta["val"]

    def lower_decomposition(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Lower the decomposition of an operator that has no lowering for its arguments."""
        target: Any = node.target
        if target in self.decomposing or record(target).decompose is None:
            return NotImplemented
        self.decomposing.add(target)
        try:
            module = trace_operator(
                target,
                self.symbolic_arguments(node.args),
                self.symbolic_arguments(node.kwargs),
                keep=lambda part: part not in self.decomposing and can_lower(part),
            )
            if any(part.target is target for part in module.graph.nodes):
                return NotImplemented
            _drop_unread(node, module.graph)
            module = described_graph(module, self.builder.sizes)
            return self.lower_inline(
                node, module, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            )
        finally:
            self.decomposing.discard(target)
            self.begin_node(node)

    def symbolic_arguments(self, arguments: Any) -> Any:
        """Arguments for tracing: metas of tensors, with symbolic numbers."""
        sizes = self.builder.sizes
        metas = fx.map_arg(arguments, _meta)
        return metas if sizes.environment is None else tree_map(sizes.symbolic, metas)

    def lower_inline(self, node: fx.Node, module: fx.GraphModule, inputs: Sequence[Tensor]) -> Any:
        """Lower a graph in place of one node, and return the values of its output node."""
        remaining = iter(inputs)
        for part in module.graph.nodes:
            if part.op == "placeholder":
                self.values[part] = next(remaining)
            elif part.op == "get_attr":
                name = f"const_{node.name}_{part.name}"
                self.values[part] = self.builder.add_constant(getattr(module, str(part.target)), name)
            elif part.op == "call_function":
                if "place" in node.meta:
                    part.meta["place"] = node.meta["place"]
                self.call_function(part)
            else:
                return self.map_arguments(part.args[0])
        raise CompileError("inductor", f"the decomposition of {node.target} has no output")

    def output(self, node: fx.Node) -> None:
        flat = node.args[0]
        if not isinstance(flat, tuple | list):
            flat = (flat,)
        free = self.gm.meta.get("free_layouts", ())
        for position, value in enumerate(flat):
            self.outputs.append(self.result(value, position in free) if isinstance(value, fx.Node) else value)

    def result(self, node: fx.Node, free: bool) -> Any:
        """A graph output: memory with exactly eager's strides, or (free) with the strides that lowering chose."""
        value, meta = self.values[node], node.meta["val"]
        if not isinstance(value, Tensor):
            return value
        planned = value.planned() if free else None
        if planned is not None and self.may_keep(value, planned[0]):
            meta = replace(meta, stride=planned[0])
        self.builder.origin = node.name
        if value.copies:
            value = self.builder.copy(value, meta.stride)
        elif value.resolved() is None and value.root is value:
            self.builder.materialize(value, meta.stride)
        elif value.planned() is None and not self.builder.sizes.is_dense(meta.shape, meta.stride):
            self.store_base(value, meta.stride)
        return self.with_eager_strides(self.builder.argument(value, meta.stride), meta)

    def may_keep(self, value: Tensor, strides: Strides) -> bool:
        """True if an output that only compiled code reads may have these strides, which lowering chose."""
        if value.deviates:
            return self.builder.sizes.is_dense(value.shape, strides)
        known = value.rank > 1 and all(isinstance(size, int) for size in value.shape)
        return bool(self.builder.padded) and known and strides == padded_strides(value.shape, value.dtype)

    def store_base(self, value: Tensor, strides: Strides) -> None:
        """Store the tensor of which the value is a view with these strides: of `x.flip(1)[:, 1:]` the flipped one.
        Loops would otherwise read the value from a tensor further below, and its own memory would have no gaps."""
        views: list[Viewed] = []
        tensor = value
        while isinstance(tensor.source, Viewed):
            layout: tuple[Strides, Any] | None = tensor.own_strides, 0
            for view in reversed(views):
                layout = None if layout is None else view.relayout(*layout)
            if layout is not None and same_strides(value.shape, layout[0], strides):
                self.builder.materialize(tensor)
                return
            views.append(tensor.source)
            tensor = tensor.source.base

    def with_eager_strides(self, result: str | View, meta: TensorMeta) -> str | View:
        """The result with eager's strides also for dimensions of size one, where they do not matter."""
        layout = self.builder.buffers[result].layout if isinstance(result, str) else result.layout
        if layout.stride == meta.stride or not same_strides(meta.shape, layout.stride, meta.stride):
            return result
        view = self.builder.as_view(result)
        return replace(view, layout=replace(view.layout, stride=meta.stride))

    def map_arguments(self, arguments: Any) -> Any:
        if isinstance(arguments, fx.Node):
            return self.values[arguments]
        if isinstance(arguments, tuple | list):
            return [self.map_arguments(item) for item in arguments]
        if isinstance(arguments, dict):
            return {name: self.map_arguments(item) for name, item in arguments.items()}
        return arguments

    def follow_eager(self, result: Any, meta: Any) -> None:
        """Give unevaluated results eager's layout, unless lowering chose a layout upstream."""
        if isinstance(result, Tensor):
            if not result.deviates and (isinstance(result.source, Computed) or result.planned() is None):
                result.strides = meta.stride
        elif isinstance(result, list | tuple):
            for part, part_meta in zip(result, meta, strict=True):
                self.follow_eager(part, part_meta)

    def store_if_worthwhile(self, node: fx.Node, result: Any) -> None:
        for value in result if isinstance(result, list | tuple) else (result,):
            if not isinstance(value, Tensor):
                continue
            root = value.root
            if root.resolved() is not None:
                continue
            size = self._large_reads(root), len(root.work)
            if too_large_to_inline(*size) or (
                store_before_reuse(*size, root.heavy) and root.reads and self.count_uses(node) > 1
            ):
                if isinstance(value.source, Viewed) and value.source.reused:
                    self.builder.materialize(value)  # a clone, in its own layout
                else:
                    self.builder.realize(root)

    def _large_reads(self, root: Tensor) -> int:
        """The number of buffers that computing the value reads, where small ones stay near without those: values of
        rows or columns."""
        least = self.builder.sizes.hint(root.numel) * traits_of(root.device).small_read
        buffers = self.builder.buffers
        return sum(self.builder.sizes.hint(product(buffers[name].layout.size)) >= least for name in root.reads)

    def count_uses(self, node: fx.Node) -> int:
        """The number of nodes that compute with this value, counting through views."""
        found = self.uses.get(node)
        if found is None:
            found = 0
            for user in node.users:
                found += self.count_uses(user) if user.target is operator.getitem or user.target in view_targets else 1
            self.uses[node] = found
        return found


def _has_no_data(meta: Any) -> bool:
    """True if results are tensors of the meta device."""
    return any(isinstance(one, TensorMeta) and one.device.type == "meta" for one in tree_leaves(meta))


def _drop_unread(node: fx.Node, graph: fx.Graph) -> None:
    """Remove from a decomposition what computes results that nothing reads."""
    output = next(iter(reversed(graph.nodes)))
    results = output.args[0]
    if isinstance(results, list | tuple) and isinstance(node.meta["val"], list | tuple):
        output.args = (tuple([one if is_read(node, at) else None for at, one in enumerate(results)]),)
        remove_dead(graph)


def _meta(node: fx.Node) -> Any:
    return node.meta["val"]


def _check_results(node: fx.Node, lowering: Any, result: Any) -> None:
    """Raise CompileError if a lowering's return value does not match the operator's results. A result that nothing
    reads may be missing."""
    meta = node.meta["val"]
    pairs = [(result, meta)]
    if isinstance(meta, list | tuple) and _are_as_many(result, meta):
        pairs = [pair for at, pair in enumerate(zip(result, meta, strict=True)) if is_read(node, at)]
    elif isinstance(meta, list | tuple):
        pairs = [(result, meta[0])]
    for part, part_meta in pairs:
        if isinstance(part_meta, TensorMeta) and not isinstance(part, Tensor):
            raise CompileError(
                "inductor",
                f"the lowering of {node.target} returns {type(part).__name__} for a tensor\n  {place_of(lowering)}",
                hint="return one result of stator.inductor.lower's functions for each tensor, or NotImplemented",
            )


def _are_as_many(results: Any, metas: Any) -> bool:
    return isinstance(results, list | tuple) and len(results) == len(metas)


def _is_memory(result: Any) -> bool:
    """True if the elements of the result are at strides over buffers."""
    if isinstance(result, list | tuple):
        return all(_is_memory(part) for part in result)
    return isinstance(result, Tensor) and result.resolved() is not None


def _takes_floats(target: Any, args: Any, kwargs: Any) -> bool:
    """True unless a float that depends on sizes is an argument that loops cannot take. The library gets its value."""
    floats = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, FloatExpr)]
    return not floats or (
        target in FLOAT_OPERANDS and len(floats) == sum(isinstance(arg, FloatExpr) for arg in args[:2])
    )


def _are_among(dtypes: Collection[torch.dtype], args: Sequence[Any], meta: Any) -> bool:
    """Whether the tensors among the arguments, and the result, have these dtypes."""
    for item in args:
        if isinstance(item, Tensor):
            if item.dtype not in dtypes:
                return False
        elif isinstance(item, list) and not _are_among(dtypes, item, None):
            return False
    return not isinstance(meta, TensorMeta) or meta.dtype in dtypes


_HANDLERS = {
    "placeholder": _GraphLowering.placeholder,
    "get_attr": _GraphLowering.get_attr,
    "call_function": _GraphLowering.call_function,
    "output": _GraphLowering.output,
}
