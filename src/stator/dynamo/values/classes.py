"""Classes as values, and super()."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..guard import GuardKind
from ..naming import OF_C, class_name, full_name, qualified_name
from ..recipe import CallRecipe, Constant, Load, Recipe
from ..source import AttrSource, ConstantSource, InstanceDictSource, Source
from .base import Raised, Value, unsupported
from .constants import ConstantValue
from .functions import BoundMethodValue, BuiltinMethodValue, BuiltinValue
from .objects import C_METHODS, MISSING, is_data_descriptor, lookup_in_class

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_FACTS = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})

_CHANGEABLE = ("__dict__", "__annotations__", "__doc__", "__abstractmethods__")


class ClassValue(Value):
    """A class; always a real one, fixed by an identity guard or by being reached from something fixed."""

    __slots__ = ("cls",)

    def __init__(self, cls: type, source: Source | None = None) -> None:
        self.source = source
        self.cls = cls

    def python_type(self, tracer: Tracer) -> type:
        return type(self.cls)

    def real(self) -> Any:
        return self.cls

    def constant(self) -> Any:
        return self.cls

    def key(self, tracer: Tracer) -> Any:
        return self.cls

    def describe(self, tracer: Tracer) -> str:
        return f"the class {full_name(self.cls)}"

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tracer.call_class(self, args, kwargs)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        """type.__getattribute__, and the metaclass's `__getattr__` behind it."""
        kind = type(self.cls)
        member = vars(self.cls).get(name) if kind in OF_C else None
        if member is not None and type(member) is self.cls and tracer.is_constant_object(member):  # an enumeration
            tracer.guard(AttrSource(_as_constant(self.cls), name), GuardKind.EQUALS, member)
            return ConstantValue(member)
        if tracer.class_lookup(kind, "__getattribute__") is not type.__getattribute__:
            raise unsupported("attribute", f"{qualified_name(kind)} looks attributes of classes up in its own way")
        try:
            return self._plain_attr(tracer, name)
        except Raised as raised:
            hook = tracer.class_lookup(kind, "__getattr__")
            if not isinstance(hook, FunctionType) or not issubclass(raised.value.python_type(tracer), AttributeError):
                raise
        if isinstance(self.cls, enum.EnumMeta):
            return tracer.known(tracer.run_real(getattr, (self.cls, name)))
        return tracer.class_function(kind, "__getattr__", hook).call(tracer, [self, ConstantValue(name)], {})

    def _plain_attr(self, tracer: Tracer, name: str) -> Value:
        cls = self.cls
        if name in _FACTS and not is_replaced(type(cls), name) and isinstance(getattr(cls, name), str | None):
            if is_immutable_class(cls):
                return ConstantValue(getattr(cls, name))
            return tracer.wrap(getattr(cls, name), AttrSource(_as_constant(cls), name))
        if name in ("__mro__", "__bases__") and not is_replaced(type(cls), name):
            found = getattr(cls, name)
            if not is_immutable_class(cls):
                tracer.guard(AttrSource(_as_constant(cls), name), GuardKind.IS, found)
            return tracer.known(found)
        if name == "__class__" and not is_replaced(type(cls), name):
            return tracer.known(type(cls))
        if isinstance(cls, enum.EnumMeta) and name != "__dict__":
            return self._enum_attr(tracer, name)
        in_metaclass = tracer.class_lookup(type(cls), name)
        reads = in_metaclass is not MISSING and hasattr(type(in_metaclass), "__get__")
        if reads and is_data_descriptor(in_metaclass):
            return self._through_metaclass(tracer, name, in_metaclass)
        written = tracer.classes.written(cls, name)
        if written is not None:
            return written
        found = tracer.class_lookup(cls, name)
        if found is not MISSING:
            return tracer.bind_to_class(self, name, found)
        if in_metaclass is MISSING:
            raise tracer.raised(AttributeError, f"type object '{class_name(cls)}' has no attribute '{name}'")
        return self._through_metaclass(tracer, name, in_metaclass)

    def _enum_attr(self, tracer: Tracer, name: str) -> Value:
        real = tracer.run_real(getattr, (self.cls, name))
        if isinstance(real, self.cls):
            return tracer.known(real)
        found = tracer.class_lookup(self.cls, name)
        if isinstance(real, types.MappingProxyType):
            return tracer.wrap(real, AttrSource(_as_constant(self.cls), name))
        return tracer.known(real) if found is MISSING else tracer.bind_to_class(self, name, found)

    def _members(self, tracer: Tracer) -> list[Any]:
        """Those of an enumeration, which is still being made while its methods make members."""
        members: list[Any] = list(self.cls)  # type: ignore[call-overload]
        tracer.guard(AttrSource(_as_constant(self.cls), "_member_map_"), GuardKind.LENGTH, len(self.cls.__members__))  # type: ignore[attr-defined]
        return members

    def _through_metaclass(self, tracer: Tracer, name: str, found: Any) -> Value:
        if not isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType, *C_METHODS)):
            return tracer.bind(self, type(self.cls), name, found)
        if name in _CHANGEABLE and not is_immutable_class(self.cls):
            raise unsupported("attribute", f"{name} of {self.describe(tracer)}, which may change")
        return tracer.known(tracer.run_real(getattr, (self.cls, name)))

    def _own_method(self, tracer: Tracer, name: str) -> Value | None:
        """A special method that the metaclass defines in Python, bound to this class."""
        found = MISSING if isinstance(self.cls, enum.EnumMeta) else tracer.class_lookup(type(self.cls), name)
        if found is MISSING or found is None or isinstance(found, C_METHODS):
            return None
        return tracer.bind(self, type(self.cls), name, found)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        """type.__setattr__ of plain data: no function and nothing else that binds to instances."""
        cls, kind = self.cls, type(self.cls)
        special = name.startswith("__") and name.endswith("__")
        if special or is_immutable_class(cls) or isinstance(cls, enum.EnumMeta):
            raise unsupported("attribute-write", f"writing attribute {name!r} of {self.describe(tracer)}")
        own_way = tracer.class_lookup(kind, "__setattr__") is not type.__setattr__
        in_metaclass = tracer.class_lookup(kind, name)
        if own_way or (in_metaclass is not MISSING and is_data_descriptor(in_metaclass)):
            raise unsupported("attribute-write", f"{qualified_name(kind)} writes attributes of classes in its own way")
        if lookup_in_class(value.python_type(tracer), "__get__") is not MISSING:
            raise unsupported("attribute-write", f"{value.describe(tracer)} as attribute {name!r} of a class")
        tracer.classes.write(cls, name, value)
        tracer.mutations.class_attribute(self, name)

    def truth(self, tracer: Tracer) -> bool:
        for name in ("__bool__", "__len__"):
            method = self._own_method(tracer, name)
            if method is not None:
                return tracer.truth(method.call(tracer, [], {}))
        return True

    def iterate(self, tracer: Tracer) -> Iterator[Value]:
        if isinstance(self.cls, enum.EnumMeta):
            return iter([tracer.known(member) for member in self._members(tracer)])
        method = self._own_method(tracer, "__iter__")
        if method is not None:
            return tracer.iterate(method.call(tracer, [], {}))
        return super().iterate(tracer)

    def length(self, tracer: Tracer) -> int:
        if isinstance(self.cls, enum.EnumMeta):
            return len(self._members(tracer))
        method = self._own_method(tracer, "__len__")
        if method is not None:
            return tracer.length_of(method.call(tracer, [], {}))
        return tracer.run_real(len, (self.cls,))

    def contains(self, tracer: Tracer, item: Value) -> bool:
        if isinstance(self.cls, enum.EnumMeta):
            real = getattr(item, "obj", None)  # of a member that is no constant
            if not issubclass(type(real), enum.Enum):
                real = tracer.constant_of(item, "operand of `in`")
            return tracer.run_real(lambda cls, it: it in cls, (self.cls, real))
        method = self._own_method(tracer, "__contains__")
        if method is not None:
            return tracer.truth(method.call(tracer, [item], {}))
        return super().contains(tracer, item)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if isinstance(self.cls, enum.EnumMeta):
            return tracer.known(tracer.run_real(lambda cls, at: cls[at], (self.cls, tracer.constant_of(key, "a name"))))
        method = self._own_method(tracer, "__getitem__")
        if method is None:
            own = tracer.class_lookup(self.cls, "__class_getitem__")
            if isinstance(getattr(own, "__func__", None), FunctionType) and own.__func__.__module__ != "typing":
                method = tracer.get_attr(self, "__class_getitem__")
        if method is not None:
            return method.call(tracer, [key], {})
        return tracer.known(
            tracer.run_real(lambda cls, at: cls[at], (self.cls, tracer.real_of(key, "a type argument")))
        )

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is None or isinstance(self.source, ConstantSource) or "<locals>" not in qualified_name(self.cls):
            return Constant(self.cls)
        return Load(self.source)  # what was compiled is not to keep a class that a function has made


def _as_constant(cls: type) -> ConstantSource:
    return ConstantSource(full_name(cls), cls)


def is_immutable_class(cls: type) -> bool:
    return bool(cls.__flags__ & _IMMUTABLE)


class SuperValue(Value):
    """`super(cls, owner)`: attributes found behind `cls` in the resolution order, bound to `owner`."""

    __slots__ = ("cls", "owner")

    def __init__(self, cls: type, owner: Value) -> None:
        self.source = None
        self.cls = cls
        self.owner = owner

    def python_type(self, tracer: Tracer) -> type:
        return super

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return CallRecipe(
            Constant(super), [exits.recipe(ClassValue(self.cls, _as_constant(self.cls))), exits.recipe(self.owner)]
        )

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        owner = self.owner
        kind = owner.python_type(tracer)
        if isinstance(owner, ClassValue) and self.cls in (owner.cls.__mro__ or ()):
            kind = owner.cls
        order = kind.__mro__ or ()  # a class whose metaclass is still making up its order has none
        if self.cls not in order:
            raise unsupported("super", f"super() of {qualified_name(self.cls)} and {owner.describe(tracer)}")
        passed: list[type] = []
        for base in order[order.index(self.cls) + 1 :]:
            if tracer.classes.written(base, name) is not None:
                raise unsupported("super", f"{name!r}, which the captured code has set in a class")
            found = base.__dict__.get(name, MISSING)
            if found is not MISSING:
                self._rely_on_way(tracer, kind, passed, name)
                return self._bound(tracer, base, name, found, kind)
            passed.append(base)
        self._rely_on_way(tracer, kind, passed, name)
        raise tracer.raised(AttributeError, f"'super' object has no attribute '{name}'")

    def _rely_on_way(self, tracer: Tracer, kind: type, passed: list[type], name: str) -> None:
        """That the order of resolution is what it is, and that classes in between do not have the name."""
        if not is_immutable_class(kind):
            tracer.guard(AttrSource(_as_constant(kind), "__mro__"), GuardKind.IS, kind.__mro__)
        for base in passed:
            if not is_immutable_class(base):
                tracer.guard(InstanceDictSource(_as_constant(base)), GuardKind.NOT_IN, name)

    def _bound(self, tracer: Tracer, base: type, name: str, found: Any, kind: type) -> Value:
        owner = self.owner
        through_class = isinstance(owner, ClassValue) and owner.cls is kind
        if isinstance(found, FunctionType):
            function = tracer.class_function(base, name, found)
            return function if through_class else BoundMethodValue(function, owner)
        if isinstance(found, classmethod):
            target = owner if isinstance(owner, ClassValue) else tracer.known(kind)
            return tracer.bind_class_method(target, base, name, found)
        if isinstance(found, types.ClassMethodDescriptorType):
            return BuiltinValue(found.__get__(None, owner.cls if isinstance(owner, ClassValue) else kind))
        if isinstance(owner, ClassValue):
            if isinstance(found, staticmethod):  # __new__
                return tracer.known(found.__func__)
            return BuiltinValue(found) if through_class else BoundMethodValue(BuiltinValue(found), owner)
        if isinstance(found, (property, staticmethod)) or lookup_in_class(type(found), "__get__") is MISSING:
            return tracer.bind(owner, base, name, found)
        return BuiltinMethodValue(owner, name, found)


def is_replaced(kind: type, name: str) -> bool:
    """Whether a metaclass has a descriptor of its own where type has one."""
    found = lookup_in_class(kind, name)
    return is_data_descriptor(found) and found is not lookup_in_class(type, name)
