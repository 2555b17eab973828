"""The mode that runs operators on fake tensors (`fake_tensor.py`): their results, writes and known values.

The tracer records operators; `prims` holds their shape rules.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from stator import prims as prims  # registers the shape rules
from stator.base.errors import Unsupported
from stator.base.registry import Registry
from stator.graph.ir.schema import SchemaFacts, argument, arguments_of_twin, functional_twin, op_info
from stator.prims.devices import CPU, as_device
from stator.prims.layout import numel
from stator.prims.record import ShapeRule, TensorMeta
from stator.prims.refusal import Refused
from stator.prims.type_promotion import number_dtype
from stator.shapes.expr import Expr
from stator.shapes.sym_node import to_sym_int

from .constant_tracking import UNINITIALIZED_FACTORIES, lies_within, origins, track_factory, track_write
from .fake_tensor import FakeStorage as FakeStorage
from .fake_tensor import FakeTensor as FakeTensor
from .fake_tensor import flat_tensors
from .meta_kernels import infer_by_meta_kernel, result_device
from .number_stand_ins import DataDependent as DataDependent
from .number_stand_ins import Number, holds_numbers, replace_numbers, stand_in, takes_unknown_numbers
from .refused_arguments import eager_error
from .scalar_expressions import follow_scalar, scalar_of
from .symbolic_rules import by_rule, has_symbols
from .wrapper_subclasses import WrapperLayout, is_wrapper_class, refuse_moved_generators, with_gradient_of
from .writes import check_keeps_storage, check_overlap

aten = torch.ops.aten
_fake_mode_of_torch, _FAKE = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
NUMBERS: dict[type, Any] = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
# Known values of up to this many elements propagate through operators, so that `.item()` works on them.
CONSTANT_LIMIT = 1024
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
# Operators that make known values from numbers. Other operators without tensor arguments are random or leave memory
# uninitialized.
KNOWN_VALUE_FACTORIES = frozenset(
    (
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.eye.default,
        aten.eye.m,
        aten.full.default,
        aten.ones.default,
        aten.zeros.default,
    )
)


Special = Callable[["FakeMode", tuple[Any, ...], dict[str, Any]], Any]
# Operators whose fake behaviour is more than a shape rule. A handler returns NotImplemented to fall back to the rules.
specials: Registry[OpOverload, Special] = Registry("fake operator")

# Data-dependent operators inside of an autograd node's formula: (mode, node, args) -> the result that the node needs,
# or NotImplemented.
Formula = Callable[["FakeMode", Any, tuple[Any, ...]], Any]
formulas: Registry[tuple[OpOverload, str], Formula] = Registry("gradient formula")


class FakeMode(TorchDispatchMode):
    """Inside `with mode:` every operator runs on fake tensors; real tensors count as constants.

    over: capture of the program has ended, so later uses of its fakes are not the program's.
    eager_layers: GRUs and plain recurrent layers run eager's operators, step by step. None: on short sequences only.
    """

    eager_layers: bool | None = None

    def __init__(self) -> None:
        super().__init__()
        self.over = False
        self._outer = _fake_mode_of_torch(_FAKE)
        self._fakes: dict[int, tuple[weakref.ref[torch.Tensor], FakeTensor]] = {}
        self._wrappers: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        # fakes of overlapping real tensors find each other
        self._storages: weakref.WeakValueDictionary[int, FakeStorage] = weakref.WeakValueDictionary()
        self._constants: dict[int, tuple[torch.Tensor, FakeTensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False keeps torch from importing its own compiler when the first mode is used."""
        return False

    # -- results that share memory for some sizes --
    def asks_later(self) -> bool:
        """Whether a result may be a copy although eager gives a view where a size is 1."""
        return True

    def note_copy(self, source: FakeTensor, made: FakeTensor, is_view: Callable[[], bool], alike: bool) -> None:
        """Called for each such copy. `is_view` asks whether it is a view; `alike`: a view's elements lie as the copy's
        do. A graph that is traced after its capture relies on what the capture found."""

    # -- making fake tensors --------------------------------------------------------------------------------------

    def make(self, meta: TensorMeta, storage: FakeStorage | None = None, requires_grad: bool = False) -> FakeTensor:
        """Make a fake tensor, with a fresh storage unless one is given."""
        return FakeTensor(self, meta, storage, requires_grad)

    def from_real(self, tensor: torch.Tensor, layout: TensorMeta | None = None) -> Any:
        """Return the fake of a real tensor: always the same object, sharing a FakeStorage with fakes of overlapping
        tensors. Keeps requires_grad and is_leaf. The fake of a wrapper subclass is of its class, around fakes. Raises
        Unsupported for layouts other than strided.

        layout: the tensor's own, with symbolic sizes.
        """
        if isinstance(tensor, FakeTensor):
            return tensor
        if is_wrapper_class(type(tensor)):
            return self._fake_of_wrapper(tensor)
        entry = self._fakes.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        fake = self._make_leaf(tensor, layout or meta_of_real(tensor, lazy=True)).with_lazy_bits_of(tensor)
        self.remember(tensor, fake)
        return fake

    def _fake_of_wrapper(self, tensor: torch.Tensor) -> torch.Tensor:
        entry = self._wrappers.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        layout = WrapperLayout.of(tensor)
        leaves = [self.from_real(leaf) for leaf in layout.leaves(tensor)]
        with torch._C._InferenceMode(False):
            # autograd follows the wrapper, and no inner tensor
            leaves = [self.make(one.meta, one.fake_storage) if one.requires_grad else one for one in leaves]
            source = self.make(TensorMeta((), (), torch.float32, CPU), requires_grad=True)
            fake = with_gradient_of(layout.build(iter(leaves)), tensor, source)
        self._wrappers[id(tensor)] = (weakref.ref(tensor), fake)
        return fake

    def remember(self, tensor: torch.Tensor, fake: FakeTensor) -> None:
        """Let this fake stand for that tensor from now on."""
        self._fakes[id(tensor)] = (weakref.ref(tensor), fake)

    def forget(self) -> None:
        """Drop all fakes and constants of this mode; other references to them stay valid. Otherwise fakes that autograd
        references would form a cycle with their mode, which Python's garbage collector cannot see through C++."""
        self.over = True
        self._fakes.clear()
        self._wrappers.clear()
        self._constants.clear()

    def _make_leaf(self, tensor: torch.Tensor, meta: TensorMeta) -> FakeTensor:
        address = tensor.untyped_storage()._cdata
        shared = self._storages.get(address)
        if shared is None or shared.meta.dtype is not meta.dtype:
            shared = self._storages[address] = FakeStorage(meta)
        # Never make an inference tensor: these can be neither viewed nor written outside of inference mode. The C guard
        # is used, here and elsewhere, because an interrupt in the Python `__exit__` of torch.inference_mode would leave
        # the guard, and its grad mode, active as long as the traceback lives.
        with torch._C._InferenceMode(False):
            fake = self.make(meta, shared, tensor.requires_grad and tensor.is_leaf)
        if tensor.requires_grad and not tensor.is_leaf:
            self._give_history(fake)
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True  # type: ignore[attr-defined]
        return fake

    def _give_history(self, fake: FakeTensor) -> None:
        """Make the fake a non-leaf that requires grad, whatever its layout."""
        version = fake.fake_storage.version
        with torch._C._InferenceMode(False), torch.enable_grad(), self:
            source = self.make(TensorMeta((), (), fake.meta.dtype, fake.meta.device), requires_grad=True)
            fake.fill_(source)
        fake.fake_storage.version = version

    def constant(self, tensor: torch.Tensor) -> FakeTensor:
        """Return the fake of a real tensor met while the mode is on, with its value if it is small and needs no
        grad."""
        entry = self._constants.get(id(tensor))
        if entry is not None:
            return entry[1]
        known = self._fakes.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        fake = self.make(meta_of_real(tensor), None, tensor.requires_grad and tensor.is_leaf)
        fake.real_value = tensor
        self._constants[id(tensor)] = (tensor, fake)
        return fake

    def set_data(self, fake: FakeTensor, new: torch.Tensor) -> None:
        """Run `fake.data = new`: take over layout, storage and value."""
        source = new if isinstance(new, FakeTensor) else self.constant(new)
        torch.Tensor.data.__set__(fake, source)  # type: ignore[attr-defined]
        fake.meta, fake.fake_storage = source.meta, source.fake_storage
        fake.constant, fake.known_from, fake.scalar = source.constant, source.known_from, source.scalar
        if source.constant is not None:
            fake.constant_version = source.constant_version

    def rely_on(self, known_from: frozenset[Any]) -> bool:
        """Called when the program reads a value computed from the origins `known_from`. False: the value counts as
        unknown here. Overridden by modes that guard on the origins."""
        return True

    # -- running operators ----------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(kind is not FakeTensor and is_wrapper_class(kind) for kind in types):
            if op_info(func).random:
                refuse_moved_generators(func, args)
            return NotImplemented  # the class runs the operator, on its inner tensors
        if _fake_mode_of_torch(_FAKE) is not self._outer:  # a class asks torch for the metadata of its own tensors
            return func(*args, **(kwargs or {}))
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator on fake tensors."""
        tensors: list[FakeTensor] = []
        args = tuple([self._fake_argument(value, tensors) for value in args])
        if kwargs:
            kwargs = {name: self._fake_argument(value, tensors) for name, value in kwargs.items()}
        if not tensors and args and type(args[0]) in NUMBERS:
            args = self._with_tensor(func, args, tensors)
        if holds_numbers(args) or (kwargs and holds_numbers(tuple(kwargs.values()))):
            return self._with_numbers(func, args, kwargs)
        special = specials.get(func)
        if special is not None:
            result = special(self, args, kwargs)
            if result is not NotImplemented:
                return result
        info = op_info(func)
        if (info.dynamic_shape or info.data_dependent) and kwargs.get("output_size") is None:
            return self._data_dependent(func, args, kwargs, tensors)
        if info.composite is not None and (info.record.shape is None or info.is_view):
            with self:
                return func._op_dk(info.composite, *args, **kwargs)
        if info.mutates:
            return self._mutate(info, args, kwargs, tensors)
        metas = self.infer(info, args, kwargs, tensors)
        result = self._wrap(info, metas, tensors)
        if not (info.random or info.communicates) and (tensors or func in KNOWN_VALUE_FACTORIES):
            self._follow_constants(func, args, kwargs, tensors, result)
        if func in KNOWN_VALUE_FACTORIES or func in UNINITIALIZED_FACTORIES:
            track_factory(func, result)
        if type(result) is FakeTensor and not result.meta.shape:
            follow_scalar(func, args, kwargs, result)
        return result

    def _with_numbers(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on numbers of unknown value. If no traced graph can hold the call, the values are read."""
        info = op_info(func)
        if takes_unknown_numbers(functional_twin(func) or func if info.mutates else func, args, kwargs):
            result = self.dispatch(func, replace_numbers(args, stand_in), replace_numbers(kwargs, stand_in))
            for fake in flat_tensors(result):
                fake.constant = None
            return result
        if info.composite is not None:
            with self:
                return func._op_dk(info.composite, *args, **kwargs)
        return self.dispatch(func, replace_numbers(args, Number.read), replace_numbers(kwargs, Number.read))

    def _fake_argument(self, value: Any, tensors: list[FakeTensor]) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            tensors.append(value)
            return value
        if kind is list or kind is tuple:
            return kind([self._fake_argument(item, tensors) for item in value])
        if isinstance(value, torch.Tensor):
            fake = value if isinstance(value, FakeTensor) else self.constant(value)
            tensors.append(fake)
            return fake
        return value

    def _with_tensor(self, func: OpOverload, args: tuple[Any, ...], tensors: list[FakeTensor]) -> tuple[Any, ...]:
        """Turn a leading number back into a tensor: torch passes a tensor that C++ made from a number as the number."""
        first, *others = func._schema.arguments
        if not isinstance(first.type, torch.TensorType):
            return args
        dtype = NUMBERS[type(args[0])]
        if any(isinstance(other.type, torch.TensorType) for other in others[: len(args) - 1]):
            dtype = number_dtype(args[0])  # promotion between two numbers follows number rules
        made = self.dispatch(aten.scalar_tensor.default, (args[0],), {"dtype": dtype, "device": CPU})
        tensors.append(made)
        return (made, *args[1:])

    def infer(self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]) -> Any:
        """Return the operator's results with TensorMetas in place of tensors, by its shape rule or else its meta
        kernel."""
        rule = info.record.shape
        if rule is not None:
            metas = self._ruled(info.target, rule, args, kwargs, tensors)
            if metas is not NotImplemented:
                return metas
        check_keeps_storage(info)
        return infer_by_meta_kernel(self, info, args, kwargs, result_device(args, kwargs, tensors))

    def _ruled(
        self, target: OpOverload, rule: ShapeRule, args: Any, kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        try:
            return by_rule(rule, args, kwargs) if has_symbols(tensors) else rule(*args, **kwargs)
        except Refused:
            raise eager_error(target, args, kwargs) from None

    def _wrap(self, info: SchemaFacts, metas: Any, tensors: list[FakeTensor]) -> Any:
        if isinstance(metas, (tuple, list)):
            return type(metas)([self._wrap(info, meta, tensors) for meta in metas])
        return self._wrap_one(info, metas, tensors)

    def _wrap_one(self, info: SchemaFacts, meta: Any, tensors: list[FakeTensor]) -> Any:
        if type(meta) is not TensorMeta:
            return meta
        if meta.view_of is not None:
            base = tensors[meta.view_of]
            return FakeTensor(self, meta, base.fake_storage).with_lazy_bits_of(base, info.target)
        if info.is_view and tensors:
            return FakeTensor(self, meta, tensors[0].fake_storage).with_lazy_bits_of(tensors[0], info.target)
        return FakeTensor(self, meta)

    # -- mutation -------------------------------------------------------------------------------------------------

    def _mutate(
        self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        """Run an operator that writes to arguments: check the write, count it, and return the written arguments
        themselves."""
        if info.inplace_view:
            return self._change_layout(info, args, kwargs)
        check_overlap(info, args, kwargs)
        results = self._infer_written(info, args, kwargs, tensors)
        known = self._written_constants(info, args, kwargs, tensors)
        written = flat_tensors([argument(info, args, kwargs, where) for where in info.mutates])
        for fake in written:
            fake.fake_storage.version += 1
        if len(written) == 1:
            track_write(info.target, args, written[0], written[0].fake_storage.version - 1)
        for fake, value in zip(written, known, strict=False):
            fake.hold(value, origins(tensors))
        return self._returned(info, args, kwargs, results, tensors)

    def _written_constants(
        self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> list[torch.Tensor]:
        """Return the written values if all their operands are known; else an empty list."""
        twin = functional_twin(info.target)
        if info.random or info.communicates or twin is None:
            return []
        if any(tensor.tracked_value() is None for tensor in tensors):
            return []
        if any(isinstance(number, SYMBOLIC) for number in pytree.tree_leaves((args, kwargs))):
            return []
        inputs = {name: value for name, value in kwargs.items() if name not in info.mutates}
        positional = arguments_of_twin(info.target, twin, args, inputs)
        return flat_tensors(twin(*_to_values(positional), **_to_values(inputs)), torch.Tensor)

    def _infer_written(
        self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        """Check the operands as eager would; return the metas of results that are not written arguments."""
        twin = functional_twin(info.target)
        rule = None if twin is None else op_info(twin).record.shape
        if twin is not None and rule is not None:
            inputs = {name: value for name, value in kwargs.items() if name not in info.mutates}
            metas = self._ruled(twin, rule, arguments_of_twin(info.target, twin, args, inputs), inputs, tensors)
            written = flat_tensors([argument(info, args, kwargs, where) for where in info.mutates])
            if [(fake.meta.shape, fake.meta.dtype) for fake in written] == [
                (meta.shape, meta.dtype) for meta in flat_tensors(metas, TensorMeta)
            ]:
                return metas
        return self.infer(info, args, kwargs, tensors)

    def _returned(
        self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any, tensors: list[FakeTensor]
    ) -> Any:
        if not info.returns:
            return None
        values = results if isinstance(results, (tuple, list)) else (results,)
        returned: list[Any] = []
        for position, source in enumerate(info.returns):
            if source is not None:
                returned.append(argument(info, args, kwargs, source))
            else:
                returned.append(self._wrap_one(info, values[position], tensors))
        return returned[0] if len(info.returns) == 1 else tuple(returned)

    def _change_layout(self, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run t_, squeeze_, ... on the wrapper itself to change its sizes and strides."""
        fake = args[0]
        if info.target not in LAYOUT_ONLY:
            raise Unsupported("storage-mutation", f"{info.target} replaces or resizes the storage of a tensor")
        value, twin = fake.tracked_value(), functional_twin(info.target)
        with torch._C._DisableTorchDispatch():
            if info.target is aten.squeeze_.dim:
                # ATen hands a tensor its own symbolic sizes there, and frees them before it reads them
                aten.squeeze_.dims(fake, args[1:])
            else:
                info.target(*args, **kwargs)
        fake.meta = TensorMeta(
            tuple(fake.shape), fake.stride(), fake.dtype, fake.device, fake.storage_offset(), fake.meta.view_of
        )
        fake.constant = None
        if value is not None and twin is not None and twin is not aten.as_strided.default:
            fake.hold(twin(value, *args[1:], **kwargs), origins([fake]))
        return fake

    # -- data -----------------------------------------------------------------------------------------------------

    def _data_dependent(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        values = [tensor.known_value() for tensor in tensors]
        if any(value is None for value in values):
            if func in SCALAR_READS and tensors[0].dtype.is_floating_point:
                return self.number_held_by(tensors[0])
            if func in SCALAR_READS and (number := self.number_of_sizes(tensors[0])) is not None:
                return number
            node = torch._C._current_autograd_node()
            formula = None if node is None else formulas.get((func, node.name()))
            result = NotImplemented if formula is None else formula(self, node, args)
            if result is not NotImplemented:
                return result
            result = self.of_unknown_size(func, args, kwargs, tensors)
            if result is not NotImplemented:
                return result
            info = op_info(func)
            if info.composite is not None and info.dynamic_shape:
                with self:
                    return func._op_dk(info.composite, *args, **kwargs)
            raise DataDependent(
                "data-dependent",
                f"{func} gives a value or a shape that depends on the data of a tensor",
                hint="compute it outside the compiled region, or keep it in a tensor (torch.where, masking)",
            )
        result = func(*_to_values(args), **_to_values(kwargs))
        return self._constant_results(result)

    def of_unknown_size(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        """Return the results, with unknown sizes, of an operator whose result's size depends on data. Overridden by
        modes whose graphs can hold such an operator."""
        return NotImplemented

    def unknown_size(self) -> Any:
        """Return a size that a registered fake implementation declares as data-dependent. Overridden like
        `of_unknown_size`."""
        raise DataDependent("data-dependent", "an operator's fake implementation makes a size that depends on data")

    def counted(self, mask: FakeTensor) -> Any:
        """Return the symbolic number of a mask's Trues, if an operator has told it; else None."""
        return None

    def listed(self, fake: FakeTensor) -> Any:
        """Return the numbers in a tensor of unknown contents as nested lists. Overridden like `of_unknown_size`."""
        raise DataDependent("tensor-data", "Tensor.tolist() needs the data of a tensor that is being traced")

    def number_held_by(self, fake: FakeTensor) -> Any:
        """Return the number in a zero-dim tensor as a symbolic number, which operators take without knowing its
        value."""
        return Number.unknown().argument

    def number_of_sizes(self, fake: FakeTensor) -> Any:
        """Return the int or truth in a tensor that follows from sizes; None if it does not."""
        scalar = scalar_of(fake)
        if scalar is None or (scalar.known_from and not self.rely_on(scalar.known_from)):
            return None
        if isinstance(scalar.expression, Expr):
            return to_sym_int(scalar.environment, scalar.expression)
        return scalar.environment.decide(scalar.expression)

    def _constant_results(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return self.value(result)
        if isinstance(result, (tuple, list)):
            return type(result)(self._constant_results(item) for item in result)
        return result

    def value(self, tensor: torch.Tensor) -> FakeTensor:
        """Make a fresh fake tensor from a real one without other owners; a small tensor keeps its value."""
        fake = self.make(meta_of_real(tensor))
        if tensor.numel() <= CONSTANT_LIMIT:
            fake.constant, fake.constant_version = tensor, fake.fake_storage.version
        return fake

    def _follow_constants(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor], result: Any
    ) -> None:
        for tensor in tensors:
            if tensor.tracked_value() is None:
                return
        outputs = flat_tensors(result)
        if not outputs or not all(_is_small(output.meta) for output in outputs):
            return
        if any(isinstance(number, SYMBOLIC) for number in pytree.tree_leaves((args, kwargs))):
            return
        if func is aten.as_strided.default and not lies_within(tensors[0], outputs[0].meta):
            return
        values = flat_tensors(func(*_to_values(args), **_to_values(kwargs)), torch.Tensor)
        known_from = origins(tensors)
        for output, value in zip(outputs, values, strict=True):
            output.constant, output.constant_version = value, output.fake_storage.version
            if known_from:
                output.known_from = known_from


def _is_small(meta: TensorMeta) -> bool:
    """Whether a value of this layout is tracked: known size, small, on the CPU."""
    if meta.device.type != "cpu" or any(isinstance(size, SYMBOLIC) for size in meta.shape):
        return False
    return bool(numel(meta.shape) <= CONSTANT_LIMIT)


# Operators that read the number in a tensor.
SCALAR_READS = frozenset((aten.item.default, aten._local_scalar_dense.default))

# In-place operators that change sizes and strides but keep the storage.
LAYOUT_ONLY = frozenset(
    getattr(aten, name).default
    for name in ("t_", "transpose_", "unsqueeze_", "as_strided_", "squeeze_", "swapaxes_", "swapdims_")
    if hasattr(aten, name)
) | {aten.squeeze_.dim, aten.squeeze_.dims}


def meta_of_real(tensor: torch.Tensor, lazy: bool = False) -> TensorMeta:
    """Return the TensorMeta of a real tensor.

    Raises Unsupported for sparse, nested and quantized tensors and for subclasses with their own __torch_dispatch__
    (other than fake tensors). Lazily conjugated or negated tensors need `lazy`, because their memory differs from their
    values.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise Unsupported(
            "tensor-layout", f"a tensor of layout {tensor.layout} (or quantized, nested) is not supported"
        )
    kind = type(tensor)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not hasattr(tensor, "fake_mode"):
        raise Unsupported("tensor-subclass", f"a tensor of class {kind.__qualname__} is not supported")
    if not lazy and (tensor.is_conj() or tensor.is_neg()):
        raise Unsupported(
            "lazy-conjugate",
            "a tensor that is conjugated or negated lazily is not supported here",
            hint="call .resolve_conj() or .resolve_neg() on it first",
        )
    if isinstance(tensor, FakeTensor):
        return tensor.meta
    return TensorMeta(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.storage_offset())


def _to_values(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return value.tracked_value()
    if isinstance(value, (tuple, list)):
        return type(value)(_to_values(item) for item in value)
    if isinstance(value, dict):
        return {name: _to_values(item) for name, item in value.items()}
    return value


@specials.register(aten.lift_fresh.default, aten.lift.default, aten.lift_fresh_copy.default)
def _lift(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take the value from the fresh real tensor of `torch.tensor(...)`, which arrives through this operator."""
    fake = args[0]
    return NotImplemented if fake.real_value is None else mode.value(fake.real_value)


@specials.register(aten._efficientzerotensor.default)
def _zeros_without_memory(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give forward-mode AD's zero tensors memory, which compiled code needs to read them."""
    return mode.dispatch(aten.zeros.default, args, kwargs)


# C++ code without support for symbolic sizes asks for plain numbers, which become constants.
specials.add(aten.size.default, lambda mode, args, kwargs: tuple(map(int, args[0].meta.shape)))
specials.add(aten.stride.default, lambda mode, args, kwargs: tuple(map(int, args[0].meta.stride)))
specials.add(aten.numel.default, lambda mode, args, kwargs: int(numel(args[0].meta.shape)))
specials.add(aten.storage_offset.default, lambda mode, args, kwargs: int(args[0].meta.offset))


@specials.register(aten.scalar_tensor.default)
def _scalar_tensor(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Keep the value of numbers that C++ wraps into tensors and may read again: `torch.cov` reads its normalisation."""
    number, dtype = args[0], kwargs.get("dtype")
    on_cpu = as_device(kwargs.get("device") or torch.get_default_device()).type == "cpu"
    if not on_cpu or isinstance(number, (complex, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return NotImplemented
    return mode.value(torch.scalar_tensor(number, dtype=dtype, device=CPU))
