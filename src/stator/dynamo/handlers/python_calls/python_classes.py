"""Calls of type, super, object, slice and of `__new__`; how instances of classes with a built-in layout are made."""

from __future__ import annotations

import types
from collections import OrderedDict

from torch import nn

from stator.dynamo.host.naming import class_name, qualified_name
from stator.dynamo.interpreter.calling import calls, handlers, make_instance, makers, new_object
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.classes import ClassValue, SuperValue
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.sets import SetValue
from stator.dynamo.values.containers.slices import SliceValue
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.functions import BoundMethodValue
from stator.dynamo.values.modules import ModuleValue
from stator.dynamo.values.objects import ObjectValue, lookup_in_class, new_of_layout
from stator.dynamo.values.scopes import CellValue


@calls(type)
def _type(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    if len(args) != 1 or kwargs:
        raise unsupported("class-definition", "type() called to make a class")
    return context.known(args[0].python_type(context))


@calls(super)
def _super(context: CaptureContext, *args: Value) -> Value:
    if len(args) == 2:
        cls, owner = args
    elif not args:
        cls, owner = _implicit(context)
    else:
        raise unsupported("super", f"super() of {len(args)} arguments")
    if not isinstance(cls, ClassValue):
        raise unsupported("super", f"super() of {cls.describe(context)}")
    kinds = (owner.python_type(context), *([owner.cls] if isinstance(owner, ClassValue) else []))
    if not any(cls.cls in (kind.__mro__ or ()) for kind in kinds):
        raise unsupported("super", f"super() of {cls.describe(context)} and {owner.describe(context)}")
    return SuperValue(cls.cls, owner)


def _implicit(context: CaptureContext) -> tuple[Value, Value]:
    """The class and the first argument of the frame that calls `super()`."""
    frame = context.frames[-1]
    owner = cell = None
    if frame.program.code.co_argcount:
        first = frame.program.code.co_varnames[0]
        owner = frame.cells[first].content if first in frame.cells else frame.locals.get(first)
        cell = frame.cells.get("__class__")
    if owner is None or cell is None or cell.content is None:
        raise unsupported("super", "super() in a function without a first argument or a class")
    return context.realized(cell.content), context.realized(owner)


def _kind_of(context: CaptureContext, cls: Value, base: type) -> type:
    """The class of the instance that `base.__new__(cls)` makes."""
    kind = context.real_of(cls, "a class")
    if not isinstance(kind, type) or base not in (kind.__mro__ or ()) or new_of_layout(kind) is not base.__new__:
        raise unsupported("new-object", f"{class_name(base)}.__new__ of {cls.describe(context)}")
    return kind


@calls(object.__new__)
def _object_new(context: CaptureContext, cls: Value, *args: Value, **kwargs: Value) -> Value:
    if args or kwargs:
        raise unsupported("call-builtin", "object.__new__ with arguments")
    return new_object(context, _kind_of(context, cls, object), [], {})


@calls(object.__init__)
def _object_init(context: CaptureContext, owner: Value, *args: Value, **kwargs: Value) -> None:
    if args or kwargs:
        raise unsupported("call-builtin", "object.__init__ with arguments")


@calls(type.__call__)
def _type_call(context: CaptureContext, cls: Value, *args: Value, **kwargs: Value) -> Value:
    if not isinstance(cls, ClassValue):
        raise unsupported("call", f"type.__call__ of {cls.describe(context)}")
    return make_instance(context, cls, list(args), kwargs)


@calls(slice)
def _slice(context: CaptureContext, *args: Value) -> Value:
    if not 1 <= len(args) <= 3:
        raise unsupported("call-builtin", f"slice() of {len(args)} arguments")
    none = ConstantValue(None)
    if len(args) == 1:
        return SliceValue(none, args[0], none)
    return SliceValue(args[0], args[1], args[2] if len(args) > 2 else none)


@calls(tuple.__new__)
def _tuple_new(context: CaptureContext, cls: Value, items: Value | None = None) -> Value:
    kind = _kind_of(context, cls, tuple)
    return TupleValue(list(context.listed(items)) if items is not None else [], cls=kind)


# ---- instances with a built-in layout ----


@makers.register(dict, OrderedDict)
def _make_dict(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return DictValue({}, cls=kind)


@makers.register(tuple)
def _make_tuple(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs and context.class_lookup(kind, "__init__") is object.__init__:
        raise unsupported("call-builtin", f"{qualified_name(kind)}() takes no keyword arguments")
    return TupleValue(list(context.listed(args[0])) if args else [], cls=kind)


@makers.register(set, frozenset)
def _make_set(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs:
        raise unsupported("call-builtin", f"{qualified_name(kind)}() with keyword arguments")
    fills = issubclass(kind, frozenset) or context.class_lookup(kind, "__init__") is set.__init__
    if len(args) > 1 and fills:
        raise unsupported("call-builtin", f"{qualified_name(kind)}() with {len(args)} arguments")
    return SetValue.of(context, context.iterate(args[0]) if args and fills else [], kind)


@makers.register(BaseException)
def _make_exception(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if issubclass(kind, BaseExceptionGroup) or (issubclass(kind, OSError | SyntaxError) and len(args) > 1):
        raise unsupported(
            "exception", f"making an instance of {qualified_name(kind)}, whose constructor chooses the class"
        )
    if kwargs and isinstance(lookup_in_class(kind, "__init__"), types.WrapperDescriptorType):
        raise unsupported("call-builtin", f"{qualified_name(kind)}() with keyword arguments")
    return ExceptionValue(kind, list(args))


@makers.register(types.SimpleNamespace)
def _make_namespace(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        raise unsupported("call-builtin", f"{qualified_name(kind)}() with positional arguments")
    made = ObjectValue(kind)
    for name, value in kwargs.items():
        made.set_own(context, name, value)
    return made


@makers.register(int, float, str, bytes, complex)
def _make_constant(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("new-object", f"making an instance of {qualified_name(kind)}, a subclass of a number or text")


makers.add_all(
    {
        list: lambda context, kind, args, kwargs: ListValue([], cls=kind),
        nn.Module: lambda context, kind, args, kwargs: ModuleValue(kind, None, None),
    }
)


handlers.add_all(
    {
        object: lambda context: ObjectValue(object),
        types.MethodType: lambda context, function, owner: BoundMethodValue(function, owner),
        types.CellType: lambda context, content=None: CellValue(content),
        dict.__new__: lambda context, cls, *args, **kwargs: DictValue({}, cls=_kind_of(context, cls, dict)),
        list.__new__: lambda context, cls, *args, **kwargs: ListValue([], cls=_kind_of(context, cls, list)),
    }
)
