"""The buffers and nodes of a graph under construction: realises tensors, emits loops and library calls.

The interface of lowerings. Knows no operator; thresholds are in heuristics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.base.errors import CompileError
from stator.graph.ir.size_bindings import ResultPlace
from stator.inductor.buffers import Buffer, Extern, Layout, Loops, View
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.loops.body import LoopBody, Ref
from stator.inductor.loops.collapse import collapse
from stator.inductor.loops.handler import freeze
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge, Sizes, product
from stator.prims.layout import broadcast_shapes, contiguous_strides, may_overlap, same_strides
from stator.prims.record import TensorMeta
from stator.shapes.expr import ExprLike, Symbol
from stator.shapes.floats import FloatExpr

from .split_reductions import split_reduction
from .tensor import Computed, Index, Stored, Strides, Tensor, Viewed

aten = torch.ops.aten

CompiledConvolutions = Callable[[Sequence[DirectConvolution]], list[Callable[..., None]]]

_LOOP_SYMBOLS = tuple(Symbol(f"i{at}") for at in range(16))
_REDUCTION_SYMBOLS = tuple(Symbol(f"r{at}") for at in range(16))


class LoweringBuilder:
    """Collects buffers and nodes. `node`, `origin` (its name), `target` and `meta` are the FX node being lowered;
    `sizes` knows about symbolic sizes; `compiled_convolutions` makes kernels of ours for timing them beside libraries,
    which `tunes` does now, for the sizes of the graph."""

    def __init__(
        self,
        sizes: SizeKnowledge = NUMBERS_ONLY,
        compiled_convolutions: CompiledConvolutions | None = None,
        trains: bool = False,
        tunes: bool = False,
    ) -> None:
        self.sizes = sizes
        self.trains = trains  # the graph is the forward or the backward of a training step
        self.compiled_convolutions, self.tunes = compiled_convolutions, tunes
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Loops | Extern] = []
        self.inputs: list[str] = []
        self.origin = ""
        self.target = ""
        self.node: Any = None
        # facts about the whole graph, but for the first two by FX node, which lowerings find on demand
        self.repays_product_kernels: bool | None = None
        self.saves_channels_last: bool | None = None
        self.wants_channels_last: dict[Any, bool] | None = None
        self.growing_cats: dict[Any, Any] | None = None
        self.shared_results: dict[Any, Any] = {}
        self.with_previous: dict[Any, Tensor] = {}  # values of nodes that the call for the node before them computes
        # nodes whose values have rows at aligned addresses (aligned_rows.py), and copies of matrices with such rows
        self.padded: Collection[Any] = ()
        self.aligned_copies: dict[Any, Tensor] = {}
        self.stored_floats: dict[tuple[FloatExpr, torch.device], Tensor] = {}
        self.meta: Any = None
        self._count = 0

    # ---- memory

    # Names must differ from every string argument of operators ("none", "mean"): library calls name buffers by strings.

    def add_input(self, name: str, meta: TensorMeta) -> Tensor:
        self.inputs.append(name)
        return self._add(name, meta.shape, meta.stride, meta.dtype, meta.device, "input", offset=meta.offset)

    def add_constant(self, value: torch.Tensor, name: str) -> Tensor:
        return self._add(
            name, tuple(value.shape), tuple(value.stride()), value.dtype, value.device, "constant", value=value
        )

    def add_opaque(self, value: torch.Tensor, name: str, shape: Sizes) -> str:
        """A constant in a layout of a library's own, for that library alone: the name of its buffer."""
        strides = contiguous_strides(shape)
        self._add(name, shape, strides, value.dtype, value.device, "constant", value=value)
        return name

    def stored_int64(self, value: int, name: str, device: torch.device) -> Tensor:
        """An int64 in memory, so that kernels that differ only in this number are one. Equal names mean equal
        numbers."""
        if name in self.buffers:
            return Tensor((), torch.int64, device, Stored(name, ()), sizes=self.sizes)
        return self._add(name, (), (), torch.int64, device, "constant", value=value)

    def stored_float(self, value: FloatExpr, device: torch.device) -> Tensor:
        """A float that depends on sizes, in memory: the host computes it, as a float64; once for each combination of
        sizes of inputs."""
        found = self.stored_floats.get((value, device))
        if found is None and not self.sizes.is_unknown(value):
            name = f"float_{len(self.stored_floats)}"
            found = self._add(name, (), (), torch.float64, device, "constant", value=value)
        elif found is None:
            named = {"dtype": torch.float64, "device": device}
            meta = TensorMeta((), (), torch.float64, device)
            (found,) = self.extern(aten.scalar_tensor.default, [value], named, [meta])
        assert found is not None
        self.stored_floats[value, device] = found
        return found

    def new_buffer(
        self, shape: Sequence[ExprLike], strides: Strides, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Uninitialised memory. The caller must emit a node that fills it."""
        name = f"buf{self._count}"
        self._count += 1
        return self._add(name, tuple(shape), strides, dtype, device, "computed")

    def _add(
        self,
        name: str,
        shape: Sizes,
        strides: Strides,
        dtype: torch.dtype,
        device: torch.device,
        kind: str,
        value: Any = None,
        offset: ExprLike = 0,
    ) -> Tensor:
        self.buffers[name] = Buffer(name, Layout(shape, strides, dtype, device, offset), kind, value)
        return Tensor(shape, dtype, device, Stored(name, strides), sizes=self.sizes)

    def dtype_of(self, buffer: str) -> torch.dtype:
        return self.buffers[buffer].layout.dtype

    # ---- closures

    def computed(
        self,
        inner: Callable[[Any, Index], Ref],
        operands: Sequence[Tensor],
        shape: Sequence[ExprLike],
        dtype: torch.dtype,
        device: torch.device,
        *,
        heavy: bool = False,
    ) -> Tensor:
        """An unevaluated tensor that reads `operands`. Its layout follows their layouts."""
        shape = tuple(shape)
        work = frozenset((self.origin,)).union(*[operand.work for operand in operands])
        reads = frozenset[str]().union(*[operand.reads for operand in operands])
        heavy = heavy or any(operand.heavy for operand in operands)
        strides, deviates = follow_layout(shape, operands, self.sizes)
        return Tensor(shape, dtype, device, Computed(inner, work, reads, heavy), strides, deviates, sizes=self.sizes)

    def pointwise(
        self,
        function: Callable[..., Ref],
        operands: Sequence[Tensor],
        dtype: torch.dtype,
        *,
        heavy: bool = False,
    ) -> Tensor:
        """`function(ops, *values)` for operands broadcast against each other. The function returns a value of
        `dtype`."""
        shape = self.broadcast(operand.shape for operand in operands)
        plans = [_broadcast_plan(operand.shape, shape) for operand in operands]
        for operand, plan in zip(operands, plans, strict=True):
            unevaluated = operand.heavy and operand.reads and operand.resolved() is None
            if (
                plan is not None
                and unevaluated
                and 1 < self.sizes.hint(operand.numel) < self.sizes.hint(product(shape))
            ):
                self.realize(operand)  # else every element along the broadcast dimensions would compute it again
        pairs = list(zip(operands, plans, strict=True))

        def inner(ops: Any, index: Index) -> Ref:
            return function(ops, *[t.load(ops, index if plan is None else _planned(index, plan)) for t, plan in pairs])

        return self.computed(inner, operands, shape, dtype, operands[0].device, heavy=heavy)

    def broadcast(self, shapes: Iterable[Sizes]) -> Sizes:
        """The common shape of operands. Sizes that differ as expressions are equal by the rules of broadcasting."""
        common: Sizes = ()
        for shape in shapes:
            if self.sizes.environment is None:
                common = broadcast_shapes(common, shape)
            elif shape != common:
                missing = len(common) - len(shape)
                pairs = zip((1,) * -missing + common, (1,) * missing + shape, strict=True)
                common = tuple([b if a == 1 or (b != 1 and isinstance(b, int)) else a for a, b in pairs])
        return common

    # ---- realising

    def realize(self, tensor: Tensor) -> Stored | None:
        """Store the elements unless they are in memory. None: loads go through an index map over memory."""
        stored = tensor.resolved()
        if stored is not None:
            return stored
        source = tensor.source
        if isinstance(source, Viewed):
            if self.sizes.hint(source.base.numel) <= self.sizes.hint(tensor.numel):
                self.realize(source.base)
                return tensor.resolved()
            return self.materialize(tensor)
        return self.materialize(tensor)

    def materialize(self, tensor: Tensor, strides: Strides | None = None) -> Stored:
        """Store the tensor in a buffer of its own with these strides (its own layout by default)."""
        if strides is None:
            strides = tensor.own_strides
        target = self.new_buffer(tensor.shape, strides, tensor.dtype, tensor.device)
        self.store(target, tensor)
        tensor.source, tensor.strides = target.source, strides
        return target.source  # type: ignore[return-value]

    def copy(self, tensor: Tensor, strides: Strides) -> Tensor:
        """Copy the tensor's elements into a new buffer with these strides."""
        target = self.new_buffer(tensor.shape, strides, tensor.dtype, tensor.device)
        self.store(target, tensor)
        return target

    def store(self, target: Tensor, value: Tensor) -> None:
        """Emit loops that write `value` into `target`: a buffer or a part of one, of equal shape."""
        self.store_parts([(target, value)])

    def store_parts(self, parts: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Emit loops that write values into targets, all of equal shape: parts of one buffer that do not overlap."""
        first = parts[0][0]
        memory: Stored = first.source  # type: ignore[assignment]
        order = self.loop_order(first.shape, memory.strides)
        variables, index = loop_variables(order, first.shape)

        def body(ops: Any) -> None:
            for target, value in parts:
                place: Stored = target.source  # type: ignore[assignment]
                ops.store(place.buffer, linear(place, index), value.load(ops, index))

        frozen = self.freeze(body, variables, tuple(first.shape[dim] for dim in order))
        self.emit((memory.buffer,), frozen, frozenset[str]().union(*[value.work for _, value in parts]))

    def freeze(
        self,
        body: Callable[[Any], None],
        variables: tuple[Symbol, ...],
        ranges: Sizes,
        reduced: tuple[Symbol, ...] = (),
        reduced_ranges: Sizes = (),
    ) -> LoopBody:
        return collapse(freeze(body, variables, ranges, reduced, reduced_ranges, self.dtype_of, self.sizes), self.sizes)

    def loop_order(self, shape: Sizes, strides: Strides) -> list[int]:
        """Dimensions of more than one element, the largest stride (the outermost loop) first."""
        return loop_order(shape, self.sizes.hints(strides))

    def emit(self, outputs: tuple[str, ...], body: LoopBody, work: frozenset[str]) -> None:
        self.nodes.append(Loops(outputs, body, tuple(sorted(work | {self.origin}))))

    def store_together(self, values: Sequence[Tensor]) -> None:
        """Materialise several tensors of equal shape and layout in a single pass."""
        targets = [self.new_buffer(value.shape, value.strides, value.dtype, value.device) for value in values]
        shape, strides = values[0].shape, values[0].strides
        order = self.loop_order(shape, strides)
        variables, index = loop_variables(order, shape)
        names = [target.source.buffer for target in targets]  # type: ignore[union-attr]

        def body(ops: Any) -> None:
            for target, value in zip(targets, values, strict=True):
                memory: Stored = target.source  # type: ignore[assignment]
                ops.store(memory.buffer, linear(memory, index), value.load(ops, index))

        frozen = self.freeze(body, variables, tuple(shape[dim] for dim in order))
        work = frozenset[str]().union(*[value.work for value in values])
        self.emit(tuple(names), frozen, work)
        for target, value in zip(targets, values, strict=True):
            value.source = target.source

    # ---- reductions

    def reduction(
        self,
        compute: Callable[[Any, Index], Sequence[Ref]],
        operands: Sequence[Tensor],
        shape: Sequence[ExprLike],
        dims: Sequence[int],
        dtypes: Sequence[torch.dtype],
    ) -> list[Tensor]:
        """Emit one reduction over `dims` of an index space of `shape`.

        `compute(ops, index)` loads, reduces and returns one value per dtype. Results keep the reduced dims as size 1.
        """
        shape, reduced = tuple(shape), set(dims)
        kept_shape = tuple(1 if dim in reduced else size for dim, size in enumerate(shape))
        hint = self.sizes.hints(follow_layout(shape, operands, self.sizes)[0])
        order = sorted(
            (dim for dim, size in enumerate(shape) if size != 1 or dim in reduced), key=lambda dim: -hint[dim]
        )
        outer = [dim for dim in order if dim not in reduced]
        inner = [dim for dim in order if dim in reduced]
        inner_sizes = tuple(shape[dim] for dim in inner) or (1,)  # one element if there is nothing to reduce over
        strides = _dense_in_order(kept_shape, outer)
        device = operands[0].device
        targets = [self.new_buffer(kept_shape, strides, dtype, device) for dtype in dtypes]
        index: list[ExprLike] = [0] * len(shape)
        for at, dim in enumerate(outer):
            index[dim] = _LOOP_SYMBOLS[at]
        for at, dim in enumerate(inner):
            index[dim] = _REDUCTION_SYMBOLS[at]
        where = tuple(index)
        stored_at = tuple(0 if dim in reduced else index[dim] for dim in range(len(shape)))

        def body(ops: Any) -> None:
            for target, value in zip(targets, compute(ops, where), strict=True):
                memory: Stored = target.source  # type: ignore[assignment]
                ops.store(memory.buffer, linear(memory, stored_at), value)

        frozen = self.freeze(
            body,
            _LOOP_SYMBOLS[: len(outer)],
            tuple(shape[dim] for dim in outer),
            _REDUCTION_SYMBOLS[: len(inner_sizes)],
            inner_sizes,
        )
        names = tuple(target.source.buffer for target in targets)  # type: ignore[union-attr]
        work = frozenset[str]().union(*[operand.work for operand in operands])
        for outputs, part in split_reduction(self, frozen, names, device):
            self.emit(outputs, part, work)
        return targets

    def scan(
        self, compute: Callable[[Any, Ref, ExprLike], list[Ref]], tensor: Tensor, dim: int, targets: list[Tensor]
    ) -> None:
        """Emit loops along `dim` that write into `targets`, buffers of equal shape, what `compute(ops, element, its
        place along dim)` gives for each element."""
        shape = tensor.shape
        memories: list[Stored] = [target.source for target in targets]  # type: ignore[misc]
        outer = [at for at in self.loop_order(shape, memories[0].strides) if at != dim]
        variables, index = loop_variables(outer, shape)
        where = (*index[:dim], _REDUCTION_SYMBOLS[0], *index[dim + 1 :])

        def body(ops: Any) -> None:
            values = compute(ops, tensor.load(ops, where), _REDUCTION_SYMBOLS[0])
            for memory, target, value in zip(memories, targets, values, strict=True):
                ops.store(memory.buffer, linear(memory, where), ops.to_dtype(value, target.dtype))

        ranges = tuple([shape[at] for at in outer])
        frozen = self.freeze(body, variables, ranges, _REDUCTION_SYMBOLS[:1], (shape[dim],))
        self.emit(tuple([memory.buffer for memory in memories]), frozen, tensor.work)

    # ---- library calls

    def argument(self, tensor: Tensor, strides: Strides | None = None) -> str | View:
        """A tensor as an argument of a library call: a buffer's name or a View, with exactly `strides` if given."""
        planned = tensor.planned()
        if planned is not None and (strides is None or same_strides(tensor.shape, planned[0], strides)):
            self.realize(tensor.root)
            stored = tensor.resolved()
            if stored is not None:
                # the library derives a memory format also from strides of dimensions of size one
                return self.reference(tensor, stored if strides is None else replace(stored, strides=strides))
        if strides is None:
            strides = contiguous_strides(tensor.shape)
        elif not self.sizes.is_dense(tensor.shape, strides):
            strides = self.sizes.preserved_strides(tensor.shape, strides)
        if isinstance(tensor.source, Computed):
            tensor.deviates = tensor.deviates or not same_strides(tensor.shape, tensor.strides, strides)
            return self.reference(tensor, self.materialize(tensor, strides))
        clone = tensor.clone_with(strides)
        if clone is not None:  # its later users read the copy, too
            self.materialize(clone, clone.strides)
            return self.reference(tensor, tensor.resolved())  # type: ignore[arg-type]
        return self.reference(tensor, self.copy(tensor, strides).source)  # type: ignore[arg-type]

    def reference(self, tensor: Tensor, stored: Stored) -> str | View:
        layout = self.buffers[stored.buffer].layout
        if layout.size == tensor.shape and layout.stride == stored.strides and stored.offset == 0:
            return stored.buffer
        return View(stored.buffer, Layout(tensor.shape, stored.strides, tensor.dtype, tensor.device, stored.offset))

    def as_view(self, argument: str | View) -> View:
        """An argument of a library call as a view. A view of a whole input begins at the input's own start."""
        if isinstance(argument, View):
            return argument
        return View(argument, replace(self.buffers[argument].layout, offset=0))

    def strides_of(self, argument: str | View) -> Strides:
        """The strides of an argument of a library call."""
        layout = self.buffers[argument].layout if isinstance(argument, str) else argument.layout
        return layout.stride

    def extern(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        metas: Sequence[TensorMeta | None],
        style: str = "returns",
    ) -> list[Tensor | None]:
        """Emit a library call whose outputs have the given layouts. Arguments are buffers, Views or plain values.

        Raises CompileError for a layout that no operator can give; the operator's shape rule is then wrong.
        """
        for meta in metas:
            if meta is not None and may_overlap(self.sizes.hints(meta.shape), self.sizes.hints(meta.stride)):
                raise CompileError(
                    "inductor",
                    f"the shape rule of {target} gives {list(meta.shape)} "
                    f"with strides {list(meta.stride)}, which overlap",
                )
        outputs = [
            None if meta is None else self.new_buffer(meta.shape, meta.stride, meta.dtype, meta.device)
            for meta in metas
        ]
        names = tuple(None if output is None else output.source.buffer for output in outputs)  # type: ignore[union-attr]
        binds = self.bound_by(target)
        promised = tuple(self.node.meta["promised"]) if binds else ()
        self.nodes.append(Extern(names, target, tuple(args), kwargs, style, (), (self.origin,), binds, promised))
        return outputs

    def bound_by(self, target: Any) -> tuple[tuple[Symbol, ResultPlace], ...]:
        """The symbols that results of the current node bind, if this is a call of its target."""
        if self.node is None or target is not self.node.target:
            return ()
        return tuple(self.node.meta.get("binds", {}).items())

    def add_to(self, total: Tensor, target: Any, args: Sequence[Any]) -> Tensor:
        """Emit a library call with the matrix `total` as its first argument, which writes its result into `total`."""
        assert isinstance(total.source, Stored)
        name = total.source.buffer
        self.nodes.append(Extern((name,), target, (name, *args), {}, "out", (), (self.origin,)))
        return total

    def product_into(self, target: Any, args: Sequence[Any], place: Tensor) -> None:
        """Emit a library call that writes into a part of a buffer, which other nodes fill too."""
        assert isinstance(place.source, Stored)
        out = {"out": self.reference(place, place.source)}
        self.nodes.append(Extern((), target, tuple(args), out, "mutates", (place.source.buffer,), (self.origin,)))

    def effect(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Emit a library call without a result, such as a check that raises."""
        self.nodes.append(Extern((), target, tuple(args), kwargs, "mutates", (), (self.origin,)))


def follow_layout(shape: Sizes, operands: Sequence[Tensor], sizes: SizeKnowledge) -> tuple[Strides, bool]:
    """Strides of a result, and whether they deviate from eager's: the layout of an operand of full shape that lowering
    has chosen, else eager's."""
    for operand in operands:
        if operand.deviates and operand.shape == shape:
            return sizes.preserved_strides(shape, operand.strides), True
    fitting = [(operand.shape, operand.strides) for operand in operands if len(operand.shape) <= len(shape)]
    return sizes.elementwise_strides(shape, fitting), False


def loop_variables(order: Sequence[int], shape: Sequence[ExprLike]) -> tuple[tuple[Symbol, ...], Index]:
    """Loop symbols, outermost first, for dimensions in the given `order`, and the index tuple of these symbols."""
    index: list[ExprLike] = [0] * len(shape)
    for at, dim in enumerate(order):
        index[dim] = _LOOP_SYMBOLS[at]
    return _LOOP_SYMBOLS[: len(order)], tuple(index)


def loop_order(shape: Sequence[ExprLike], strides: Sequence[int]) -> list[int]:
    """Dimensions of more than one element, the largest stride (the outermost loop) first."""
    return sorted((dim for dim, size in enumerate(shape) if size != 1), key=lambda dim: -strides[dim])


def linear(memory: Stored, index: Index) -> ExprLike:
    position: Any = memory.offset
    for at, stride in zip(index, memory.strides, strict=True):
        position = at * stride + position
    return position


def dense_like(shape: Sequence[ExprLike], strides: Sequence[int]) -> Strides:
    """Dense strides of `shape`, with dimensions in the order of the given strides."""
    return _dense_in_order(tuple(shape), sorted(range(len(shape)), key=lambda dim: -strides[dim]))


def _dense_in_order(shape: Sizes, order: Sequence[int]) -> Strides:
    strides: list[ExprLike] = [1] * len(shape)
    running: ExprLike = 1
    for dim in reversed(order):
        strides[dim] = running
        if shape[dim] != 0:
            running = running * shape[dim]
    return tuple(strides)


def _broadcast_plan(own: Sizes, shape: Sizes) -> tuple[int, ...] | None:
    """For each own dimension the position of the full index to take (-1: zero); None when nothing changes."""
    if own == shape:
        return None
    missing = len(shape) - len(own)
    return tuple(-1 if size == 1 and shape[missing + at] != 1 else missing + at for at, size in enumerate(own))


def _planned(index: Index, plan: tuple[int, ...]) -> Index:
    return tuple([0 if at < 0 else index[at] for at in plan])
