"""Classes that captured code makes: class statements, `type(name, bases, members)`, dataclasses, named tuples and
enumerations. What is known of them, and how they are made again when the program runs: values/made_classes.py.
"""

from __future__ import annotations

import _abc
import builtins
import collections
import dataclasses
import enum
import functools
import types
import typing
from typing import TYPE_CHECKING, Any

from torch.autograd.function import FunctionMeta

from ..calling import calls
from ..class_building import (
    functional_enumeration,
    hook_of,
    named_tuple,
    new_class,
    new_enumeration,
    statement_of_typing,
    typed_named_tuple,
    with_nodes,
)
from ..frame import Frame
from ..naming import class_name, makes_plain_classes
from ..observers import observer_in
from ..program import program_of
from ..values.base import NotConstant, Raised, Value, unsupported
from ..values.cells import CellValue
from ..values.classes import ClassValue, SuperValue, is_replaced
from ..values.constants import ConstantValue
from ..values.functions import BuiltinValue, FunctionValue
from ..values.made_classes import MadeClass, StandInValue, Undecorated
from ..values.mappings import DictValue
from ..values.objects import MISSING, ObjectValue, lookup_in_class
from ..values.sequences import ListValue, TupleValue

if TYPE_CHECKING:
    from ..tracer import Tracer

_NEW = type.__new__


# ---- class statements ----


@calls(builtins.__build_class__)
def _build_class(tracer: Tracer, body: Value, name: Value, *given: Value, **named: Value) -> Value:
    if not isinstance(body, FunctionValue):
        raise unsupported("class-definition", "the body of a class that is no function")
    bases = _resolved(tracer, given)
    meta = _metaclass(tracer, bases, named.pop("metaclass", None))
    namespace = _prepared(tracer, meta, name, bases, named)
    cell = _run_body(tracer, body, namespace)
    if [*bases] != [*given]:
        namespace["__orig_bases__"] = TupleValue(list(given))
    if issubclass(meta.cls, enum.EnumMeta):
        return _enumeration(tracer, meta, name, bases, namespace, named)
    if meta.cls in _MADE_BY_TYPING:
        return _statement_of_typing(tracer, meta, name, bases, namespace, named)
    members = tracer.dict_of([part for key, value in namespace.items() for part in (ConstantValue(key), value)])
    made = tracer.call(meta, [name, TupleValue(bases), members], named)
    if isinstance(cell, CellValue) and isinstance(made, ClassValue) and cell.content is not made:
        raise unsupported("class-definition", "a class whose metaclass does not tell its methods of it")
    return made


def _resolved(tracer: Tracer, given: tuple[Value, ...]) -> list[Value]:
    """The bases, with what `__mro_entries__` gives in the place of what is no class."""
    bases: list[Value] = []
    for one in given:
        if isinstance(one, ClassValue):
            bases.append(one)
            continue
        known = isinstance(one, (BuiltinValue, FunctionValue))
        real: Any = tracer.real_of(one, "a base of a class") if known else None
        if getattr(real, "__module__", None) not in ("typing", "builtins", "collections.abc") and not isinstance(
            real,
            (types.GenericAlias, typing._GenericAlias),  # type: ignore[attr-defined]
        ):
            raise unsupported("class-definition", f"{one.describe(tracer)} as a base of a class")
        all_real = tuple(tracer.real_of(base, "a base of a class") for base in given)
        bases += [tracer.known(base) for base in tracer.run_real(real.__mro_entries__, (all_real,))]
    return bases


def _metaclass(tracer: Tracer, bases: list[Value], given: Value | None) -> ClassValue:
    """The most derived of those of the bases and the one that is given."""
    if given is not None and not isinstance(given, ClassValue):
        raise unsupported("class-definition", "a metaclass that is no class")
    if given is None:
        kind = type(bases[0].cls) if bases else type  # type: ignore[attr-defined]
    else:
        kind = given.cls
        if not issubclass(kind, type):
            raise unsupported("class-definition", "a metaclass that is no class of classes")
    for base in bases:
        other = type(base.cls)  # type: ignore[attr-defined]
        if issubclass(other, kind):
            kind = other
        elif not issubclass(kind, other):
            text = (
                "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the "
                "metaclasses of all its bases"
            )
            raise tracer.raised(TypeError, text)
    if given is not None and kind is given.cls:
        return given
    found = tracer.known(kind)
    assert isinstance(found, ClassValue)
    return found


def _prepared(
    tracer: Tracer, meta: ClassValue, name: Value, bases: list[Value], named: dict[str, Value]
) -> dict[str, Value]:
    found = tracer.class_lookup(meta.cls, "__prepare__")
    if isinstance(found, types.ClassMethodDescriptorType | types.BuiltinMethodType) or meta.cls in _OWN_NAMESPACE:
        return {}
    if issubclass(meta.cls, enum.EnumMeta):
        raise unsupported("class-definition", "an enumeration with a metaclass of the program's")
    given = tracer.call(tracer.get_attr(meta, "__prepare__"), [name, TupleValue(bases)], named)
    if type(given) is not DictValue or given.cls is not dict or given.source is not None:
        raise unsupported("class-definition", "a metaclass that gives a namespace of its own")
    return {tracer.constant_of(key, "a name"): value for key, value in given.items(tracer)}


_OWN_NAMESPACE = frozenset({enum.EnumMeta})


def _run_body(tracer: Tracer, body: FunctionValue, namespace: dict[str, Value]) -> Value:
    observer = observer_in(body.code, body.scope.names)
    if observer is not None or "locals" in body.code.co_names:
        raise unsupported("class-definition", "a class body that looks at its own variables")
    frame = Frame(tracer, program_of(body.code), body.scope, {}, body.cells(tracer), body.qualname)
    frame.namespace = namespace
    frame.run()
    assert frame.result is not None
    return frame.result


@calls(type)
def _type(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    if len(args) == 1 and not kwargs:
        return tracer.known(args[0].python_type(tracer))
    if len(args) != 3:
        raise tracer.raised(TypeError, "type() takes 1 or 3 arguments")
    return _type_new(tracer, tracer.known(type), *args, **kwargs)


@calls(_NEW)
def _type_new(tracer: Tracer, meta: Value, *args: Value, **kwargs: Value) -> Value:
    """type.__new__ of a name, bases and members: the hooks that it calls are followed."""
    if not isinstance(meta, ClassValue) or len(args) != 3:
        raise unsupported("class-definition", "type.__new__ with these arguments")
    name, bases, given = args
    if not isinstance(bases, TupleValue) or not isinstance(given, DictValue):
        raise unsupported("class-definition", "making a class of what is no tuple of bases and dictionary")
    kinds = [tracer.realized(base) for base in bases.items]
    if not all(isinstance(base, ClassValue) for base in kinds):
        raise unsupported("class-definition", "making a class of bases that are no classes")
    winner = _metaclass(tracer, kinds, meta)
    if winner is not meta:
        raise unsupported("class-definition", f"a class of which {class_name(winner.cls)} is the metaclass")
    if not makes_plain_classes(meta.cls):
        raise unsupported("class-definition", f"{class_name(meta.cls)} decides what a class of it looks like")
    members = {_member_name(tracer, key): tracer.realized(value) for key, value in given.items(tracer)}
    _add_module(tracer, members)
    hooked = {key: value for key, value in members.items() if _has_name_hook(tracer, value)}
    if any(_is_special(key) or is_replaced(meta.cls, key) for key in hooked):
        raise unsupported("class-definition", "what is told its name and cannot be put into the class behind that")
    cell = members.pop("__classcell__", None)
    if cell is not None and not isinstance(cell, CellValue):
        raise unsupported("class-definition", "__classcell__ that is no cell")
    real = {key: None if key in hooked else _member(tracer, key, value) for key, value in members.items()}
    real_bases = tuple(base.cls for base in kinds)  # type: ignore[attr-defined]
    _rely_on_bases(tracer, real_bases)
    text = tracer.constant_of(name, "the name of a class")
    cls = tracer.made.make(tracer, new_class, (meta.cls, text, real_bases, tuple(real), *real.values()))
    at_first = {key: ConstantValue(None) if key in hooked else value for key, value in members.items()}
    if cell is not None:
        at_first["__classcell__"] = cell
    record = MadeClass(new_class, [meta, name, TupleValue(kinds)], tracer.end_step(), at_first)
    record.late.update(hooked)
    for key, value in hooked.items():  # not before: type.__new__ would call its hook, and the program does that
        type.__setattr__(cls, key, _member(tracer, key, value))
    made = tracer.class_made(cls, record)
    if isinstance(cell, CellValue):
        cell.content = made
    for key, value in hooked.items():
        try:
            tracer.call(tracer.get_attr(value, "__set_name__"), [made, ConstantValue(key)], {})
        except Raised as raised:  # what the interpreter says of that depends on its version
            raise unsupported("class-definition", f"__set_name__ of {key}, which raises") from raised
    if hook_of(real_bases) is not None:
        tracer.call(tracer.get_attr(SuperValue(cls, made), "__init_subclass__"), [], kwargs)
    elif kwargs:
        tracer.run_real(super(cls, cls).__init_subclass__, (), dict.fromkeys(kwargs))
    return made


def _add_module(tracer: Tracer, members: dict[str, Value]) -> None:
    """`__module__` is the `__name__` that the function which calls type.__new__ sees, if there is one."""
    scope = tracer.frames[-1].globals
    if "__module__" in members:
        return
    if "__name__" not in scope.names:
        raise unsupported("class-definition", "a class made where no __name__ of the module is known")
    members["__module__"] = tracer.realized(scope.load(tracer, "__name__"))


@calls(vars(object)["__init_subclass__"])
def _object_init_subclass(tracer: Tracer, cls: Value, **kwargs: Value) -> Value:
    tracer.run_real(vars(object)["__init_subclass__"], (tracer.real_of(cls, "a class"),), dict.fromkeys(kwargs))
    return ConstantValue(None)


def _has_name_hook(tracer: Tracer, value: Value) -> bool:
    """Whether `__set_name__` of the program is to be called."""
    if not isinstance(value, ObjectValue):
        return False
    found = tracer.class_lookup(value.cls, "__set_name__")
    return found is not MISSING and found is not None


def _member_name(tracer: Tracer, key: Value) -> str:
    name = tracer.constant_of(key, "a name")
    if type(name) is not str:
        raise unsupported("class-definition", f"a member of a class under the name {key.describe(tracer)}")
    return name


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _member(tracer: Tracer, name: str, value: Value) -> Any:
    """What stands for a member of the class."""
    if _is_special(name):
        return tracer.made.stands_plainly(tracer, value)
    if isinstance(value, ObjectValue) and _is_descriptor(value.cls):
        if lookup_in_class(value.cls, "__new__") is not object.__new__ or value.cls.__basicsize__ > _WITH_DICT:
            raise unsupported("class-definition", f"{value.describe(tracer)} as a member of a class")
        return tracer.made.stands(object.__new__(value.cls), value)
    return tracer.made.stand_in(tracer, value)


def _is_descriptor(cls: type) -> bool:
    return any(lookup_in_class(cls, name) is not MISSING for name in ("__get__", "__set__", "__delete__"))


class _Plain:
    pass


_WITH_DICT = _Plain.__basicsize__ + 64  # with some slots


def _rely_on_bases(tracer: Tracer, bases: tuple[type, ...]) -> None:
    for base in bases:
        if base not in tracer.made.records:
            tracer.get_attr(tracer.known(base), "__mro__")  # which is guarded
            tracer.class_lookup(base, "__init_subclass__")
            tracer.class_lookup(base, "__slots__")


@calls(type.__init__)
def _type_init(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    return ConstantValue(None)


@calls(_abc._abc_init)  # type: ignore[attr-defined]
def _abc_init(tracer: Tracer, cls: Value) -> Value:
    if not isinstance(cls, ClassValue) or cls.cls not in tracer.made.records:
        raise unsupported("class-definition", "abc and a class that was there before")
    return ConstantValue(None)  # making the class included it


# ---- members that the standard library makes ----


def _register_descriptor(kind: Any) -> None:
    def handler(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        return tracer.made.standing_call(tracer, kind, list(args), kwargs)

    calls(kind)(handler)


for _kind in (property, staticmethod, classmethod, functools.cached_property):
    _register_descriptor(_kind)


@calls(dataclasses.field)
def _field(tracer: Tracer, **kwargs: Value) -> Value:
    default = kwargs.get("default")
    if default is not None and lookup_in_class(default.python_type(tracer), "__set_name__") is not MISSING:
        raise unsupported("class-definition", "a field of a dataclass whose default has __set_name__")
    return tracer.made.standing_call(tracer, dataclasses.field, [], kwargs)


# ---- decorators that change classes by real code ----


@calls(dataclasses._process_class)  # type: ignore[attr-defined]
def _process_class(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    for arg in (*args, *kwargs.values()):
        tracer.constant_of(arg, "an option of dataclass()")
    return _decorated(tracer, dataclasses._process_class, cls, list(args), kwargs)  # type: ignore[attr-defined]


@calls(functools.total_ordering)
def _total_ordering(tracer: Tracer, cls: Value) -> Value:
    return _decorated(tracer, functools.total_ordering, cls, [], {})


def _decorated(tracer: Tracer, decorator: Any, cls: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A decorator of the standard library that looks at the class and puts functions into it."""
    name = decorator.__name__.strip("_")
    if not isinstance(cls, ClassValue) or cls.cls not in tracer.made.records:
        raise unsupported("class-definition", f"{name}() of a class that was there before")
    record = tracer.made.records[cls.cls]
    if record.late or hook_of(cls.cls.__bases__) is not None:
        raise unsupported("class-definition", f"{name}() of a class with hooks, or that was changed")
    if any(type(base).__setattr__ is not type.__setattr__ for base in cls.cls.__mro__):
        raise unsupported("class-definition", f"{name}() of a class that writes attributes in its own way")
    named = {key: arg.constant() for key, arg in kwargs.items()}
    try:
        made = tracer.made.make(tracer, decorator, (cls.cls, *(arg.constant() for arg in args)), named)
    except Raised as raised:  # it may tell of what only stands for the program's values
        raise unsupported("class-definition", f"{name}(), which raises") from raised
    new = MadeClass(decorator, [Undecorated(cls.cls, record), *args], record.made_at, None, kwargs)
    if made is cls.cls:
        tracer.made.records[made] = new
        tracer.made.adopt(tracer, made)
        return cls
    for cell in _class_cells(record):
        raise unsupported("class-definition", f"{cell}: a dataclass with slots whose methods refer to it")
    tracer.made.replaced.add(cls.cls)
    return tracer.class_made(made, new)


def _class_cells(record: MadeClass) -> list[str]:
    return ["super()"] if "__classcell__" in (record.members or {}) else []


@calls(FunctionMeta.__init__)
def _function_meta_init(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    """What torch.autograd.Function does with its subclasses: each gets a class of nodes, and that a number."""
    if not isinstance(cls, ClassValue) or cls.cls not in tracer.made.records or kwargs:
        raise unsupported("class-definition", "a class of functions that was there before")
    record = tracer.made.records[cls.cls]
    tracer.run_real(with_nodes, (cls.cls,))
    tracer.made.records[cls.cls] = MadeClass(with_nodes, [Undecorated(cls.cls, record)], record.made_at)
    nodes = cls.cls._backward_cls  # type: ignore[attr-defined]
    tracer.made.unlist(nodes)
    tracer.class_made(nodes, MadeClass(getattr, [cls, ConstantValue("_backward_cls")], record.made_at))
    return ConstantValue(None)


# ---- named tuples and enumerations ----


def _plain(tracer: Tracer, value: Value) -> Any:
    """A constant, or a list, tuple or dictionary of such."""
    value = tracer.realized(value)
    if isinstance(value, ListValue) and value.cls is list:
        return [_plain(tracer, item) for item in tracer.iterate(value)]
    if isinstance(value, TupleValue) and value.cls is tuple:
        return tuple(_plain(tracer, item) for item in tracer.iterate(value))
    if isinstance(value, DictValue) and value.cls is dict:
        return {_plain(tracer, key): _plain(tracer, item) for key, item in value.items(tracer)}
    try:
        return value.constant()
    except NotConstant:
        raise unsupported("class-definition", f"{value.describe(tracer)} as a part of a class") from None


def _made_of_constants(
    tracer: Tracer, make: Any, args: list[Value], kwargs: dict[str, Value], outside: str = ""
) -> Value:
    """A class that a function of the standard library makes of constants, in the module that calls it."""
    module = ConstantValue(_calling_module(tracer, outside))
    real = tracer.made.make(
        tracer,
        make,
        (module.value, *(_plain(tracer, arg) for arg in args)),
        {k: _plain(tracer, v) for k, v in kwargs.items()},
    )
    return tracer.class_made(real, MadeClass(make, [module, *args], tracer.end_step(), None, kwargs))


def _calling_module(tracer: Tracer, outside: str) -> str:
    for frame in reversed(tracer.frames):
        name = frame.globals.names.get("__name__", "__main__")
        if name != outside:
            return name  # type: ignore[no-any-return]
    raise unsupported("class-definition", f"{outside} makes a class for itself")


@calls(collections.namedtuple)
def _namedtuple(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    return _made_of_constants(tracer, named_tuple, list(args), kwargs)


@calls(typing.NamedTuple)
def _typing_named_tuple(tracer: Tracer, name: Value, fields: Value) -> Value:
    return _made_of_constants(tracer, typed_named_tuple, [name, fields], {})


_MADE_BY_TYPING = frozenset({typing.NamedTupleMeta, typing._TypedDictMeta})  # type: ignore[attr-defined]


def _statement_of_typing(
    tracer: Tracer,
    meta: ClassValue,
    name: Value,
    bases: list[Value],
    namespace: dict[str, Value],
    named: dict[str, Value],
) -> Value:
    if named or any(_has_name_hook(tracer, value) for value in namespace.values()):
        raise unsupported("class-definition", "a named tuple or typed dictionary with arguments or hooks")
    real = {key: _member(tracer, key, tracer.realized(value)) for key, value in namespace.items()}
    cell = real.pop("__classcell__", None)
    if cell is not None:
        raise unsupported("class-definition", "a named tuple or typed dictionary with super()")
    real_bases = tuple(tracer.real_of(base, "a base of a class") for base in bases)
    text = tracer.constant_of(name, "the name of a class")
    arguments = (meta.cls, text, real_bases, tuple(real), *real.values())
    cls = tracer.made.make(tracer, statement_of_typing, arguments)
    record = MadeClass(statement_of_typing, [meta, name, TupleValue(bases)], tracer.end_step(), dict(namespace))
    return tracer.class_made(cls, record)


def _enumeration(
    tracer: Tracer,
    meta: ClassValue,
    name: Value,
    bases: list[Value],
    namespace: dict[str, Value],
    named: dict[str, Value],
) -> Value:
    own = [base.cls for base in bases]  # type: ignore[attr-defined]
    plain = all(base.__module__ in ("enum", "builtins") for base in own)
    runs = not _RUN_WHEN_MADE.isdisjoint(namespace) or any(
        _has_name_hook(tracer, tracer.realized(one)) for one in namespace.values()
    )
    if named or not plain or meta.cls is not enum.EnumMeta or runs:
        raise unsupported("class-definition", "an enumeration that runs code of the program while it is made")
    real: dict[str, Any] = {}
    members: dict[str, Value] = {}
    for key, value in namespace.items():
        value = tracer.realized(value)
        members[key] = value
        real[key] = _of_enumeration(tracer, key, value)
    text = tracer.constant_of(name, "the name of a class")
    arguments = (meta.cls, text, tuple(own), tuple(real), *real.values())
    cls = tracer.made.make(tracer, new_enumeration, arguments)
    record = MadeClass(new_enumeration, [meta, name, TupleValue(bases)], tracer.end_step(), members)
    return tracer.class_made(cls, record)


def _of_enumeration(tracer: Tracer, name: str, value: Value) -> Any:
    if isinstance(value, (FunctionValue, StandInValue)) or _is_special(name):
        return _member(tracer, name, value)
    return _plain(tracer, value)


_RUN_WHEN_MADE = frozenset(
    {"__new__", "__init__", "_generate_next_value_", "_missing_", "__init_subclass__", "__classcell__", "__set_name__"}
    | {"_ignore_", "_order_", "__eq__", "__hash__", "__getattribute__", "__setattr__"}
)


@calls(enum.auto)
def _auto(tracer: Tracer) -> Value:
    return tracer.made.standing_call(tracer, enum.auto, [], {})


@calls(enum.Flag._missing_.__func__)  # type: ignore[attr-defined]
def _flags_together(tracer: Tracer, cls: Value, value: Value) -> Value:
    """Members that are not named are made, and kept, by the class."""
    if not isinstance(cls, ClassValue) or cls.cls not in tracer.made.records:
        function = tracer.known(enum.Flag._missing_.__func__)  # type: ignore[attr-defined]
        return tracer.inline(function, [cls, value], {})  # type: ignore[arg-type]
    return tracer.known(tracer.run_real(cls.cls._missing_, (tracer.constant_of(value, "a value"),)))  # type: ignore[attr-defined]


@calls(enum.EnumMeta._create_)  # type: ignore[attr-defined]
def _create_enumeration(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    """The functional way: `Enum(name, names)`."""
    if not isinstance(cls, ClassValue) or cls.cls.__module__ != "enum":
        raise unsupported("class-definition", "an enumeration made of a class of the program's")
    given = {name: value for name, value in kwargs.items() if not tracer.is_none(value)}
    if "class_name" in given:
        args = (given.pop("class_name"), *args)
    return _made_of_constants(tracer, functional_enumeration, [cls, *args], given, "enum")
