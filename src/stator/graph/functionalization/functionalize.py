"""The recording mode: operators on fake tensors become nodes of a functional graph. Aliasing and mutation are tracked
per storage. `mutation.py` holds operators with special mutations, `views.py` the inverses of views."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from stator.base.errors import Unsupported, UserPlace
from stator.base.registry import Registry
from stator.graph.fake.fake_mode import (
    KNOWN_VALUE_FACTORIES,
    NUMBERS,
    FakeMode,
    FakeStorage,
    FakeTensor,
    flat_tensors,
    meta_of_real,
    specials,
)
from stator.graph.fake.number_stand_ins import DataDependent, holds_numbers, in_tensors, rules, symbolic
from stator.graph.fake.refused_arguments import eager_error
from stator.graph.fake.writes import check_overlap, check_unwritten
from stator.graph.ir.aten_graph import AtenGraph
from stator.graph.ir.schema import SchemaFacts, argument, arguments_of_twin, functional_twin, op_info
from stator.graph.ir.size_bindings import environment_of
from stator.graph.ir.traced import Geometry, NewLayout, ViewStep
from stator.prims.layout import equal_sizes, is_dense, same_strides
from stator.prims.record import TensorMeta
from stator.prims.refusal import Refused
from stator.shapes.environment import assume_several
from stator.shapes.sym_node import to_expression

from .functional_variants import fresh_results, synthesized_twin
from .unknown_sizes import UnknownSizeRecorder
from .views import IDENTITIES, record_as_strided, replay, view_step, write_back

aten = torch.ops.aten
Keep = Callable[[OpOverload], bool]

# Makes a mutating operator functional: (tracer, info, args, kwargs) -> the operator's result, or NotImplemented. The
# handler calls `tracer.write` for each written tensor.
Mutation = Callable[["FunctionalTracer", SchemaFacts, tuple[Any, ...], dict[str, Any]], Any]
mutations: Registry[OpOverload, Mutation] = Registry("mutating operator")

# Composite operators that a backend may keep whole: pure, not random, never returning an alias of an input.
KEEPABLE = frozenset(
    (
        aten.linear.default,
        aten.matmul.default,
        aten.conv1d.default,
        aten.conv2d.default,
        aten.conv3d.default,
        aten.layer_norm.default,
        aten.group_norm.default,
        aten.rms_norm.default,
        aten.softmax.int,
        aten.log_softmax.int,
        aten.scaled_dot_product_attention.default,
        aten.cross_entropy_loss.default,
        aten.silu.default,
        aten.silu_backward.default,  # has its own kernels, and a composite fallback for other backends
        aten.mish_backward.default,
        aten.upsample_nearest2d.vec,
        aten.upsample_bilinear2d.vec,
        aten.max_pool2d.default,
        aten.adaptive_avg_pool2d.default,
        aten.adaptive_avg_pool3d.default,
        aten.cov.default,
        aten.quantile.default,
        aten.quantile.scalar,
        aten.nanquantile.default,
        aten.nanquantile.scalar,
    )
)

# Marks that recorded nodes inherit from the traced program's node: membership in a checkpointed region.
_INHERITED_MARKS = ("checkpoint",)

# Views whose arguments are the tensor and its new sizes.
VIEWS_BY_SIZE = frozenset((aten.view.default, aten._unsafe_view.default, aten.expand.default))

# Lazy views and their eager forms, each its own inverse. The fake carries the lazy bit, its node the resolved values.
EAGER_FORMS = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}


def _is_laid_out_as(meta: TensorMeta, given: TensorMeta) -> bool:
    return equal_sizes((*meta.shape, *meta.stride, meta.offset), (*given.shape, *given.stride, given.offset))


class FunctionalTracer(FakeMode):
    """Records operators that run inside `with tracer:` into `graph`. Its fakes carry `node`, the graph value of
    their contents as of storage version `seen`, and `steps`, the view operators from the owner of the storage to the
    tensor."""

    def __init__(self, keep: Keep) -> None:
        super().__init__()
        self.graph: fx.Graph = AtenGraph()
        self.keep = keep
        self.origin: fx.Node | None = None
        self.place: UserPlace | None = None
        self.inputs: list[FakeTensor] = []
        self.input_nodes: list[fx.Node] = []
        self.input_storages: dict[int, int] = {}  # id(storage) -> input index
        self.fixed_offsets: set[int] = set()  # inputs that must begin their storage in every call
        self.layout_changes: dict[int, list[Unsupported]] = {}  # in-place layout changes of inputs, by id(fake)
        self.constants: dict[str, torch.Tensor] = {}
        self.constant_storages: dict[int, torch.Tensor] = {}
        self._kept: dict[OpOverload, bool] = {}
        self.unknown: UnknownSizeRecorder | None = None  # else sizes that depend on data are refused

    def begin(self, node: fx.Node) -> None:
        """Note the node of the traced program whose operators are recorded from now on."""
        self.origin, self.place = node, node.meta.get("place")

    def place_at_hand(self) -> UserPlace | None:
        """The user's line whose operators are recorded now."""
        return self.place

    def facts_located(self) -> AbstractContextManager[None]:
        """Let facts about the symbols of the inputs name the user's line at hand."""
        environment = environment_of(self.graph)
        return nullcontext() if environment is None else environment.located(self.place_at_hand)

    # -- inputs and constants -------------------------------------------------------------------------------------

    def add_input(self, real: torch.Tensor, name: str, merge: bool = False) -> FakeTensor:
        """Add a placeholder. If `merge` is set and the tensor was passed before, the first placeholder stands for
        both."""
        meta = meta_of_real(real)
        node = self.graph.placeholder(name)
        known = self._fakes.get(id(real))
        node.meta["val"] = meta
        self.input_nodes.append(node)
        if merge and known is not None and known[0]() is real:
            self.inputs.append(known[1])
            return known[1]
        fake = self.bind(self.make(meta), node)
        fake.is_input = True
        if known is None or known[0]() is not real:
            self.remember(real, fake)
        self.input_storages[id(fake.fake_storage)] = len(self.inputs)
        self.inputs.append(fake)
        return fake

    def add_number(self, number: torch.SymInt, name: str) -> None:
        """Add a placeholder for a symbolic int. The program gets the number itself."""
        self.graph.placeholder(name).meta["val"] = number

    def bind(self, fake: FakeTensor, node: fx.Node, steps: tuple[ViewStep, ...] = ()) -> FakeTensor:
        """Make `node` the value of a fake tensor. A tensor that is no view owns its storage."""
        storage = fake.fake_storage
        fake.node, fake.steps, fake.seen = node, steps, storage.version
        if not steps and storage.node is None:
            storage.node = node
        return fake

    def constant(self, tensor: torch.Tensor) -> FakeTensor:
        entry = self._constants.get(id(tensor))
        if entry is not None:
            return entry[1]
        fake = super().constant(tensor)
        if fake.node is None:
            self._bind_constant(tensor, fake).node.meta["foreign"] = True  # the program may hold and change it
            self.constant_storages[id(fake.fake_storage)] = tensor
        return fake

    def value(self, tensor: torch.Tensor) -> FakeTensor:
        """Make a fresh tensor of known value. The graph reads a constant that no other code can write to."""
        fake = super().value(tensor)
        if tensor.dim() == 0 and not tensor.dtype.is_complex:
            number = self._node(
                op_info(aten.full.default), ([], tensor.item()), {"dtype": tensor.dtype, "device": tensor.device}
            )
            number.meta["val"] = fake.meta
            return self.bind(fake, number)
        return self._bind_constant(tensor, fake)

    def _bind_constant(self, tensor: torch.Tensor, fake: FakeTensor) -> FakeTensor:
        """Make an attribute of the graph that holds the tensor the value of its fake."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = tensor
        node = self.graph.get_attr(name)
        node.meta["val"] = fake.meta
        return self.bind(fake, node)

    # -- values ---------------------------------------------------------------------------------------------------

    def current(self, fake: FakeTensor) -> fx.Node:
        """Return the graph value of a tensor now. It is recomputed from the storage's value after a write to the
        storage."""
        storage = fake.fake_storage
        if fake.seen != storage.version:
            value = replay(self.apply, self.storage_value(storage), fake.steps)[-1]
            fake.node, fake.seen = value.node, storage.version
        return fake.node

    def storage_value(self, storage: FakeStorage) -> FakeTensor:
        """Make an immutable tensor with a storage's current contents, laid out as the owner of the storage."""
        return self.bind(self.make(storage.meta), storage.node)

    def apply(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        return self.dispatch(func, args, kwargs)

    def write(self, target: FakeTensor, value: FakeTensor) -> None:
        """Record that `target`, and every tensor that shares its storage, now holds `value` (equal in shape and
        dtype)."""
        storage = target.fake_storage
        if value.is_conj() or value.is_neg():
            value = self.snapshot(value)
        if id(storage) in self.constant_storages:
            raise Unsupported(
                "captured-tensor-mutation",
                "the traced code writes to a tensor that is not among its inputs",
                hint="pass the tensor as an argument, or make it a buffer of the module",
            )
        if target.steps:
            new = write_back(self.apply, self.storage_value(storage), storage.meta, target.steps, value)
            if new is None:
                raise Unsupported("view-mutation", f"writing through {target.steps[-1].func} cannot be traced")
        else:
            new = value
        storage.node = self.laid_out(new, storage.meta).node
        known = value.known_value()
        storage.version += 1
        storage.unannounced += target.is_data
        target.hold(known)
        if not target.steps:
            target.node, target.seen = storage.node, storage.version
        elif self._lies_as(value, target.meta):
            target.node, target.seen = value.node, storage.version

    def store(self, target: FakeTensor, value: FakeTensor) -> None:
        """Like `write`, but convert the dtype as eager does. Raises RuntimeError where eager refuses."""
        if value.meta.shape != target.meta.shape:
            raise RuntimeError(
                f"output with shape {list(target.meta.shape)} doesn't match "
                f"the broadcast shape {list(value.meta.shape)}"
            )
        if value.meta.dtype is not target.meta.dtype:
            if not torch.can_cast(value.meta.dtype, target.meta.dtype):
                raise RuntimeError(
                    f"result type {value.meta.dtype} can't be cast to the desired output type {target.meta.dtype}"
                )
            value = self.apply(aten._to_copy.default, value, dtype=target.meta.dtype)
        self.write(target, value)

    def _lies_as(self, value: FakeTensor, meta: TensorMeta) -> bool:
        with assume_several(list(map(to_expression, meta.shape))):
            return same_strides(meta.shape, value.meta.stride, meta.stride)

    def laid_out(self, value: FakeTensor, meta: TensorMeta) -> FakeTensor:
        """Give `value` the strides of `meta`: later views depend on them. A size that is 1 in the example counts as
        one of several: a copy too many is right for all sizes."""
        if self._lies_as(value, meta):
            return value
        if not is_dense(meta.shape, meta.stride):
            empty = self.apply(
                aten.empty_strided.default, meta.shape, meta.stride, dtype=meta.dtype, device=meta.device
            )
            return self.apply(aten.copy.default, empty, value)
        order = sorted(range(len(meta.shape)), key=lambda dim: (-meta.stride[dim], -meta.shape[dim]))
        if order == list(range(len(order))):
            return self.apply(aten.clone.default, value, memory_format=torch.contiguous_format)
        dense = self.apply(aten.permute.default, value, order)
        if not dense.is_contiguous():
            dense = self.apply(aten.clone.default, dense, memory_format=torch.contiguous_format)
        return self.apply(aten.permute.default, dense, [order.index(dim) for dim in range(len(order))])

    # -- running operators ----------------------------------------------------------------------------------------

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors: list[FakeTensor] = []
        args = tuple([self._fake_argument(value, tensors) for value in args])
        if kwargs:
            kwargs = {name: self._fake_argument(value, tensors) for name, value in kwargs.items()}
        if not tensors and args and type(args[0]) in NUMBERS:
            args = self._with_tensor(func, args, tensors)
        special = specials.get(func)
        if special is not None:
            result = special(self, args, kwargs)
            if result is not NotImplemented:
                return result
        info = op_info(func)
        if (info.dynamic_shape or info.data_dependent) and kwargs.get("output_size") is None:
            return self._data_dependent(func, args, kwargs, tensors)
        mutation = mutations.get(func)
        if mutation is not None:
            result = mutation(self, info, args, kwargs)
            if result is not NotImplemented:
                return result
        if info.mutates and not info.composite:
            return self._mutate(info, args, kwargs, tensors)
        if holds_numbers(args) or (kwargs and holds_numbers(tuple(kwargs.values()))):
            return self._with_numbers(func, args, kwargs)
        result = self._decompose(info, args, kwargs)
        if result is not NotImplemented:
            return result
        metas = self.infer(info, args, kwargs, tensors)
        return self._record(info, metas, args, kwargs, tensors)

    def kept(self, info: SchemaFacts) -> bool:
        """Whether the backend takes this operator whole."""
        found = self._kept.get(info.target)
        if found is None:
            possible = not info.composite or (info.target in KEEPABLE and info.record.shape is not None)
            found = self._kept[info.target] = possible and bool(self.keep(info.target))
        return found

    def _decompose(self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the decomposition of an operator under this mode; NotImplemented if the operator is to be recorded."""
        if self.kept(info):
            return NotImplemented
        rule = info.record.decompose
        if rule is not None:
            given = () if info.mutates else flat_tensors((args, tuple(kwargs.values())))
            versions = [fake.fake_storage.version for fake in given]
            try:
                with self:
                    result = rule(*args, **kwargs)
            except Refused:
                raise eager_error(info.target, args, kwargs) from None
            check_unwritten(info, rule, given, versions)
            if result is not NotImplemented:
                return self._detached(result, info, args, kwargs)
        if info.composite is None:
            return NotImplemented
        with self:
            return info.target._op_dk(info.composite, *args, **kwargs)

    def _with_numbers(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that has numbers held by tensors among its arguments."""
        info = op_info(func)
        made = in_tensors(func, args, kwargs)
        if made is not None:
            known, (args, kwargs) = made
            tensors = flat_tensors((args, tuple(kwargs.values())))
            return self._record(info, self.infer(info, known[0], known[1], tensors), args, kwargs, tensors)
        rule = rules.get(func) or info.record.decompose
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return self._detached(result, info, args, kwargs)
        if info.composite is None:
            raise DataDependent("data-dependent", f"{func} needs the value of a number that depends on data")
        with self:
            return func._op_dk(info.composite, *args, **kwargs)

    def of_unknown_size(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        return NotImplemented if self.unknown is None else self.unknown.results(func, args, kwargs, tensors)

    def unknown_size(self) -> Any:
        return super().unknown_size() if self.unknown is None else self.unknown.unknown.size(None)

    def counted(self, mask: FakeTensor) -> Any:
        return None if self.unknown is None else self.unknown.unknown.counted(mask)

    def listed(self, fake: FakeTensor) -> Any:
        found = NotImplemented if self.unknown is None else self.unknown.listed(fake)
        return super().listed(fake) if found is NotImplemented else found

    def number_held_by(self, fake: FakeTensor) -> Any:
        """Return the number that a tensor of one element holds."""
        with self:
            held = self.snapshot(fake)
            return symbolic(aten.view.default(held, []) if held.dim() else held)

    def _detached(self, result: Any, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give the results of a decomposition their own storages where the operator itself returns no alias."""
        if info.is_view:
            return result
        storages = {id(tensor.fake_storage) for tensor in flat_tensors((args, tuple(kwargs.values())))}
        return pytree.tree_map_only(
            FakeTensor,
            lambda fake: self.snapshot(fake) if id(fake.fake_storage) in storages else fake,
            result,
        )

    def snapshot(self, fake: FakeTensor) -> FakeTensor:
        """Make a tensor with the current contents and its own storage, without recording an operator."""
        meta = fake.meta
        return self.bind(self.make(TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device)), self.current(fake))

    # -- recording ------------------------------------------------------------------------------------------------

    def _record(
        self, info: SchemaFacts, metas: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        func = info.target
        if func in IDENTITIES:
            base = tensors[0]
            fake = self.make(base.meta, base.fake_storage).with_lazy_bits_of(base)
            fake.constant = base.constant
            if base.constant is not None:
                fake.constant_version = base.constant_version
            fake.detached = base.detached or func is aten.detach.default
            fake.is_data = base.is_data
            node = self.current(base)
            return self.bind(fake, node, base.steps)
        if func is aten.as_strided.default:
            return record_as_strided(self, metas, args, kwargs)
        if func in VIEWS_BY_SIZE:  # resolves -1 once, here
            args = (args[0], list(metas.shape))
        resolved = EAGER_FORMS.get(func)
        result: Any
        if resolved is not None:
            result = self._wrapped(info, metas, self._resolved(op_info(resolved), tensors[0]), args, kwargs, tensors, 0)
            self._follow_constants(func, args, kwargs, tensors, result)
            return result
        node = self._node(info, args, kwargs)
        if type(metas) is TensorMeta:
            node.meta["val"] = metas
            result = self._wrapped(info, metas, node, args, kwargs, tensors, 0)
        elif isinstance(metas, (tuple, list)):
            node.meta["val"] = type(metas)(metas)
            result = type(metas)(
                [self._part(info, one, node, args, kwargs, tensors, at) for at, one in enumerate(metas)]
            )
        else:
            node.meta["val"] = result = metas
        if self.unknown is not None:
            self.unknown.note(node)
        if not (info.random or info.communicates) and (tensors or func in KNOWN_VALUE_FACTORIES):
            self._follow_constants(func, args, kwargs, tensors, result)
        return result

    def _resolved(self, info: SchemaFacts, fake: FakeTensor) -> fx.Node:
        """Return the resolved values of a lazy view; resolving twice returns the original. The lazy view may have gaps
        between its elements, the resolved tensor has none."""
        seen = self.current(fake)
        if seen.target is info.target:
            return seen.args[0]  # type: ignore[return-value]
        node = self._node(info, (fake,), {})
        node.meta["val"] = self.infer(info, (fake,), {}, [fake])
        return node

    def _node(self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        if self.unknown is not None:
            self.unknown.check_facts()
        node = self.graph.create_node(
            "call_function",
            info.target,
            tuple([self._node_argument(value) for value in args]),
            {name: self._node_argument(value) for name, value in kwargs.items()} if kwargs else {},
            info.name,
        )
        place = self.place_at_hand()
        if place is not None:
            node.meta["place"] = place
        if self.origin is not None:
            node.meta["origin"] = self.origin
            for kind in _INHERITED_MARKS:
                if kind in self.origin.meta:
                    node.meta[kind] = self.origin.meta[kind]
        return node

    def _node_argument(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            return value.node if value.seen == value.fake_storage.version else self.current(value)
        if kind is list or kind is tuple:
            return kind([self._node_argument(item) for item in value])
        if kind is torch.Generator:
            raise Unsupported("random-generator", "an explicit torch.Generator cannot be traced")
        return value

    def _part(
        self,
        info: SchemaFacts,
        meta: Any,
        node: fx.Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[FakeTensor],
        index: int,
    ) -> Any:
        if not isinstance(meta, (TensorMeta, tuple, list)):
            return meta
        part = self.graph.create_node("call_function", operator.getitem, (node, index), {})
        part.meta.update(node.meta)
        part.meta["val"] = meta
        if isinstance(meta, (tuple, list)):  # a list of tensors beside other results
            return type(meta)([self._part(info, one, part, args, kwargs, tensors, at) for at, one in enumerate(meta)])
        return self._wrapped(info, meta, part, args, kwargs, tensors, index)

    def _wrapped(
        self,
        info: SchemaFacts,
        meta: TensorMeta,
        node: fx.Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[FakeTensor],
        index: int,
    ) -> FakeTensor:
        if not info.is_view:
            return self.bind(FakeTensor(self, meta), node)
        base = tensors[meta.view_of or 0]
        step = view_step(info.target, args, kwargs, base.meta, meta, index)
        fake = FakeTensor(self, meta, base.fake_storage).with_lazy_bits_of(base, info.target)
        fake.detached, fake.is_data = base.detached, base.is_data
        return self.bind(fake, node, (*base.steps, step))

    # -- mutation -------------------------------------------------------------------------------------------------

    def _change_layout(self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        fake = args[0]
        twin = functional_twin(info.target)
        if twin is None or id(fake.fake_storage) in self.constant_storages:
            raise Unsupported("layout-mutation", f"{info.target} changes the layout of a tensor in place")
        view = self.dispatch(twin, args, kwargs)
        super()._change_layout(info, args, kwargs)
        self.bind(fake, view.node, view.steps)
        if fake.is_input:
            self.layout_changes.setdefault(id(fake), []).append(
                Unsupported(
                    "input-layout-mutation", f"{info.target} changes the layout of an input in place", place=self.place
                )
            )
        return fake

    def check_layouts(self) -> None:
        """Refuse a program that leaves an input with other shapes or strides than at its start."""
        for fake, node in zip(self.inputs, self.input_nodes, strict=True):
            if id(fake) in self.layout_changes and not _is_laid_out_as(fake.meta, node.meta["val"]):
                raise self.layout_changes[id(fake)][-1]

    def layouts_left(self) -> tuple[NewLayout, ...]:
        """Return the changed layouts of inputs. Raises Unsupported where autograd would have to follow such a
        change."""
        found: dict[int, NewLayout] = {}
        for index, (fake, node) in enumerate(zip(self.inputs, self.input_nodes, strict=True)):
            refused = self.layout_changes.get(id(fake))
            if refused is None or id(fake) in found:
                continue
            meta, given = fake.meta, node.meta["val"]
            if _is_laid_out_as(meta, given):
                found[id(fake)] = NewLayout(index, len(refused))
            elif fake.requires_grad:
                raise refused[-1]
            else:
                moved = meta.offset - given.offset
                found[id(fake)] = NewLayout(index, len(refused), Geometry(meta.shape, meta.stride, moved))
        return tuple(found.values())

    def set_data(self, fake: FakeTensor, new: torch.Tensor) -> None:
        if fake.is_input or id(fake.fake_storage) in self.constant_storages:
            raise Unsupported("input-data-assignment", "assigning to .data of an input cannot be traced")
        super().set_data(fake, new)
        source: Any = new if isinstance(new, FakeTensor) else self.constant(new)
        self.bind(fake, self.current(source), source.steps)

    def _mutate(
        self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        """Compute the written values by the functional twin, then store them."""
        if info.inplace_view:
            return self._change_layout(info, args, kwargs)
        check_overlap(info, args, kwargs)
        twin = functional_twin(info.target)
        if twin is None:
            return self._mutate_copies(info, args, kwargs)
        inputs = {name: value for name, value in kwargs.items() if name not in info.mutates}
        positional = arguments_of_twin(info.target, twin, args, inputs)
        values = flat_tensors(self.dispatch(twin, positional, inputs))
        targets = self.written(info, args, kwargs)
        if len(values) != len(targets):
            raise Unsupported("mutating-operator", f"{info.target} returns more than what it writes")
        for target, value in zip(targets, values, strict=True):
            self.store(target, value)
        returned = [argument(info, args, kwargs, source) for source in info.returns if source is not None]
        return returned[0] if len(returned) == 1 else tuple(returned) or None

    def _mutate_copies(self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Like `_mutate`, with a synthesized twin."""
        twin = synthesized_twin(info.target)
        if twin is None:
            raise Unsupported("mutating-operator", f"{info.target} writes to its arguments and has no functional form")
        written = self.written(info, args, kwargs)
        results = self.dispatch(twin, args, kwargs)
        fresh = iter(results[: fresh_results(info.target)])
        values = results[fresh_results(info.target) :]
        for target, value in zip(written, values, strict=True):
            self.store(target, value)
        returned = [argument(info, args, kwargs, at) if at is not None else next(fresh) for at in info.returns]
        return returned[0] if len(returned) == 1 else tuple(returned) or None

    def written(self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[FakeTensor]:
        """Return the tensors that an operator writes to, in the order of its schema."""
        return flat_tensors([argument(info, args, kwargs, where) for where in info.mutates])
