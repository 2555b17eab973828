"""Tensors: a node of the graph and a fake tensor with the metadata."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import fx

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, Source
from stator.dynamo.host.naming import class_name
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, GetAttr, Load, Recipe
from stator.dynamo.values.base import CaptureContext, Reconstructor, Value, cannot_rebuild, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.iterators import RowsIterator
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.containers.slices import SliceValue
from stator.dynamo.values.objects import MISSING, is_data_descriptor, lookup_in_class, set_through
from stator.dynamo.values.symbolic_numbers import example_of_number, is_open, is_symbolic
from stator.graph.fake.wrapper_subclasses import is_wrapper
from stator.graph.operators.symbolic_gradients import history
from stator.runtime.autograd_state import view_creation_of, with_freed_history, with_view_creation

from .ragged_sizes import RaggedSize
from .tensor_methods import TENSOR_CLASSES, rely_on_method, replaced_method

# Attributes that the TENSOR guard holds, read from the fake tensor.
FACTS = frozenset(
    {
        "shape",
        "dtype",
        "device",
        "layout",
        "ndim",
        "requires_grad",
        "is_cuda",
        "is_cpu",
        "is_mps",
        "is_xpu",
        "is_meta",
        "is_sparse",
        "is_sparse_csr",
        "is_quantized",
        "is_mkldnn",
        "is_vulkan",
        "is_nested",
        "is_leaf",
        "itemsize",
        "nbytes",
    }
)
# finder(context, tensor, at_branch): the truth of a tensor, if a subgraph or guard decides it, or None
truths: list[Callable[[CaptureContext, TensorValue, bool], bool | None]] = []
# reader(context, tensor, key): `tensor[key]` under a mode that changes its meaning, or None
item_readers: list[Callable[[CaptureContext, TensorValue, Value], Value | None]] = []
_AUTOGRAD_FACTS = frozenset({"requires_grad", "is_leaf", "grad_fn", "grad"})
_TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
# Methods whose result needs the tensor's data, or whose effect leaves the graph.
REFUSED = frozenset(
    {
        "__format__",  # the text of a fake tensor
        "__repr__",
        "__str__",
        "tolist",
        "numpy",
        "item",
        "data_ptr",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "retain_grad",
        "storage",
        "untyped_storage",
        "share_memory_",
        "pin_memory",
        "set_",
        "resize_",
        "is_set_to",
        "is_inference",
        "_is_view",
        "is_shared",
        "is_pinned",
        "__array__",
        "__reduce_ex__",
        "__setstate__",
        "__dlpack__",
    }
)


class TensorValue(Value):
    """A tensor. The first use of a real tensor in the graph makes it a placeholder."""

    __slots__ = ("attributes", "cls", "fake", "is_static", "node", "node_before", "obj")

    def __init__(
        self,
        fake: torch.Tensor,
        node: fx.Node | None,
        source: Source | None = None,
        obj: torch.Tensor | None = None,
        cls: type = torch.Tensor,
        is_static: bool = False,
    ) -> None:
        self.source = source
        self.fake = fake
        self.node = node
        self.obj = obj
        self.cls = cls
        self.is_static = is_static
        self.attributes: dict[str, Value] | None = None
        self.node_before: fx.Node | None = None  # the node before captured code wrote `.data`

    @property
    def input(self) -> TensorValue | None:
        """The input of the frame whose memory this is by itself; None for tensors that captured code made."""
        return None if self.obj is None else self

    def key(self, context: CaptureContext) -> Any:
        if self.obj is None:
            return self
        context.guards.identity_once(self)
        return self.obj

    def real(self) -> Any:
        if self.obj is None:
            return super().real()
        return self.obj

    def describe(self, context: CaptureContext) -> str:
        return f"a tensor of shape {tuple(self.fake.shape)}" + (f" ({self.source})" if self.source else "")

    def is_number_of_the_run(self, context: CaptureContext) -> bool:
        """Whether this is a single number of the captured call that capture does not know."""
        one = context.in_the_call and self.fake.numel() == 1
        return one and context.recorder.known_number(self.fake) is None

    def truth(self, context: CaptureContext) -> bool:
        known = self.decided_truth(context, at_branch=True)
        if known is None:
            count = self.fake.numel()
            many = example_of_number(count) is not None and bool(count != 1)  # an error in eager
            raise unsupported(
                "torch-error" if many else "data-dependent-jump",
                f"a branch on the data of {self.describe(context)}",
                "use torch.where, or move the decision out of the compiled function",
            )
        return known

    def decided_truth(self, context: CaptureContext, *, at_branch: bool = False) -> bool | None:
        """The truth, if capture can decide it. `at_branch`: else the graph ends here."""
        rely_on_method(context, self.cls, "__bool__")
        if is_wrapper(self.fake) or not self.fake.known_from:  # type: ignore[attr-defined]
            known = context.recorder.known_number(self.fake)
            if known is not None:
                return bool(known)
        for find in truths:  # these rely on less than the whole contents
            if (found := find(context, self, at_branch)) is not None:
                return found
        known = context.recorder.known_number(self.fake)
        return None if known is None else bool(known)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if self.attributes is not None and name in self.attributes:
            found = self.attributes[name]
            return context.record_method("detach", [found], {}) if name == "data" else found
        replaced = replaced_method(context, self.cls, name)
        if replaced is not MISSING:
            return context.bind(self, self.cls, name, replaced)
        if is_wrapper(self.fake) and name in self.fake.__dict__ and not _is_data_descriptor(self.cls, name):
            return self._part(context, name)
        if name in _AUTOGRAD_FACTS and context.later is not None:
            raise unsupported("deferred-fact", f"`.{name}` of a tensor in {context.later.what}")
        if name in _AUTOGRAD_FACTS and context.recorder.transforms and self.fake.requires_grad:
            found = context.recorder.requires_grad(self)
            if found is None:
                raise unsupported("function-transform", f"`.{name}` of a tensor under a function transform")
            if name == "requires_grad":
                return ConstantValue(found)
            if (
                self.node is not None and self.node.graph is not context.recorder.root
            ):  # an argument of a transformed function
                return ConstantValue(True if name == "is_leaf" else None)
        if name == "is_leaf" and self.obj is not None and self.fake.requires_grad:
            context.guard(AttrSource(self.source, name), GuardKind.EQUALS, self.obj.is_leaf)  # type: ignore[arg-type]
            return ConstantValue(self.fake.is_leaf)  # an operator may have written to it
        if name == "shape" and self.fake.is_nested:
            return self._ragged_shape(context)
        if name in FACTS:
            return context.wrap_result(getattr(self.fake, name), f"tensor.{name}")
        if name in _TENSOR_ATTRIBUTES:
            return context.record_function(getattr, [self, ConstantValue(name)], {})
        if name == "__class__":
            return context.known(self.cls)
        if name == "grad":
            return self._grad(context)
        if name == "grad_fn" and context.truth(self.get_attr(context, "is_leaf")):
            return ConstantValue(None)
        if hasattr(torch.Tensor, name):
            return self._method(context, name)
        return self._extra(context, name)

    def _ragged_shape(self, context: CaptureContext) -> TupleValue:
        sizes = [
            context.wrap_result(size, "a size") if type(size) is int or is_symbolic(size) else RaggedSize(self, dim)
            for dim, size in enumerate(self.fake.shape)
        ]
        return TupleValue(sizes, cls=torch.Size)

    def _grad(self, context: CaptureContext) -> Value:
        if self.obj is None or self.source is None:
            if not self.fake.requires_grad:
                return ConstantValue(None)
            raise unsupported("attribute", "`.grad` of a tensor made inside the graph")
        return context.wrap(self.obj.grad, AttrSource(self.source, "grad"))

    def _method(self, context: CaptureContext, name: str) -> Value:
        in_class = lookup_in_class(self.cls, name)
        if (
            type(in_class) is FunctionType
            and self.cls is not torch.nn.Parameter
            and in_class is not (lookup_in_class(torch.Tensor, name))
        ):
            if is_wrapper(self.fake):
                return context.bind(self, self.cls, name, in_class)
            raise unsupported("tensor-subclass", f"method {name!r} of the tensor class {class_name(self.cls)}")
        if isinstance(in_class, property) or not callable(getattr(torch.Tensor, name)):
            raise unsupported("attribute", f"attribute {name!r} of {self.describe(context)}")
        return TensorMethodValue(self, name)

    def _extra(self, context: CaptureContext, name: str) -> Value:
        """An attribute that the program put on the tensor, or that its class adds."""
        in_class = self._added(context, name)
        if in_class is not MISSING and (is_data_descriptor(in_class) or not self._has_own(name)):
            return context.bind(self, self.cls, name, in_class)
        if self.obj is not None and self.source is not None and hasattr(self.obj, name):
            return context.wrap(getattr(self.obj, name), AttrSource(self.source, name))
        if self.obj is not None and self.source is not None:
            context.guard(self.source, GuardKind.ABSENT, name)
        fallback = replaced_method(context, self.cls, "__getattr__")
        if fallback is not MISSING:
            return context.bind(self, self.cls, "__getattr__", fallback).call(context, [ConstantValue(name)], {})
        raise context.raised(AttributeError, f"'{class_name(self.cls)}' object has no attribute '{name}'")

    def _part(self, context: CaptureContext, name: str) -> Value:
        """An attribute of a tensor that is made of other tensors."""
        if self.obj is not None and self.source is not None:
            return context.wrap(getattr(self.obj, name), AttrSource(self.source, name))
        if isinstance(self.fake.__dict__[name], torch.Tensor):
            return context.record_function(getattr, [self, ConstantValue(name)], {})
        return context.wrap_result(self.fake.__dict__[name], f"the attribute {name!r} of a {class_name(self.cls)}")

    def slot(self, context: CaptureContext, name: str, descriptor: Any) -> Value:
        """A `__slots__` member of the program's tensor class."""
        if self.obj is not None and self.source is not None:
            held = context.run_real(descriptor.__get__, (self.obj, self.cls))
            return context.wrap(held, AttrSource(self.source, name))
        held = context.run_real(descriptor.__get__, (self.fake, self.cls))
        if isinstance(held, torch.Tensor):
            return context.record_function(getattr, [self, ConstantValue(name)], {})
        return context.known(held)

    def _added(self, context: CaptureContext, name: str) -> Any:
        """The attribute in the tensor class of the program, or MISSING."""
        return MISSING if self.cls in TENSOR_CLASSES else context.class_lookup(self.cls, name)

    def _has_own(self, name: str) -> bool:
        return self.obj is not None and name in self.obj.__dict__

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        in_class = self._added(context, name)
        if is_wrapper(self.fake):
            raise unsupported("tensor-subclass", f"writing `.{name}` of a {class_name(self.cls)}")
        if in_class is not MISSING and not hasattr(torch.Tensor, name) and is_data_descriptor(in_class):
            set_through(context, self, self.cls, name, in_class, value)
            return
        if name == "grad" and self.obj is not None and self._may_be_grad(context, value):
            self.set_grad(context, value)
            return
        if name == "requires_grad":
            context.call_tensor_method(self, "requires_grad", [value], {})
            return
        if name == "data" and isinstance(value, TensorValue) and self._takes_data(context, value):
            self._set_data(context, value)
            return
        if name in ("data", "grad") or hasattr(torch.Tensor, name):
            raise unsupported("attribute-write", f"writing `.{name}` of a tensor")
        if self.attributes is None:
            self.attributes = {}
        self.attributes[name] = value
        context.mutations.attribute(self, name)

    def _takes_data(self, context: CaptureContext, value: TensorValue) -> bool:
        mine, other = self.fake, value.fake
        alike = mine.dtype is other.dtype and mine.device == other.device
        if not alike or not context.in_the_call or context.recorder.transforms:
            return False
        fixed = [context.recorder.numbers.has_fixed_sizes("a write to `.data`", one) for one in (mine, other)]
        takes = not mine.requires_grad or (self.obj is not None and mine.shape == other.shape)
        return fixed[1] and takes

    def _set_data(self, context: CaptureContext, value: TensorValue) -> None:
        """`x.data = y`: the tensor moves to the other memory. The graph goes on with a detached node, which
        `node_with_gradient` connects with the tensor where gradients are needed."""
        if self.fake.requires_grad and not self.is_moved:
            self.node_before = context.recorder.node_of(self)
        moved = context.record_method("detach", [value], {})
        assert isinstance(moved, TensorValue)
        if self.node is not None:
            self.node.meta["example_value"] = copy.deepcopy(self.fake)
        context.recorder.mode.set_data(self.fake, moved.fake)
        self.node = moved.node
        if self.source is not None:
            self.attributes = {**(self.attributes or {}), "data": moved}
            context.mutations.attribute(self, "data")

    @property
    def is_moved(self) -> bool:
        """Whether captured code wrote `.data` of this tensor, which requires grad."""
        return self.fake.requires_grad and self.attributes is not None and "data" in self.attributes

    def node_with_gradient(self, context: CaptureContext) -> fx.Node:
        """The node of a moved tensor for operators with gradients."""
        recorder = context.recorder
        assert self.node is not None and self.node_before is not None
        if recorder.graph is not recorder.root:
            raise unsupported("autograd", f"a gradient by {self.describe(context)}, whose .data was replaced")
        made = recorder.root.call_function(on_other_memory, (self.node_before, self.node))
        made.meta.update(self.node.meta)
        return made

    def _may_be_grad(self, context: CaptureContext, value: Value) -> bool:
        if not isinstance(value, TensorValue):
            return context.is_none(value)
        mine, other = self.fake, value.fake
        return mine.shape == other.shape and mine.dtype is other.dtype and mine.device == other.device

    def set_grad(self, context: CaptureContext, value: Value) -> None:
        """Write `.grad` of a tensor from outside of the frame."""
        if self.attributes is None:
            self.attributes = {}
        self.attributes["grad"] = value
        context.mutations.attribute(self, "grad")

    def call_method(self, context: CaptureContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return context.call(self.get_attr(context, name), args, kwargs)

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        for read in item_readers:
            if (found := read(context, self, key)) is not None:
                return found
        owner, index = _indexed(context, self, key)
        return owner if index is None else context.record_method("__getitem__", [owner, index], {})

    def set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        owner, index = _indexed(context, self, key)
        context.record_method("__setitem__", [owner, ConstantValue(...) if index is None else index, value], {})

    def length(self, context: CaptureContext) -> int:
        rely_on_method(context, self.cls, "__len__")
        if not self.fake.dim():
            raise context.raised(TypeError, "len() of a 0-d tensor")
        length: Any = self.fake.shape[0]
        if type(length) is not int and not length.node.has_hint():
            raise unsupported("data-dependent-value", f"the length of {self.describe(context)}")
        return int(length)

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        rely_on_method(context, self.cls, "__iter__")
        if not self.fake.dim():
            raise context.raised(TypeError, "iteration over a 0-d tensor")
        return context.iterate(context.record_method("unbind", [self], {}))

    def iterator(self, context: CaptureContext) -> Value:
        if not context.loops.has_varying_rows(self):
            return super().iterator(context)

        def rows() -> Iterator[Value]:
            yield from self.iterate(context)

        rely_on_method(context, self.cls, "__iter__")
        return RowsIterator(self, rows())

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        made = self._built(reconstructor)
        if self.attributes:
            reconstructor.remember(self, made)
            for name, value in self.attributes.items():
                reconstructor.set_attr(made, name, value)
        return made

    def _built(self, reconstructor: Reconstructor) -> Recipe:
        """The tensor of a call, without the attributes that captured code wrote."""
        if self._is_freed(reconstructor):
            detached = reconstructor.context.record_method("detach", [self], {})
            parts = [reconstructor.recipe(one) for one in (detached, *self._leads_to(reconstructor))]
            return CallRecipe(ConstantRecipe(with_freed_history), parts)
        made: Recipe = reconstructor.graph_output(self)
        origin = view_creation_of(self.fake)
        if origin is not None:
            made = CallRecipe(ConstantRecipe(with_view_creation), [made, ConstantRecipe(origin)])
        if self.cls is torch.nn.Parameter:  # without grad; graphs return plain tensors
            made = CallRecipe(ConstantRecipe(torch.nn.Parameter), [made, ConstantRecipe(False)])
        return made

    def _is_freed(self, reconstructor: Reconstructor) -> bool:
        """Whether a backward in captured code has freed this tensor's history. Raises CannotRebuild for a leaf made in
        captured code, whose gradient the program could read outside, and for tensors of such leaves only."""
        recorder = reconstructor.context.recorder
        if not recorder.freed and not recorder.made_leaves:
            return False
        if self.fake.is_leaf and self.fake.requires_grad:
            raise cannot_rebuild("a leaf that requires grad", recorder.made_leaves.get(id(self.fake)))
        nodes = list(history([self.fake.grad_fn]))
        leaves = [id(node.variable) for node in nodes if hasattr(node, "variable")]
        if leaves and all(leaf in recorder.made_leaves for leaf in leaves):
            made_at = min(recorder.made_leaves[leaf] for leaf in leaves)
            raise cannot_rebuild("a tensor computed from a leaf that requires grad", made_at)
        return any(id(node) in recorder.freed for node in nodes)

    def _leads_to(self, reconstructor: Reconstructor) -> list[TensorValue]:
        """The inputs that autograd reaches from this tensor."""
        variables = {id(getattr(node, "variable", None)) for node in history([self.fake.grad_fn])}
        return [value for value in reconstructor.context.recorder.input_values if id(value.fake) in variables]


def _is_data_descriptor(cls: type, name: str) -> bool:
    in_class = lookup_in_class(cls, name)
    return in_class is not MISSING and is_data_descriptor(in_class)


def on_other_memory(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """A tensor on the memory of `data` whose gradients flow to `tensor`."""
    made = tensor.view_as(tensor)
    made.data = data
    return made


def _indexed(context: CaptureContext, tensor: TensorValue, key: Value) -> tuple[Value, Value | None]:
    """A tensor and an index for torch, which select the elements of `tensor[key]`. Eager reads ints from 0-d tensors
    among the indices, and selects by numbers first. Index None: all elements."""
    items = [context.realized(item) for item in key.items] if isinstance(key, TupleValue) else [key]
    read = [_with_numbers(context, item) for item in items]
    if not any(map(_is_open_int, read)):
        same = all(one is other for one, other in zip(items, read, strict=True))
        return tensor, key if same else TupleValue(read) if isinstance(key, TupleValue) else read[0]
    spans = [_dimensions(item) for item in read]
    dim, selected = 0, []
    for item, span in zip(read, spans, strict=True):
        if _is_open_int(item):
            selected.append((dim, item))
        dim += tensor.fake.dim() - sum(filter(None, spans)) if span is None else span
    rest = [item for item in read if not _is_open_int(item)]  # select makes constants of numbers under dynamic=False
    made: Value = tensor
    for at, item in reversed(selected):
        made = context.record_method("select", [made, ConstantValue(at), item], {})
    return made, TupleValue(rest) if rest else None


def _is_open_int(index: Value) -> bool:
    return is_open(index) and index.kind is int


def _dimensions(index: Value) -> int | None:
    """The number of dimensions that an index consumes; None for `...`, which takes the rest."""
    if isinstance(index, TensorValue):
        return index.fake.dim() if index.fake.dtype in (torch.bool, torch.uint8) else 1
    if not isinstance(index, ConstantValue):
        return 1
    constant = index.constant()
    return None if constant is Ellipsis else int(constant is not None and type(constant) is not bool)


def _with_numbers(context: CaptureContext, key: Value) -> Value:
    if isinstance(key, SliceValue):
        parts = (key.start, key.stop, key.step)
        start, stop, step = (_with_numbers(context, context.realized(part)) for part in parts)
        same = start is key.start and stop is key.stop and step is key.step
        return key if same else SliceValue(start, stop, step)
    if not isinstance(key, TensorValue) or key.fake.dim() or key.fake.dtype not in _WHOLE:
        return key
    mode = context.recorder.mode
    if not mode.may_keep_unknown_numbers() or context.recorder.known_value(key.fake) is not None:
        return key
    return context.call_tensor_method(key, "item", [], {})


_WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8))


def has_fixed_sizes(fake: torch.Tensor) -> bool:
    """Whether capture knows all sizes."""
    return all(type(size) is int for size in fake.shape)


class TensorMethodValue(Value):
    """A bound method of a tensor."""

    __slots__ = ("name", "owner")
    cls = type(torch.zeros)

    def __init__(self, owner: TensorValue, name: str) -> None:
        self.source = None
        self.owner = owner
        self.name = name

    def describe(self, context: CaptureContext) -> str:
        return f"the method Tensor.{self.name}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return context.call_tensor_method(self.owner, self.name, args, kwargs)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return GetAttr(reconstructor.recipe(self.owner), self.name)


def rely_on_methods(context: CaptureContext, names: tuple[str, ...], args: list[Value]) -> None:
    """Guard that tensors among the first two arguments have torch's own methods of these names. Raises Unsupported."""
    for value in args[:2]:
        if isinstance(value, TensorValue):
            for name in names:
                rely_on_method(context, value.cls, name)
