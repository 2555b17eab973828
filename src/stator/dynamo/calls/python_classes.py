"""Built-in classes when called: type, super, object, property-like things; and how instances of them come to be."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import types
import typing
from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import nn

from ..calling import calls, make_instance, makers, new_object
from ..naming import class_name, qualified_name
from ..values.base import Value, unsupported
from ..values.cells import CellValue
from ..values.classes import ClassValue, SuperValue
from ..values.constants import ConstantValue
from ..values.exceptions import ExceptionValue
from ..values.functions import BoundMethodValue
from ..values.mappings import DictValue
from ..values.modules import ModuleValue
from ..values.objects import ObjectValue, lookup_in_class, new_of_layout
from ..values.sequences import ListValue, TupleValue
from ..values.sets import SetValue
from ..values.slices import SliceValue

if TYPE_CHECKING:
    from ..tracer import Tracer


@calls(type)
def _type(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    if len(args) != 1 or kwargs:
        raise unsupported("class-definition", "type() called to make a class")
    return tracer.known(args[0].python_type(tracer))


def _making_a_class(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    raise unsupported("class-definition", "making a class in captured code")


calls(
    builtins.__build_class__,
    type.__new__,
    collections.namedtuple,
    typing.NamedTuple,
    dataclasses.make_dataclass,
    dataclasses._process_class,  # type: ignore[attr-defined]
    functools.total_ordering,
    enum.EnumMeta._create_,  # type: ignore[attr-defined]
)(_making_a_class)


@calls(super)
def _super(tracer: Tracer, *args: Value) -> Value:
    if len(args) > 2:
        raise tracer.raised(TypeError, f"super() expected at most 2 arguments, got {len(args)}")
    if len(args) == 1:
        raise unsupported("super", "super() of a class alone, which is bound later")
    if args:
        cls, owner = args
    else:
        cls, owner = _implicit(tracer)
    if not isinstance(cls, ClassValue):
        raise unsupported("super", f"super() of {cls.describe(tracer)}")
    kinds = (owner.python_type(tracer), *([owner.cls] if isinstance(owner, ClassValue) else []))
    if not any(cls.cls in (kind.__mro__ or ()) for kind in kinds):
        raise unsupported("super", f"super() of {cls.describe(tracer)} and {owner.describe(tracer)}")
    return SuperValue(cls.cls, owner)


def _implicit(tracer: Tracer) -> tuple[Value, Value]:
    """The class and the first argument of the frame that calls `super()`."""
    frame = tracer.frames[-1]
    if frame.program.code.co_argcount == 0:
        raise tracer.raised(RuntimeError, "super(): no arguments")
    first = frame.program.code.co_varnames[0]
    owner = frame.locals.get(first)
    if owner is None and first in frame.cells:
        owner = frame.cells[first].content
    if owner is None:
        raise tracer.raised(RuntimeError, "super(): arg[0] deleted")
    cell = frame.cells.get("__class__")
    if cell is None:
        raise tracer.raised(RuntimeError, "super(): __class__ cell not found")
    if cell.content is None:
        raise tracer.raised(RuntimeError, "super(): empty __class__ cell")
    return tracer.realized(cell.content), tracer.realized(owner)


@calls(object)
def _object(tracer: Tracer) -> Value:
    return ObjectValue(object)


def _kind_of(tracer: Tracer, cls: Value, base: type) -> type:
    """What `base.__new__(cls)` makes an instance of."""
    kind = tracer.real_of(cls, "a class")
    if not isinstance(kind, type) or base not in (kind.__mro__ or ()) or new_of_layout(kind) is not base.__new__:
        raise unsupported("new-object", f"{class_name(base)}.__new__ of {cls.describe(tracer)}")
    return kind


@calls(object.__new__)
def _object_new(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    if args or kwargs:
        raise unsupported("call-builtin", "object.__new__ with arguments")
    return new_object(tracer, _kind_of(tracer, cls, object), [], {})


@calls(object.__init__)
def _object_init(tracer: Tracer, owner: Value, *args: Value, **kwargs: Value) -> Value:
    if args or kwargs:
        raise unsupported("call-builtin", "object.__init__ with arguments")
    return ConstantValue(None)


@calls(type.__call__)
def _type_call(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    if not isinstance(cls, ClassValue):
        raise unsupported("call", f"type.__call__ of {cls.describe(tracer)}")
    return make_instance(tracer, cls, list(args), kwargs)


@calls(slice)
def _slice(tracer: Tracer, *args: Value) -> Value:
    none = ConstantValue(None)
    if not 1 <= len(args) <= 3:
        expected, count = ("at least 1", 0) if not args else ("at most 3", len(args))
        raise tracer.raised(TypeError, f"slice expected {expected} argument{'s' * bool(args)}, got {count}")
    if len(args) == 1:
        return SliceValue(none, args[0], none)
    return SliceValue(args[0], args[1], args[2] if len(args) > 2 else none)


@calls(types.MethodType)
def _method(tracer: Tracer, function: Value, owner: Value) -> Value:
    return BoundMethodValue(function, owner)


@calls(types.CellType)
def _cell(tracer: Tracer, content: Value | None = None) -> Value:
    return CellValue(content)


@calls(tuple.__new__)
def _tuple_new(tracer: Tracer, cls: Value, items: Value | None = None) -> Value:
    kind = _kind_of(tracer, cls, tuple)
    return TupleValue(list(tracer.listed(items)) if items is not None else [], cls=kind)


@calls(dict.__new__)
def _dict_new(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    return DictValue({}, cls=_kind_of(tracer, cls, dict))


@calls(list.__new__)
def _list_new(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    return ListValue([], cls=_kind_of(tracer, cls, list))


# ---- how an object with a built-in layout is made ----


@makers.register(dict, OrderedDict)
def _make_dict(tracer: Tracer, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return DictValue({}, cls=kind)


@makers.register(list)
def _make_list(tracer: Tracer, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue([], cls=kind)


@makers.register(tuple)
def _make_tuple(tracer: Tracer, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs and tracer.class_lookup(kind, "__init__") is object.__init__:
        raise unsupported("call-builtin", f"{qualified_name(kind)}() takes no keyword arguments")
    return TupleValue(list(tracer.listed(args[0])) if args else [], cls=kind)


@makers.register(set, frozenset)
def _make_set(tracer: Tracer, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs:
        raise unsupported("call-builtin", f"{qualified_name(kind)}() with keyword arguments")
    if len(args) > 1 and (issubclass(kind, frozenset) or tracer.class_lookup(kind, "__init__") is set.__init__):
        raise unsupported("call-builtin", f"{qualified_name(kind)}() with {len(args)} arguments")
    fills = issubclass(kind, frozenset) or tracer.class_lookup(kind, "__init__") is set.__init__
    return SetValue.of(tracer, tracer.iterate(args[0]) if args and fills else [], kind)


@makers.register(nn.Module)
def _make_module(tracer: Tracer, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ModuleValue(kind, None, None, tracer.end_step())


@makers.register(BaseException)
def _make_exception(tracer: Tracer, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if issubclass(kind, BaseExceptionGroup) or (issubclass(kind, OSError | SyntaxError) and len(args) > 1):
        raise unsupported("new-object", f"making an instance of {qualified_name(kind)}, whose constructor chooses")
    if kwargs and isinstance(lookup_in_class(kind, "__init__"), types.WrapperDescriptorType):
        named = next((parts for base, parts in _NAMED_PARTS.items() if issubclass(kind, base)), frozenset())
        if not kwargs.keys() <= named:
            raise unsupported("call-builtin", f"{qualified_name(kind)}() with keyword arguments that it does not take")
    return ExceptionValue(kind, list(args))


_NAMED_PARTS: dict[type, frozenset[str]] = {  # what some constructors take by keyword
    ImportError: frozenset(("name", "path")),
    AttributeError: frozenset(("name", "obj")),
    NameError: frozenset(("name",)),
}


@makers.register(types.SimpleNamespace)
def _make_namespace(tracer: Tracer, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        raise unsupported("call-builtin", f"{qualified_name(kind)}() with positional arguments")
    made = ObjectValue(kind)
    for name, value in kwargs.items():
        made.set_own(tracer, name, value)
    return made


@makers.register(int, float, str, bytes, complex)
def _make_constant(tracer: Tracer, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("new-object", f"making an instance of {qualified_name(kind)}, a subclass of a number or text")
