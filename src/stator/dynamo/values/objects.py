"""Instances of ordinary classes, from outside of the frame or made in it: Python's attribute lookup over guarded
instance dictionaries. Containers and modules derive from ObjectValue.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.base.registry import Registry
from stator.dynamo.guards.guard import GuardKind, Lookup
from stator.dynamo.guards.source import AttrSource, InstanceDictSource, ItemSource, Source
from stator.dynamo.host.hook import is_skipped
from stator.dynamo.host.naming import class_dict, class_name, qualified_name, resolution_order
from stator.dynamo.host.native_status import native
from stator.dynamo.host.weak_references import can_be_referred_to, own_key
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe, call_recipe

from .base import CaptureContext, Handler, Lazy, Raised, Reconstructor, Value, unsupported
from .constants import ConstantValue

MISSING: Any = object()
# Methods in C, by their descriptor in the class: `handler(context, owner, *args, **kwargs)`.
c_methods: Registry[Any, Handler] = Registry("method in C")
# Functions of extensions made by Cython, by (module, qualified name): `handler(context, *args, **kwargs)`.
cython_functions: Registry[tuple[str, str], Handler] = Registry("function of Cython")
CYTHON_FUNCTION = "cython_function_or_method"  # each extension has a type of that name
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_PLAIN_GETATTRIBUTE = object.__getattribute__
# C classes whose instances look attributes up in other places than their dictionary
_OWN_ATTRIBUTES = (weakref.ProxyType, weakref.CallableProxyType, threading.local)


def lookup_in_class(cls: type, name: str) -> Any:
    """The first attribute of that name along the method resolution order, unbound; or MISSING."""
    order = resolution_order(cls)
    if order is None:
        raise unsupported("attribute", f"a class without a method resolution order yet: {class_name(cls)}")
    if not native.has_names_only(cls):
        raise unsupported("attribute", f"a class whose dictionary has keys other than strings: {class_name(cls)}")
    for base in order:
        found = class_dict(base).get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def owner_in_class(cls: type, name: str) -> type | None:
    for base in resolution_order(cls):
        if name in class_dict(base):
            return base
    return None


def lookup_record(cls: type, name: str, found: Any) -> Lookup:
    """The guarded lookup whose result is `found`. The guard compares descriptors; of other values, the owning class."""
    if found is MISSING:
        return Lookup(name)
    is_descriptor = hasattr(type(found), "__get__")
    return Lookup(name, found) if is_descriptor else Lookup(name, owner=owner_in_class(cls, name))


class ObjectValue(Value):
    """An instance of `cls`. `obj` is the real object; None for an object made in the frame.

    `attributes` holds the instance attributes that the frame has read or written; MISSING marks a deleted attribute.
    """

    __slots__ = ("absent", "attributes", "cls", "dict_source", "mutated", "obj", "real_dict")

    def __init__(self, cls: type, obj: Any = None, source: Source | None = None) -> None:
        self.source = source
        self.cls = cls
        self.obj = obj
        self.attributes: dict[str, Any] | None = None
        self.absent: set[str] | None = None
        self.mutated = False
        self.real_dict: dict[str, Any] | None = None
        self.dict_source: Source | None = None

    # -- facts --
    def real(self) -> Any:
        if self.obj is None:
            return super().real()
        return self.obj

    def key(self, context: CaptureContext) -> Any:
        hasher = context.class_lookup(self.cls, "__hash__")
        if hasher is None:
            raise context.raised(TypeError, f"unhashable type: '{class_name(self.cls)}'")
        compare = context.class_lookup(self.cls, "__eq__")
        if is_generated(hasher) and is_generated(compare):
            return self._twin(context)
        by_itself = hasher is enum.Enum.__hash__ and compare is object.__eq__
        if type(hasher) is FunctionType and not by_itself:
            raise unsupported("unhashable-key", f"{self.describe(context)}, whose class defines __hash__, as a key")
        if self.obj is None:
            return IdentityKey(self)
        context.guards.identity_once(self)
        return self.obj

    def _twin(self, context: CaptureContext) -> Any:
        """An equal object of a dataclass whose fields are constants: the key of each object that equals it."""
        twin = object.__new__(self.cls) if self.cls.__new__ is object.__new__ else None
        plain = can_be_referred_to(twin) and not hasattr(self.cls, "__del__") and dataclasses.is_dataclass(self.cls)
        if not plain or any(field.compare and field.hash is False for field in dataclasses.fields(self.cls)):
            raise unsupported("unhashable-key", f"{self.describe(context)} as a key")
        names = [field.name for field in dataclasses.fields(self.cls) if field.compare or field.hash]
        for name in names:
            value = context.realized(self.get_attr(context, name))
            part = value.key(context) if type(value) is ObjectValue else context.constant_of(value, "part of a key")
            if isinstance(part, IdentityKey):
                raise unsupported("unhashable-key", f"{self.describe(context)}, which holds a new object, as a key")
            object.__setattr__(twin, name, part)
        context.run_real(hash, (twin,))
        return own_key(twin, names)

    # -- instance dictionary --
    def instance_dict(self) -> dict[str, Any] | None:
        """The instance dictionary of the real object, or None."""
        if self.real_dict is None and self.obj is not None:
            try:
                real = _PLAIN_GETATTRIBUTE(self.obj, "__dict__")
            except AttributeError:
                if type(self.obj).__dictoffset__:
                    raise unsupported("attribute", f"attributes of {class_name(self.cls)}, which hides them") from None
                return None
            if not all(type(key) is str for key in real) and any(map(runs_code_when_compared, real)):
                raise unsupported("attribute", "attributes beside keys whose comparison runs code of the program")
            self.real_dict = real
            if self.source is not None:
                self.dict_source = InstanceDictSource(self.source)
        return self.real_dict

    def _own_dict(self, context: CaptureContext) -> dict[str, Any] | None:
        """`instance_dict`, marked as read by attribute: capture may also meet the dictionary as a value of its own."""
        real = self.instance_dict()
        if real is not None and id(real) not in context.instance_dicts:
            meet_attributes(context, real)
        return real

    def own_attribute(self, context: CaptureContext, name: str) -> Value | None:
        """Attribute `name` of the instance itself, or None. A guard holds the answer."""
        if self.attributes is None:
            self.attributes = {}
        found = self.attributes.get(name)
        if found is None:
            real = self._own_dict(context)
            if real is None:
                return None
            if name in real:
                found = context.wrap(real[name], ItemSource(self.dict_source, name))  # type: ignore[arg-type]
                self.attributes[name] = found
            else:
                if self.absent is None:
                    self.absent = set()
                if name not in self.absent:
                    self.absent.add(name)
                    if self.dict_source is not None:
                        context.guard(self.dict_source, GuardKind.NOT_IN, name)
                return None
        elif found is MISSING:
            return None
        elif type(found) is Lazy:
            found = self.attributes[name] = found.realize(context)
        return found

    def set_own(self, context: CaptureContext, name: str, value: Any) -> None:
        real = self._own_dict(context)
        if real is not None:
            write_attributes(context, real)
        if self.attributes is None:
            self.attributes = {}
        if value is not MISSING and self.attributes.get(name) is MISSING:
            if real is not None and name in real:  # the attribute moves to the end: one write cannot replay that
                raise unsupported("attribute-write", f"writing {name!r}, which was deleted before")
            del self.attributes[name]
        if self.source is not None:
            context.mutations.replace(self, name, self.attributes.get(name), value)
        self.attributes[name] = value
        context.mutations.attribute(self, name)

    def own_names(self, context: CaptureContext) -> list[str]:
        """Names in the instance dictionary, in order."""
        real = self._own_dict(context)
        names: dict[str, None] = {}
        if real is not None:
            context.guards.keys_once(self, self.dict_source, real)
            names.update(dict.fromkeys(real))
        for name, value in (self.attributes or {}).items():
            if value is MISSING:
                names.pop(name, None)
            else:
                names[name] = None
        return list(names)

    # -- attribute access --
    def get_attr(self, context: CaptureContext, name: str) -> Value:
        cls = self.cls
        custom = context.class_lookup(cls, "__getattribute__")
        if cls is threading.local and self.obj is not None and not name.startswith("__"):
            return self._of_thread(context, name)
        if issubclass(cls, _OWN_ATTRIBUTES):
            raise unsupported("attribute", f"attribute {name!r} of {self.describe(context)}, which has its own lookup")
        if custom is not _PLAIN_GETATTRIBUTE and type(custom) is FunctionType:
            return self._fall_back(context, name, lambda: self._inline(context, custom, "__getattribute__", name))
        return self._fall_back(context, name, lambda: self.generic_get_attr(context, name))

    def _of_thread(self, context: CaptureContext, name: str) -> Value:
        """An attribute of the thread that calls; guards read it in the thread of each call."""
        if self.source is not None and not hasattr(self.obj, name):
            context.guard(self.source, GuardKind.PREDICATE, Lacks(name))
        real = context.run_real(getattr, (self.obj, name))
        return context.wrap(real, AttrSource(self.source, name))  # type: ignore[arg-type]

    def _inline(self, context: CaptureContext, function: FunctionType, method: str, name: str) -> Value:
        bound = context.class_function(self.cls, method, function)
        return bound.call(context, [self, ConstantValue(name)], {})

    def _fall_back(self, context: CaptureContext, name: str, look: Callable[[], Value]) -> Value:
        """`__getattr__`, where the ordinary lookup raises AttributeError."""
        hook = context.class_lookup(self.cls, "__getattr__")
        if hook is MISSING:
            return look()
        try:
            return look()
        except Raised as raised:
            if not issubclass(raised.value.python_type(context), AttributeError):
                raise
        return self.missing_attr(context, hook, name)

    def missing_attr(self, context: CaptureContext, hook: Any, name: str) -> Value:
        if type(hook) is FunctionType:
            return self._inline(context, hook, "__getattr__", name)
        raise unsupported("attribute", f"__getattr__ of {self.describe(context)} is not a Python function")

    def generic_get_attr(self, context: CaptureContext, name: str) -> Value:
        """object.__getattribute__."""
        in_class = context.class_lookup(self.cls, name)
        special = _SPECIAL.get(name)
        if special is not None and isinstance(in_class, types.GetSetDescriptorType | types.MemberDescriptorType):
            return special(self, context)
        if in_class is not MISSING and not type(in_class).__flags__ & _IMMUTABLE_TYPE:
            for method in ("__get__", "__set__", "__delete__"):
                context.class_lookup(type(in_class), method)  # a guard: the program may add such a method
        if in_class is not MISSING and is_data_descriptor(in_class) and hasattr(type(in_class), "__get__"):
            return self.bind(context, name, in_class)
        found = self.own_attribute(context, name)
        if found is not None:
            return found
        if in_class is not MISSING:
            return self.bind(context, name, in_class)
        raise context.raised(AttributeError, f"'{class_name(self.cls)}' object has no attribute '{name}'")

    def bind(self, context: CaptureContext, name: str, in_class: Any) -> Value:
        """A class attribute as this instance shows it."""
        return context.bind(self, self.cls, name, in_class)

    def slot(self, context: CaptureContext, name: str, descriptor: Any) -> Value:
        """A `__slots__` member or a getset of a C class."""
        held = (self.attributes or {}).get(name)
        if held is not None:
            return held  # type: ignore[no-any-return]
        if self.obj is None:
            raise unsupported("attribute", f"{name!r} of {self.describe(context)}, which is not set")
        if "saved" in name and issubclass(self.cls, torch.autograd.graph.Node):  # reading runs hooks of saved tensors
            raise unsupported("attribute", f"{name!r} of {self.describe(context)}, which hooks may unpack")
        try:
            real = context.run_real(descriptor.__get__, (self.obj, self.cls))
        except Raised as raised:
            raise unsupported("attribute", f"{name!r} of {self.describe(context)}, which cannot be read") from raised
        if self.source is None:
            return context.wrap_result(real, f"attribute {name!r}")
        return context.wrap(real, AttrSource(self.source, name))

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        custom = context.class_lookup(self.cls, "__setattr__")
        if type(custom) is FunctionType:
            bound = context.class_function(self.cls, "__setattr__", custom)
            bound.call(context, [self, ConstantValue(name), value], {})
            return
        if issubclass(self.cls, _OWN_ATTRIBUTES) or getattr(custom, "__name__", "") != "__setattr__":
            raise unsupported("attribute-write", f"attribute {name!r} of {self.describe(context)}, written in C")
        self.generic_set_attr(context, name, value)

    def generic_set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        """object.__setattr__."""
        in_class = context.class_lookup(self.cls, name)
        if in_class is not MISSING and is_data_descriptor(in_class):
            if not is_python_slot(in_class):
                set_through(context, self, self.cls, name, in_class, value)
                return
        elif not self.cls.__dictoffset__:
            raise unsupported("attribute-write", f"writing {name!r} of {self.describe(context)}, without a __dict__")
        self.set_own(context, name, value)

    def del_attr(self, context: CaptureContext, name: str) -> None:
        custom = context.class_lookup(self.cls, "__delattr__")
        if type(custom) is FunctionType:
            function = context.class_function(self.cls, "__delattr__", custom)
            function.call(context, [self, ConstantValue(name)], {})
            return
        self.generic_del_attr(context, name)

    def generic_del_attr(self, context: CaptureContext, name: str) -> None:
        """object.__delattr__."""
        in_class = context.class_lookup(self.cls, name)
        if (in_class is not MISSING and is_data_descriptor(in_class)) or not self.cls.__dictoffset__:
            raise unsupported("attribute-write", f"deleting {name!r} of {self.describe(context)}")
        if self.own_attribute(context, name) is None:
            raise context.raised(AttributeError, f"'{class_name(self.cls)}' object has no attribute '{name}'")
        self.set_own(context, name, MISSING)

    # -- operations through special methods of the class --
    def special(self, context: CaptureContext, name: str) -> Value | None:
        """The bound special method if the class defines it in Python, or None."""
        found = context.class_lookup(self.cls, name)
        if found is MISSING or found is None or isinstance(found, C_METHODS):
            if isinstance(found, C_METHODS) and found.__name__ != name:
                raise unsupported("special-method", f"{name} of {self.describe(context)} is {found.__qualname__}")
            return None
        return context.bind(self, self.cls, name, found)

    def builtin_method(self, context: CaptureContext, name: str) -> Handler | None:
        """The handler of a method that a base class in C implements."""
        in_c = (base.__dict__.get(name) for base in self.cls.__mro__)
        first = next((found for found in in_c if isinstance(found, C_METHODS)), None)
        return _OBJECT_METHODS.get(name) if first is object.__dict__.get(name) else c_methods.get(first)

    def truth(self, context: CaptureContext) -> bool:
        return context.override_truth(self, True)

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method = self.special(context, "__call__")
        if method is not None:
            context.enters_through(self, method)
            return method.call(context, args, kwargs)
        handler = cython_functions.get((getattr(self.obj, "__module__", ""), getattr(self.obj, "__qualname__", "")))
        if handler is None or class_name(self.cls) != CYTHON_FUNCTION or self.source is None:
            raise unsupported("call", f"calling {self.describe(context)}")
        context.guards.identity_once(self)
        return context.call_handler(handler, args, kwargs)

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        return self._special_call(context, "__getitem__", key)

    def set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        self._special_call(context, "__setitem__", key, value)

    def del_item(self, context: CaptureContext, key: Value) -> None:
        self._special_call(context, "__delitem__", key)

    def length(self, context: CaptureContext) -> int:
        return context.length_of(self._special_call(context, "__len__"))

    def contains(self, context: CaptureContext, item: Value) -> bool:
        if self.special(context, "__contains__") is not None:
            return context.truth(self._special_call(context, "__contains__", item))
        raise unsupported("contains", f"`in` on {self.describe(context)}, whose class has no __contains__")

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        iterator = context.iterator(self)
        while (item := context.next_item(iterator)) is not None:
            yield item

    def iterator(self, context: CaptureContext) -> Value:
        if context.class_lookup(self.cls, "__iter__") is None:
            raise context.raised(TypeError, f"'{class_name(self.cls)}' object is not iterable")
        return self._special_call(context, "__iter__")

    def _special_call(self, context: CaptureContext, name: str, *args: Value) -> Value:
        method = self.special(context, name)
        if method is None:
            raise unsupported("special-method", f"{name} of {self.describe(context)}")
        return method.call(context, list(args), {})

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return reconstructor.made_of_class(self, call_recipe(new_of_layout(self.cls), ConstantRecipe(self.cls)))


def new_of_layout(cls: type) -> Any:
    """The `__new__` of the C class that gives instances their layout."""
    return next(base.__dict__["__new__"] for base in cls.__mro__ if isinstance(base.__dict__.get("__new__"), _C_NEW))


_C_NEW = type(object.__new__)


# A program may write attributes by name, and in the instance dictionary. Neither view sees the other's writes, so such
# programs end the graph.


def meet_attributes(context: CaptureContext, real: dict[str, Any]) -> None:
    """Note the first read of an object's attributes. Raises Unsupported if the dictionary itself was changed."""
    if id(real) in context.changed_dicts:
        raise _two_views()
    context.instance_dicts[id(real)] = False


def write_attributes(context: CaptureContext, real: dict[str, Any]) -> None:
    """Note a write to an attribute. Raises Unsupported if capture has met the dictionary itself."""
    if id(real) in context.wrapped:
        raise _two_views()
    context.instance_dicts[id(real)] = True


def meet_dict(context: CaptureContext, real: Any, *, writes: bool) -> None:
    """Note that capture meets a dictionary, or writes to it. Raises Unsupported if attribute accesses conflict."""
    written = context.instance_dicts.get(id(real))
    if written or (writes and written is not None):
        raise _two_views()


def _two_views() -> Unsupported:
    return unsupported("attribute-write", "attributes that are written both by name and in the object's dictionary")


class Lacks:
    """Guard predicate: an object has no attribute of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, now: Any) -> bool:
        return not hasattr(now, self.name)

    def __repr__(self) -> str:
        return f"it has no attribute {self.name!r}"


class IdentityKey:
    """The key of an object made in the frame that Python hashes by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.value is self.value


def runs_code_when_compared(key: Any) -> bool:
    """Whether hashing or comparing this key runs code of the program. Methods of the standard library and torch,
    and those that dataclasses generate, have no side effects and always give equal results."""
    kind = type(key)
    if kind in _PLAIN_KEYS:
        return False
    if issubclass(kind, (tuple, frozenset)) and any(map(runs_code_when_compared, key)):
        return True
    if issubclass(kind, enum.Enum):
        return False
    methods = (lookup_in_class(kind, "__hash__"), lookup_in_class(kind, "__eq__"))
    return any(
        type(method) is FunctionType and not is_generated(method) and not is_skipped(method.__code__)
        for method in methods
    )


def is_generated(function: Any) -> bool:
    """Whether the standard library made this method of a dataclass or named tuple from text."""
    return type(function) is FunctionType and function.__code__.co_filename == "<string>"


_PLAIN_KEYS = frozenset((str, int, float, bool, bytes, type(None)))


def set_through(context: CaptureContext, owner: Value, cls: type, name: str, descriptor: Any, value: Value) -> None:
    """Write attribute `name` through its data descriptor in `cls`."""
    if isinstance(descriptor, property):
        if descriptor.fset is None:
            raise context.raised(AttributeError, f"property '{name}' of '{qualified_name(cls)}' object has no setter")
        function, arguments = context.class_function(cls, name, descriptor.fset), [owner, value]
    else:
        setter = context.class_lookup(type(descriptor), "__set__")
        if type(setter) is not FunctionType:
            raise unsupported("attribute-write", f"writing {name!r} of {owner.describe(context)} through a descriptor")
        function = context.class_function(type(descriptor), "__set__", setter)
        arguments = [context.class_value(cls, name), owner, value]
    function.call(context, arguments, {})


def is_python_slot(found: Any) -> bool:
    """Whether `__slots__` of a Python class made this member."""
    return inspect.ismemberdescriptor(found) and "__slots__" in vars(found.__objclass__)


def is_data_descriptor(found: Any) -> bool:
    kind = type(found)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def is_hidden(cls: type, name: str) -> bool:
    """Whether a data descriptor of the class stands before the entry of this name in the object's `__dict__`."""
    found = inspect.getattr_static(cls, name, None)
    return is_data_descriptor(found) and not isinstance(found, _C_MEMBERS)


_C_MEMBERS = (types.MemberDescriptorType, types.GetSetDescriptorType)
C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)


def _class_of(self: ObjectValue, context: CaptureContext) -> Value:
    return context.known(self.cls)


def _dict_of(self: ObjectValue, context: CaptureContext) -> Value:
    return context.instance_dict_view(self)


_SPECIAL: dict[str, Callable[[ObjectValue, Any], Value]] = {"__class__": _class_of, "__dict__": _dict_of}


# ---- methods of `object`, which programs call e.g. through super() ----


def _object_setattr(context: CaptureContext, self: ObjectValue, name: Value, value: Value) -> Value:
    self.generic_set_attr(context, context.constant_of(name, "an attribute's name"), value)
    return ConstantValue(None)


def _object_delattr(context: CaptureContext, self: ObjectValue, name: Value) -> Value:
    self.generic_del_attr(context, context.constant_of(name, "an attribute's name"))
    return ConstantValue(None)


def _object_getattribute(context: CaptureContext, self: ObjectValue, name: Value) -> Value:
    return self.generic_get_attr(context, context.constant_of(name, "an attribute's name"))


def _object_init(context: CaptureContext, self: ObjectValue, *args: Value, **kwargs: Value) -> Value:
    if args or kwargs:
        raise unsupported("call-builtin", "object.__init__ with arguments")
    return ConstantValue(None)


def _object_eq(context: CaptureContext, self: ObjectValue, other: Value) -> Value:
    return ConstantValue(True if self is other else NotImplemented)


def _object_ne(context: CaptureContext, self: ObjectValue, other: Value) -> Value:
    """The negated result of the class's `__eq__`."""
    method = self.special(context, "__eq__")
    equal = _object_eq(context, self, other) if method is None else method.call(context, [other], {})
    if isinstance(equal, ConstantValue) and equal.value is NotImplemented:
        return equal
    return ConstantValue(not context.truth(equal))


_OBJECT_METHODS: dict[str, Handler] = {
    "__setattr__": _object_setattr,
    "__delattr__": _object_delattr,
    "__getattribute__": _object_getattribute,
    "__init__": _object_init,
    "__eq__": _object_eq,
    "__ne__": _object_ne,
}
