"""Classes as values, and super()."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, CallSource, ConstantSource, InstanceDictSource, Source
from stator.dynamo.host.naming import OF_C, class_name, full_name, qualified_name
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, Recipe

from .base import CaptureContext, Reconstructor, Value, unsupported
from .constants import ConstantValue
from .containers.mappings import MappingProxyValue
from .functions import BoundMethodValue, BuiltinMethodValue, BuiltinValue
from .objects import C_METHODS, MISSING, is_data_descriptor, lookup_in_class

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_FACTS = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})

_CHANGEABLE = ("__dict__", "__annotations__", "__doc__", "__abstractmethods__")


class ClassValue(Value):
    """A real class. A guard fixes its identity, or the identity of an object that refers to it."""

    __slots__ = ("cls",)

    def __init__(self, cls: type, source: Source | None = None) -> None:
        self.source = source
        self.cls = cls

    def python_type(self, context: CaptureContext) -> type:
        return type(self.cls)

    def real(self) -> Any:
        return self.cls

    def constant(self) -> Any:
        return self.cls

    def key(self, context: CaptureContext) -> Any:
        return self.cls

    def describe(self, context: CaptureContext) -> str:
        return f"the class {full_name(self.cls)}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return context.call_class(self, args, kwargs)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        """type.__getattribute__."""
        kind = type(self.cls)
        member = vars(self.cls).get(name) if kind in OF_C else None
        if member is not None and type(member) is self.cls and context.is_constant_object(member):  # an enumeration
            context.guard(AttrSource(_as_constant(self.cls), name), GuardKind.EQUALS, member)
            return ConstantValue(member)
        own_getattr = (
            not isinstance(self.cls, enum.EnumMeta) and context.class_lookup(kind, "__getattr__") is not MISSING
        )
        if own_getattr or context.class_lookup(kind, "__getattribute__") is not type.__getattribute__:
            raise unsupported("attribute", f"a class whose metaclass {qualified_name(kind)} has its own lookup")
        return self._plain_attr(context, name)

    def _plain_attr(self, context: CaptureContext, name: str) -> Value:
        cls = self.cls
        if name in _FACTS and not is_replaced(type(cls), name) and isinstance(getattr(cls, name), str | None):
            if is_immutable_class(cls):
                return ConstantValue(getattr(cls, name))
            return context.wrap(getattr(cls, name), AttrSource(_as_constant(cls), name))
        if name in ("__mro__", "__bases__") and not is_replaced(type(cls), name):
            found = getattr(cls, name)
            if not is_immutable_class(cls):
                context.guard(AttrSource(_as_constant(cls), name), GuardKind.IS, found)
            return context.known(found)
        if name == "__class__" and not is_replaced(type(cls), name):
            return context.known(type(cls))
        if isinstance(cls, enum.EnumMeta) and name != "__dict__":
            return self._enum_attr(context, name)
        in_metaclass = context.class_lookup(type(cls), name)
        reads = in_metaclass is not MISSING and hasattr(type(in_metaclass), "__get__")
        if reads and is_data_descriptor(in_metaclass):
            return self._through_metaclass(context, name, in_metaclass)
        found = context.class_lookup(cls, name)
        if found is not MISSING:
            return context.bind_to_class(self, name, found)
        if in_metaclass is MISSING:
            raise context.raised(AttributeError, f"type object '{class_name(cls)}' has no attribute '{name}'")
        return self._through_metaclass(context, name, in_metaclass)

    def _enum_attr(self, context: CaptureContext, name: str) -> Value:
        if name == "__members__" and lookup_in_class(type(self.cls), name) is vars(enum.EnumMeta)[name]:
            members = AttrSource(_as_constant(self.cls), "_member_map_")
            return MappingProxyValue(context.wrap(self.cls._member_map_, members))  # type: ignore[arg-type,attr-defined]
        real = context.run_real(getattr, (self.cls, name))
        if isinstance(real, self.cls):
            return context.known(real)
        found = context.class_lookup(self.cls, name)
        return context.known(real) if found is MISSING else context.bind_to_class(self, name, found)

    def _members(self, context: CaptureContext) -> list[Any]:
        """The members of an enumeration. A guard holds their number: its class statement may still be running."""
        members: list[Any] = list(self.cls)  # type: ignore[call-overload]
        context.guard(AttrSource(_as_constant(self.cls), "_member_map_"), GuardKind.LENGTH, len(self.cls.__members__))  # type: ignore[attr-defined]
        return members

    def _through_metaclass(self, context: CaptureContext, name: str, found: Any) -> Value:
        if not isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType, *C_METHODS)):
            return context.bind(self, type(self.cls), name, found)
        if name == "__subclasses__":
            return BuiltinMethodValue(self, name)
        if name in _CHANGEABLE and not is_immutable_class(self.cls):
            raise unsupported("attribute", f"{name} of {self.describe(context)}, which the program may change")
        return context.known(context.run_real(getattr, (self.cls, name)))

    def builtin_method(self, context: CaptureContext, name: str) -> Any:
        return _subclasses if name == "__subclasses__" else None

    def truth(self, context: CaptureContext) -> bool:
        kind = type(self.cls)
        own = any(context.class_lookup(kind, name) is not MISSING for name in ("__bool__", "__len__"))
        if own and not isinstance(self.cls, enum.EnumMeta):
            raise unsupported("special-method", f"the truth of {self.describe(context)}, which its metaclass decides")
        return True

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        if isinstance(self.cls, enum.EnumMeta):
            return iter([context.known(member) for member in self._members(context)])
        return super().iterate(context)

    def length(self, context: CaptureContext) -> int:
        if isinstance(self.cls, enum.EnumMeta):
            return len(self._members(context))
        return super().length(context)

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        if isinstance(self.cls, enum.EnumMeta):
            return context.known(
                context.run_real(lambda cls, at: cls[at], (self.cls, context.constant_of(key, "a name")))
            )
        own = context.class_lookup(self.cls, "__class_getitem__")
        if context.class_lookup(type(self.cls), "__getitem__") is not MISSING:
            raise unsupported("subscript", f"subscript of {self.describe(context)}")
        function = getattr(own, "__func__", None)
        if isinstance(function, FunctionType) and function.__module__ != "typing":
            return context.class_function(self.cls, "__class_getitem__", function).call(context, [self, key], {})
        return context.known(
            context.run_real(lambda cls, at: cls[at], (self.cls, context.real_of(key, "a type argument")))
        )

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is None or isinstance(self.source, ConstantSource) or "<locals>" not in qualified_name(self.cls):
            return ConstantRecipe(self.cls)
        return Load(self.source)  # what was compiled is not to keep a class that a function has made


def _subclasses(context: CaptureContext, cls: ClassValue) -> Value:
    kind: Any = cls.cls
    context.guard(CallSource(_subclass_keys, (_as_constant(kind),)), GuardKind.EQUALS, _subclass_keys(kind))
    found = context.tuple_of([context.known(one) for one in type.__subclasses__(kind)])
    return context.call(context.known(list), [found], {})


def _subclass_keys(kind: Any) -> tuple[tuple[int, str], ...]:
    return tuple([(id(one), qualified_name(one)) for one in type.__subclasses__(kind)])


def _as_constant(cls: type) -> ConstantSource:
    return ConstantSource(full_name(cls), cls)


def is_immutable_class(cls: type) -> bool:
    return bool(cls.__flags__ & _IMMUTABLE)


class SuperValue(Value):
    """`super(cls, owner)`: finds attributes behind `cls` in the method resolution order and binds them to `owner`."""

    __slots__ = ("cls", "owner")

    def __init__(self, cls: type, owner: Value) -> None:
        self.source = None
        self.cls = cls
        self.owner = owner

    def python_type(self, context: CaptureContext) -> type:
        return super

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return CallRecipe(
            ConstantRecipe(super),
            [reconstructor.recipe(ClassValue(self.cls, _as_constant(self.cls))), reconstructor.recipe(self.owner)],
        )

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name == "__class__":
            return context.known(super)  # as super.__getattribute__ does
        owner = self.owner
        kind = owner.python_type(context)
        if isinstance(owner, ClassValue) and self.cls in (owner.cls.__mro__ or ()):
            kind = owner.cls
        order = kind.__mro__ or ()  # None while the metaclass computes the order
        if self.cls not in order:
            raise unsupported("super", f"super() of {qualified_name(self.cls)} and {owner.describe(context)}")
        passed: list[type] = []
        for base in order[order.index(self.cls) + 1 :]:
            found = base.__dict__.get(name, MISSING)
            if found is not MISSING:
                self._guard_resolution(context, kind, passed, name)
                return self._bound(context, base, name, found, kind)
            passed.append(base)
        self._guard_resolution(context, kind, passed, name)
        raise context.raised(AttributeError, f"'super' object has no attribute '{name}'")

    def _guard_resolution(self, context: CaptureContext, kind: type, passed: list[type], name: str) -> None:
        """Guard the method resolution order, and that the classes passed over do not have the name."""
        if not is_immutable_class(kind):
            context.guard(AttrSource(_as_constant(kind), "__mro__"), GuardKind.IS, kind.__mro__)
        for base in passed:
            if not is_immutable_class(base):
                context.guard(InstanceDictSource(_as_constant(base)), GuardKind.NOT_IN, name)

    def _bound(self, context: CaptureContext, base: type, name: str, found: Any, kind: type) -> Value:
        owner = self.owner
        through_class = isinstance(owner, ClassValue) and owner.cls is kind
        if type(found) is FunctionType:
            function = context.class_function(base, name, found)
            return function if through_class else BoundMethodValue(function, owner)
        if isinstance(found, classmethod):
            target = owner if isinstance(owner, ClassValue) else context.known(kind)
            return context.bind_class_method(target, base, name, found)
        if isinstance(found, types.ClassMethodDescriptorType):
            return BuiltinValue(found.__get__(None, owner.cls if isinstance(owner, ClassValue) else kind))
        if isinstance(owner, ClassValue):
            if isinstance(found, staticmethod):  # __new__
                return context.known(found.__func__)
            return BuiltinValue(found) if through_class else BoundMethodValue(BuiltinValue(found), owner)
        if isinstance(found, (property, staticmethod)) or lookup_in_class(type(found), "__get__") is MISSING:
            return context.bind(owner, base, name, found)
        return BuiltinMethodValue(owner, name, found)


def is_replaced(kind: type, name: str) -> bool:
    """Whether a metaclass replaces the descriptor that `type` has under this name."""
    found = lookup_in_class(kind, name)
    return is_data_descriptor(found) and found is not lookup_in_class(type, name)
