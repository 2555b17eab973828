"""Real Python objects -> values, by a registry keyed on the object's type. Wrapping adds the guards that the value
relies on; parts of an object are wrapped when captured code touches them.
"""

from __future__ import annotations

import enum
import gc
import inspect
import operator
import re
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.torch_version import TorchVersion
from torch.utils._config_module import ConfigModule

from stator.base.registry import Registry
from stator.dynamo.graph.input_value_guards import follow_contents
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.guard_tree import brief
from stator.dynamo.guards.placements import Placement, is_placement
from stator.dynamo.guards.source import (
    AttrSource,
    CallSource,
    ConstantSource,
    LocalSource,
    Source,
    is_fixed,
)
from stator.dynamo.guards.tensor_guards import MadeAlike
from stator.dynamo.host.compile_directives import TAGGED_METHODS, without_module_tags
from stator.dynamo.host.hook import is_skipped
from stator.dynamo.host.iterator_state import READABLE
from stator.dynamo.host.naming import class_name, full_name, is_python_class, module_of
from stator.dynamo.host.native_status import native
from stator.dynamo.host.numpy_boundary import is_numpy_number, numpy_numbers, plain_converter
from stator.dynamo.host.torch_overrides import plain_tensor
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.containers.canonical_constants import member_at
from stator.dynamo.values.containers.live_iterators import live_iterator
from stator.dynamo.values.containers.mappings import DictValue, DictViewValue, MappingProxyValue
from stator.dynamo.values.containers.sequences import AppendOnlyList, TupleValue, found_tuple
from stator.dynamo.values.containers.sets import SetValue
from stator.dynamo.values.containers.slices import RangeValue, SliceValue, range_of
from stator.dynamo.values.enum_members import are_containers, is_constant_member
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.functions import (
    BoundMethodValue,
    BuiltinMethodValue,
    BuiltinValue,
    CompiledFunctionValue,
    FunctionValue,
)
from stator.dynamo.values.modules import ModuleValue, PythonModuleValue, module_name
from stator.dynamo.values.objects import ObjectValue, meet_dict
from stator.dynamo.values.tensors.tensor import TensorMethodValue, TensorValue
from stator.dynamo.values.tensors.tensor_methods import TENSOR_CLASSES, relies_on_plain_parameters
from stator.dynamo.values.tensors.tensor_subclasses import TensorSubclassValue
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.fake.wrapper_subclasses import is_made_of_tensors, is_wrapper_class

Wrapper = Callable[["CaptureContext", Any, "Source | None"], Value]
wrappers: Registry[type, Wrapper] = Registry("type")
_chosen: dict[int, tuple[weakref.ref[type], Wrapper]] = {}  # by the id of a class, which may die
_MOST_CHOSEN = 4096

CONSTANT_TYPES: frozenset[type] = frozenset(
    {
        int,
        float,
        complex,
        str,
        bytes,
        bool,
        type(None),
        type(...),
        type(NotImplemented),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.qscheme,
        types.CodeType,
        torch.finfo,
        torch.iinfo,
        torch._C._SDPBackend,
    }
)


def wraps(*kinds: type) -> Callable[[Wrapper], Wrapper]:
    """Decorator: registers the wrapper of these types, and of their subclasses without a wrapper of their own."""
    return wrappers.register(*kinds)


def look_through_tags(obj: Any, source: Source | None) -> tuple[Any, Source | None]:
    """An object and its source, without the tags that torch.compile puts around methods of nn.Module."""
    if source is None or type(obj) is not types.FunctionType:
        return obj, source
    original = without_module_tags(obj)
    if original.__code__ not in TAGGED_METHODS:
        return obj, source
    return original, CallSource(without_module_tags, (source,))


def wrapper_of(kind: type) -> Wrapper:
    known = _chosen.get(id(kind))
    if known is not None and known[0]() is kind:
        return known[1]
    bases = (enum.Enum,) if issubclass(kind, enum.Enum) else kind.__mro__  # a member is never wrapped as a tuple
    found = next(wrappers[base] for base in bases if base in wrappers)
    if len(_chosen) >= _MOST_CHOSEN:
        _chosen.clear()
    _chosen[id(kind)] = weakref.ref(kind), found
    return found


def is_constant_object(obj: Any) -> bool:
    """Whether an EQUALS guard can hold this object (tuples of constants included)."""
    kind = type(obj)
    return (
        kind in CONSTANT_TYPES
        or (issubclass(kind, enum.Enum) and is_constant_member(obj))
        or (kind in (tuple, frozenset) and all(map(is_constant_object, obj)))
        or is_placement(obj)
    )


def _constant(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    if issubclass(type(obj), enum.Enum) and not is_constant_member(obj):
        if are_containers(type(obj)):
            raise unsupported("unguardable", f"a member of {class_name(type(obj))}, which is a container")
        context.guard(source, GuardKind.IS, obj)  # type: ignore[arg-type]
        return ObjectValue(type(obj), obj, source or ConstantSource(f"<{class_name(type(obj))}>", obj))
    if source is None:
        return ConstantValue(obj)
    changes = source in context.changing or source in context.expected
    if changes and (type(obj) in (int, float) or is_numpy_number(obj)):
        return context.recorder.numbers.of_input(source, obj)
    plain = plain_converter(type(obj)) or _PLAIN.get(
        next((base for base in type(obj).__mro__[1:] if base in _PLAIN), object)
    )
    if plain is None or isinstance(obj, (bool, enum.Enum)):
        made = SourcedConstant(obj, source, context)
        if not isinstance(source, LocalSource):  # parameters are always bound
            context.guards.presence(made)
        return made
    # a subclass, or numpy.float32, may define its own ==, so the guard compares the plain value
    if any(map(_adds_behaviour, type(obj).__mro__)) or getattr(obj, "__dict__", None):
        return _object(context, obj, source)  # guarded by its class only
    context.guard(source, GuardKind.TYPE, type(obj))
    context.guard(CallSource(plain, (source,)), GuardKind.EQUALS, plain(obj))
    made = SourcedConstant(obj, source, context)
    made.guarded = True
    return made


@wraps(TorchVersion)
def _version_of_torch(context: CaptureContext, obj: TorchVersion, source: Source | None) -> Value:
    """Text that compares as a version does."""
    _guard_identity(context, obj, source)
    return ConstantValue(obj)


def _adds_behaviour(cls: type) -> bool:
    """Whether a class of a Python program defines members: then its instances are no plain numbers or text."""
    return is_python_class(cls) and module_of(cls) != "numpy" and not vars(cls).keys() <= _PLAIN_NAMES


_PLAIN_NAMES = frozenset({"__module__", "__doc__", "__dict__", "__weakref__", "__slots__", "__firstlineno__"}) | {
    "__static_attributes__",
    "__orig_bases__",
    "__parameters__",
}
_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}


for _kind in (*CONSTANT_TYPES, *numpy_numbers()):
    wrappers.add(_kind, _constant)
wrappers.add(enum.Enum, _constant)


def _placement(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    return (_constant if is_placement(obj) else _object)(context, obj, source)


if Placement is not None:
    wrappers.add(Placement, _placement)


def _guard_type(context: CaptureContext, obj: Any, source: Source | None) -> None:
    if source is None:
        raise unsupported("unguardable", f"a {class_name(type(obj))} that cannot be reached from the frame")
    context.guard(source, GuardKind.TYPE, type(obj))


def _guard_identity(context: CaptureContext, obj: Any, source: Source | None) -> None:
    if source is not None:
        context.guard(source, GuardKind.IS, obj)


# ---- tensors ----


@wraps(torch.Tensor)
def _tensor(context: CaptureContext, obj: torch.Tensor, source: Source | None) -> Value:
    if isinstance(obj, FakeTensor):
        raise unsupported("nested-trace", "a fake tensor as input")
    if nn.parameter.is_lazy(obj):
        raise unsupported("lazy-module", f"{full_name(type(obj))}, which gets its data in the module's first call")
    wraps = is_wrapper_class(type(obj))
    if wraps and not is_made_of_tensors(obj):
        raise unsupported("tensor-subclass", f"the tensor class {full_name(type(obj))}")
    plain_class = wraps or type(obj) in TENSOR_CLASSES or relies_on_plain_parameters(context, type(obj))
    if not plain_class and context.class_lookup(type(obj), "__torch_dispatch__") is not _NO_DISPATCH:
        raise unsupported("tensor-subclass", f"the tensor class {full_name(type(obj))}")
    functorch = torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(obj) or functorch.is_legacy_batchedtensor(obj):  # without own memory
        raise unsupported("function-transform", "a tensor as it is inside of a function transform")
    if source is None:
        raise unsupported("unguardable", "a tensor that cannot be reached from the frame")
    plain = obj if plain_class else plain_tensor(obj)
    if plain.is_nested and not wraps:  # such a nested tensor has no sizes to compare
        raise unsupported("tensor-layout", "a nested tensor")
    layout = context.recorder.numbers.inputs.layout(obj, source) if plain_class and not wraps else None
    context.guards.tensor(source, plain, type(obj), layout)
    if wraps:
        _guard_parts(context, obj, source)
    elif not plain_class:
        return TensorSubclassValue(type(obj), None, obj, source)
    value = TensorValue(context.recorder.mode.from_real(obj, layout), None, source, obj, type(obj))
    if plain.is_nested:
        context.recorder.nested_inputs.append(value)
    follow_contents(context, value)
    return context.recorder.wrap_input(value)


_NO_DISPATCH = vars(torch.Tensor)["__torch_dispatch__"]


def _guard_parts(context: CaptureContext, obj: Any, source: Source) -> None:
    """Guard the context and the inner tensors of a tensor that is made of other tensors."""
    names, made_with = obj.__tensor_flatten__()
    parts = {name: getattr(obj, name) for name in names}
    values = {name: part for name, part in parts.items() if not isinstance(part, torch.Tensor)}
    context.guard(source, GuardKind.PREDICATE, MadeAlike(tuple(names), values, made_with))
    for name in parts.keys() - values.keys():
        inner, own = parts[name], AttrSource(source, name)
        context.guards.tensor(own, inner, type(inner))
        if obj.is_nested and not inner.is_floating_point():
            for other in context.recorder.nested_inputs:
                same = CallSource(operator.is_, (own, AttrSource(other.source, name)))  # type: ignore[arg-type]
                context.guard(same, GuardKind.EQUALS, inner is getattr(other.obj, name, None))
        if is_wrapper_class(type(inner)):
            _guard_parts(context, inner, own)


# ---- functions and classes ----


@wraps(types.FunctionType)
def _function(context: CaptureContext, obj: types.FunctionType, source: Source | None) -> Value:
    if source is not None and not native.called_as_usual(obj):
        return _object(context, obj, source)
    fixed = source is None or not (obj.__closure__ or "<locals>" in obj.__qualname__) or is_fixed(source)
    if fixed:
        _guard_identity(context, obj, source)
        if source is not None and not is_skipped(obj.__code__):  # users reload functions in place
            context.guard(source, GuardKind.CODE, obj.__code__)
    else:
        context.guard(source, GuardKind.CODE, obj.__code__)  # type: ignore[arg-type]
    names = None if source is None else AttrSource(source, "__globals__")
    scope = context.scope_of(obj.__globals__, names, obj.__builtins__)  # type: ignore[attr-defined]
    return FunctionValue(obj, source, obj.__code__, scope, fixed)


def _compiled_function(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    _guard_identity(context, obj, source)
    return CompiledFunctionValue(obj, source)


if native is not None:
    wrappers.add(native.Entry, _compiled_function)


@wraps(types.MethodType)
def _method(context: CaptureContext, obj: types.MethodType, source: Source | None) -> Value:
    if source is None:
        return BoundMethodValue(context.known(obj.__func__), context.known(obj.__self__))
    context.guard(source, GuardKind.TYPE, type(obj))
    function = context.wrap(obj.__func__, AttrSource(source, "__func__"))
    return BoundMethodValue(function, context.wrap(obj.__self__, AttrSource(source, "__self__")), source)


@wraps(
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodWrapperType,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._ops._OpNamespace,
    torch.jit.ScriptFunction,
    type(torch.ops),
    property,
    staticmethod,
    classmethod,
)
def _builtin(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    owner = getattr(obj, "__self__", None)
    if isinstance(obj, types.BuiltinFunctionType) and owner is not None and not isinstance(owner, types.ModuleType):
        return _bound_builtin(context, obj, owner, source)
    _guard_identity(context, obj, source)
    return BuiltinValue(obj, source)


def _bound_builtin(context: CaptureContext, obj: Any, owner: Any, source: Source | None) -> Value:
    """A stored bound C method, e.g. `append = items.append`."""
    free = not hasattr(type(owner), obj.__name__)  # a module-level function of an extension
    alone = source is None or isinstance(source, ConstantSource)  # else each call makes a new bound method
    if (
        free
        or isinstance(owner, type)
        or (alone and is_constant_object(owner))
        or (module_of(type(owner)).startswith("torch") and not isinstance(owner, torch.Tensor))
    ):
        _guard_identity(context, obj, source)
        return BuiltinValue(obj, source)
    if source is None:
        raise unsupported("unguardable", f"the bound method {obj!r}")
    held = context.wrap(owner, AttrSource(source, "__self__"))
    if alone and isinstance(held, BuiltinValue):  # numpy.add.reduce: reading the method would lead here again
        return BuiltinValue(obj, source)
    context.guard(source, GuardKind.TYPE, type(obj))
    context.guard(AttrSource(source, "__name__"), GuardKind.EQUALS, obj.__name__)
    found = context.get_attr(held, obj.__name__)
    if isinstance(found, (BuiltinMethodValue, TensorMethodValue)):
        found.source = source
    return found


@wraps(type)
def _class(context: CaptureContext, obj: type, source: Source | None) -> Value:
    _guard_identity(context, obj, source)
    return ClassValue(obj, source)


@wraps(types.ModuleType)
def _module(context: CaptureContext, obj: types.ModuleType, source: Source | None) -> Value:
    has_hooks = type(obj) is not types.ModuleType and any(
        type(getattr(type(obj), name)) is types.FunctionType for name in _MODULE_HOOKS
    )
    if has_hooks and not issubclass(type(obj), ConfigModule):  # settings of torch, which are read as attributes
        raise unsupported(
            "module-class", f"the module {module_name(obj)}, whose class looks attributes up in its own way"
        )
    _guard_identity(context, obj, source)
    return PythonModuleValue(obj, source)


_MODULE_HOOKS = ("__getattribute__", "__setattr__", "__delattr__")


# ---- containers ----


@wraps(list)
def _list(context: CaptureContext, obj: list[Any], source: Source | None) -> Value:
    _guard_type(context, obj, source)
    return AppendOnlyList(context, obj, source)  # type: ignore[arg-type]


@wraps(tuple)
def _tuple(context: CaptureContext, obj: tuple[Any, ...], source: Source | None) -> Value:
    if source is None:
        return TupleValue([context.known(item) for item in obj], None, type(obj))
    context.guard(source, GuardKind.TYPE, type(obj))
    return found_tuple(context, obj, source)


@wraps(dict)
def _dict(context: CaptureContext, obj: dict[Any, Any], source: Source | None) -> Value:
    meet_dict(context, obj, writes=False)
    _guard_type(context, obj, source)
    factory = None
    if isinstance(obj, defaultdict):
        factory = context.wrap(obj.default_factory, AttrSource(source, "default_factory"))  # type: ignore[arg-type]
    return DictValue({}, source, type(obj), obj, factory)


wrappers.add(OrderedDict, _dict)
wrappers.add(defaultdict, _dict)


def dict_of_view(view: Any) -> Any:
    return gc.get_referents(view)[0]


@wraps(*[type(getattr(kind(), name)()) for kind in (dict, OrderedDict) for name in ("keys", "values", "items")])
def _dict_view(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    if source is None:
        return _object(context, obj, source)
    _guard_type(context, obj, source)
    owner = context.wrap(dict_of_view(obj), CallSource(dict_of_view, (source,)))
    kind = type(obj).__name__.rpartition("_")[2]
    return DictViewValue(owner, kind, source) if isinstance(owner, DictValue) else _object(context, obj, source)


@wraps(types.MappingProxyType)
def _mapping_proxy(context: CaptureContext, obj: types.MappingProxyType[Any, Any], source: Source | None) -> Value:
    """The parameters of a signature are constants; the entries of other dictionaries are guarded as they are read."""
    (shown,) = gc.get_referents(obj)
    if source is None or type(shown) not in (dict, OrderedDict):
        return _object(context, obj, source)
    owner = source.base if isinstance(source, AttrSource) else None
    if not isinstance(owner, ConstantSource) or type(owner.value) is not inspect.Signature:
        if not shown or any(type(one) is not inspect.Parameter for one in shown.values()):
            _guard_type(context, obj, source)
            entries = context.wrap(shown, CallSource(dict_of_view, (source,)))
            return MappingProxyValue(entries, source)  # type: ignore[arg-type]
        context.guard(source, GuardKind.PREDICATE, _SameParameters(obj))
    made = DictValue({name: context.known(parameter) for name, parameter in obj.items()}, None, type(obj))
    context.mutations.freeze(made, "the parameters of a signature", context.end_step())
    return made


class _SameParameters:
    """Guard predicate: a proxy shows the very parameters that it showed during capture. Parameters are immutable."""

    def __init__(self, parameters: types.MappingProxyType[str, inspect.Parameter]) -> None:
        self.parameters = tuple(parameters.values())

    def __call__(self, proxy: Any) -> bool:
        if type(proxy) is not types.MappingProxyType or type(gc.get_referents(proxy)[0]) not in (dict, OrderedDict):
            return False
        now = tuple(proxy.values())
        return len(now) == len(self.parameters) and all(map(operator.is_, now, self.parameters))

    def __repr__(self) -> str:
        return "shows the parameters that it showed"


@wraps(set, frozenset)
def _set(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    members = {item: _set_member(context, item, source) for item in obj}
    if source is None:
        if type(obj) is not frozenset:
            raise unsupported("unguardable", "a set that cannot be reached from the frame")
        return SetValue(members, None, frozenset, obj)
    context.guard(source, GuardKind.TYPE, type(obj))
    context.guard(source, GuardKind.PREDICATE, _SameMembers(obj))
    return SetValue(members, source, type(obj), obj)


def _set_member(context: CaptureContext, obj: Any, members: Source | None) -> Value:
    if _is_plain_member(obj):
        return member_at(context, obj, members)
    raise unsupported("set-members", "a set of objects")


def _is_plain_member(obj: Any) -> bool:
    return is_constant_object(obj) or isinstance(obj, _PLAIN_MEMBERS)


_PLAIN_MEMBERS = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MethodWrapperType,
)


def _exactly(constant: Any) -> tuple[type, Any]:
    """A key that distinguishes equal constants: 1, 1.0 and True, or 0.0 and -0.0."""
    kind = type(constant)
    if kind in (tuple, frozenset):
        return kind, kind(map(_exactly, constant))
    return kind, repr(constant) if kind in (float, complex) else constant


class _SameMembers:
    """Guard predicate: a set has exactly these members."""

    def __init__(self, members: Iterable[Any]) -> None:
        self.members = {_exactly(member): member for member in members}

    def __call__(self, now: Any) -> bool:
        return len(now) == len(self.members) and all(map(self._has, now))

    def what_changed(self, now: Any) -> str:
        """The change, for explanations. Runs no code of the members."""
        if not issubclass(type(now), (set, frozenset)):
            return f"a set became {brief(now)}"
        found = {_exactly(member): member for member in now if _is_plain_member(member)}
        gained = [brief(member) for key, member in found.items() if key not in self.members]
        lost = [brief(member) for key, member in self.members.items() if key not in found]
        parts = [f"{verb} {', '.join(sorted(some))}" for verb, some in (("gained", gained), ("lost", lost)) if some]
        return f"its members {' and '.join(parts) or 'are other objects'}"

    def _has(self, member: Any) -> bool:
        return _is_plain_member(member) and _exactly(member) in self.members

    def __repr__(self) -> str:
        return f"members == {{{', '.join(map(repr, self.members.values()))}}}"


@wraps(*READABLE)
def _iterator(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    found = None
    if source is not None:
        _guard_type(context, obj, source)
        found = live_iterator(context, obj, source)
    return _object(context, obj, source) if found is None else found


@wraps(super)
def _super(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    raise unsupported("super", "a super() that was made elsewhere")


@wraps(slice)
def _slice(context: CaptureContext, obj: slice, source: Source | None) -> Value:
    if source is not None:
        context.guard(source, GuardKind.TYPE, slice)
        start, stop, step = (context.wrap(getattr(obj, at), AttrSource(source, at)) for at in ("start", "stop", "step"))
        return SliceValue(start, stop, step, source)
    return SliceValue(context.known(obj.start), context.known(obj.stop), context.known(obj.step))


@wraps(range)
def _range(context: CaptureContext, obj: range, source: Source | None) -> Value:
    if source is not None:
        context.guard(source, GuardKind.TYPE, range)
        parts = [AttrSource(source, part) for part in ("start", "stop", "step")]
        return range_of(context, [context.wrap(getattr(obj, part.name), part) for part in parts], source)
    return RangeValue(obj)


# ---- objects ----


@wraps(nn.Module)
def _nn_module(context: CaptureContext, obj: nn.Module, source: Source | None) -> Value:
    if isinstance(obj, torch.jit.ScriptModule):
        raise unsupported("script-module", "a torch.jit.ScriptModule")
    _guard_type(context, obj, source)
    return ModuleValue(type(obj), obj, source)


@wraps(BaseException)
def _exception(context: CaptureContext, obj: BaseException, source: Source | None) -> Value:
    if source is None:
        return ExceptionValue(type(obj), [context.known(arg) for arg in obj.args])
    _guard_type(context, obj, source)

    def args() -> list[Value]:
        return list(context.iterate(context.wrap(obj.args, AttrSource(source, "args"))))  # type: ignore[arg-type]

    return ExceptionValue(type(obj), args, source, obj)


@wraps(re.Match)
def _match(context: CaptureContext, obj: re.Match[Any], source: Source | None) -> Value:
    if not isinstance(source, ConstantSource):
        raise unsupported("unguardable", "a match of a regular expression, which each call makes anew")
    return _object(context, obj, source)


@wraps(object)
def _object(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    if context.is_immutable(obj) or (module_of(type(obj)) == "numpy" and class_name(type(obj)) == "ufunc"):
        _guard_identity(context, obj, source)
        return BuiltinValue(obj, source) if callable(obj) else ConstantValue(obj)
    _guard_type(context, obj, source)
    return ObjectValue(type(obj), obj, source)
