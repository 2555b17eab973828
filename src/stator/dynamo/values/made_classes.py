"""Classes that captured code makes. While it is followed a real class stands for each, with real objects in it that
stand for functions and other values; none of these ever leaves the graph. Never here: what a class statement or a
decorator does (calls/class_statements.py).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from ..naming import ASKED_OF_METACLASSES, class_dict
from ..native_status import native
from ..recipe import CallRecipe, Constant, DelAttr, GetAttr, GetItem, Load, NewObject, NewTuple, Recipe
from ..source import CallSource, ConstantSource, Source
from .base import Value, cannot_rebuild, unsupported
from .classes import ClassValue, is_replaced
from .constants import ConstantValue
from .functions import BuiltinValue, FunctionValue
from .mappings import DictValue
from .objects import ObjectValue, lookup_in_class
from .sequences import ListValue, TupleValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer


@dataclass(eq=False, slots=True)
class MadeClass:
    """How a class is made when the program runs: `make` called with `arguments` and a dictionary of `members`.

    members: at first, in their order. late: what was set or (None) deleted since.
    """

    make: Callable[..., Any]
    arguments: list[Value]
    made_at: int
    members: dict[str, Value] | None = None
    keywords: dict[str, Value] = field(default_factory=dict)
    late: dict[str, Value | None] = field(default_factory=dict)


class Data:
    """Stands in the dictionary of such a class for a plain value."""

    __slots__ = ()


class UnhashableData(Data):
    """The same for one that cannot be hashed: no default of a field of a dataclass."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


class StandInValue(Value):
    """What a call of a function of the standard library gives that makes something to be put into a class, as
    `property` or `dataclasses.field`: the call is made again when the program runs."""

    __slots__ = ("args", "function", "kwargs", "stand_in")

    def __init__(self, stand_in: Any, function: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        self.source = None
        self.stand_in = stand_in
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def python_type(self, tracer: Tracer) -> type:
        return type(self.stand_in)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        found = tracer.run_real(getattr, (self.stand_in, name))
        if isinstance(self.stand_in, property) and name in _PROPERTY_PARTS:
            return PropertyPart(self, name)
        known = isinstance(found, type) or tracer.made.standing(found) is not None
        shared = isinstance(self.stand_in, dataclasses.Field) and not callable(found)  # what dataclasses keeps for all
        if not (known or shared or tracer.is_constant_object(found)) or self._has_other(name):
            return super().get_attr(tracer, name)
        return tracer.known(found)

    def _has_other(self, name: str) -> bool:
        """Whether the function behind has something else under this name than what stands for it."""
        behind = self.args[0] if self.args else None
        return isinstance(behind, FunctionValue) and type(behind.attributes.get(name, _NONE)) is not ConstantValue

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(self.stand_in, staticmethod):
            return tracer.call(self.args[0], args, kwargs)
        return super().call(tracer, args, kwargs)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        made = CallRecipe(Constant(self.function))
        exits.remember(self, made)
        made.args.extend(map(exits.recipe, self.args))
        made.kwargs.update((name, exits.recipe(value)) for name, value in self.kwargs.items())
        return made


_NONE = ConstantValue(None)
_PROPERTY_PARTS = {"getter": 0, "setter": 1, "deleter": 2}


class PropertyPart(Value):
    """`made.setter` and its like."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: StandInValue, name: str) -> None:
        self.source = None
        self.owner = owner
        self.name = name

    def python_type(self, tracer: Tracer) -> type:
        return types.BuiltinMethodType

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 1 or kwargs or self.owner.kwargs or len(self.owner.args) > 3:
            raise unsupported("class-definition", f"property.{self.name} with these arguments")
        parts = [*self.owner.args, *[ConstantValue(None)] * (3 - len(self.owner.args))]
        parts[_PROPERTY_PARTS[self.name]] = args[0]
        return tracer.made.standing_call(tracer, property, parts, {})


class MemberFunction(FunctionValue):
    """A function that the standard library wrote for such a class: `__init__` of a dataclass."""

    __slots__ = ("entry", "of", "part")

    def __init__(self, tracer: Tracer, fn: FunctionType, of: type, key: str, part: str | None) -> None:
        scope = tracer.scope_of(fn.__globals__, None, fn.__builtins__)  # type: ignore[attr-defined]
        super().__init__(fn, None, fn.__code__, scope)
        self.of, self.entry, self.part = of, key, part

    def recipe(self, exits: ExitBuilder) -> Recipe:
        names = CallRecipe(Constant(vars), [exits.class_recipe(self.of)])
        member = GetItem(names, Constant(self.entry))
        return member if self.part is None else GetAttr(member, self.part)


class MadeClasses:
    """Those of one capture, and what stands for what in them."""

    def __init__(self) -> None:
        self.records: dict[type, MadeClass] = {}
        self.replaced: set[type] = set()  # by another one, of which the first is a part
        self._standing: dict[int, tuple[Any, Value]] = {}

    # ---- stand-ins ----

    def standing(self, obj: Any) -> Value | None:
        """What this real object stands for."""
        found = self._standing.get(id(obj))
        return None if found is None else found[1]

    def stands(self, obj: Any, value: Value) -> Any:
        self._standing[id(obj)] = obj, value
        return obj

    def standing_call(self, tracer: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value]) -> StandInValue:
        """`function(*args, **kwargs)`, which puts its arguments into an object and does nothing else."""
        real_args = [self.stand_in(tracer, arg) for arg in args]
        real_kwargs = {name: self.stand_in(tracer, arg) for name, arg in kwargs.items()}
        stand_in = tracer.run_real(function, tuple(real_args), real_kwargs)
        made = StandInValue(stand_in, function, args, kwargs)
        for arg in map(tracer.realized, (*args, *kwargs.values())):
            if isinstance(arg, FunctionValue):
                arg.copied = True
        self.stands(stand_in, made)
        return made

    def stand_in(self, tracer: Tracer, value: Value) -> Any:
        """The real object that stands for a value of the program's in a class."""
        value = tracer.realized(value)
        if type(value) is ConstantValue:
            return value.value
        if isinstance(value, StandInValue):
            return value.stand_in
        if isinstance(value, FunctionValue):
            return self.stands(_function(value), value)
        if isinstance(value, (BuiltinValue, ClassValue)):
            return value.real()
        if type(value) is TupleValue and value.cls is tuple:
            items = tuple(self.stand_in(tracer, item) for item in value.items)
            return self.stands(items, value) if items and value.source is not None else items
        hashable = lookup_in_class(value.python_type(tracer), "__hash__") is not None
        return self.stands(Data() if hashable else UnhashableData(), value)

    def plain(self, tracer: Tracer, value: Value) -> Any:
        """The same for what C code is to look into: names of slots, annotations."""
        value = tracer.realized(value)
        if type(value) is DictValue and value.cls is dict and value.source is None:
            items = value.items(tracer)
            return {tracer.constant_of(key, "a key"): self.stand_in(tracer, item) for key, item in items}
        if type(value) is ListValue and value.cls is list and value.source is None:
            return [self.plain(tracer, item) for item in value.items]
        if isinstance(value, ConstantValue):
            return value.value
        return self.stand_in(tracer, value)

    def stands_plainly(self, tracer: Tracer, value: Value) -> Any:
        """Of what C code looks into: names of slots, annotations."""
        value = tracer.realized(value)
        real = self.plain(tracer, value)
        if not isinstance(value, (ConstantValue, ClassValue, BuiltinValue)) and self.standing(real) is None:
            self.stands(real, value)
        return real

    # ---- classes ----

    def is_about(self, source: Source) -> bool:
        """Whether something of such a class is read: no guard can fail for it."""
        if isinstance(source, CallSource):
            return any(map(self.is_about, source.args))
        base: Any = source
        while base is not None and not isinstance(base, ConstantSource):
            base = getattr(base, "base", None)
        return base is not None and id(base.value) in self._standing

    def make(self, tracer: Tracer, make: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """The class that this makes, to stand for what the program is to have: no class of the program lists it."""
        cls = tracer.run_real(make, args, kwargs)
        self.unlist(cls)
        return cls

    def unlist(self, cls: type) -> None:
        for base in cls.__bases__:
            if base not in self.records:
                native.unlist_subclass(cls, base)

    def listed(self) -> list[type]:
        """Those that a class which was there before is to list, or leads to: they are made in this order, also where
        nothing uses them. Classes of the interpreter itself are of no program."""
        return [cls for cls in self.records if cls not in self.replaced and any(map(self._lists, cls.__mro__))]

    def _lists(self, base: type) -> bool:
        return base not in self.records and bool(base.__flags__ & _HEAP_TYPE)

    def add(self, tracer: Tracer, cls: type, record: MadeClass) -> None:
        self.records[cls] = record
        self.adopt(tracer, cls)

    def adopt(self, tracer: Tracer, cls: type) -> None:
        """Functions that were put into the class by real code."""
        for name, raw in class_dict(cls).items():
            part = "__func__" if issubclass(type(raw), (staticmethod, classmethod)) else None
            inner = raw if part is None else raw.__func__
            if id(inner) in self._standing:
                continue
            if type(inner) is FunctionType:
                self.stands(inner, MemberFunction(tracer, inner, cls, name, part))
            elif type(raw) in (dict, list):
                tracer.mutations.freeze(self._held(tracer, raw), f"{name} of a class", self.records[cls].made_at)

    def _held(self, tracer: Tracer, raw: Any) -> Value:
        """What the standard library keeps in a class: fields, members."""
        found = self.standing(raw)
        if found is not None:
            return found
        if type(raw) is list:
            made: Value = ListValue([self._held(tracer, item) for item in raw])
        elif type(raw) is dict:
            made = DictValue({})
            for key, item in raw.items():
                made.put(tracer, self._held(tracer, key), self._held(tracer, item))
        elif type(raw) is dataclasses.Field:
            made = ObjectValue(dataclasses.Field, raw, ConstantSource("<Field>", raw))
        else:
            return tracer.known(raw)
        self.stands(raw, made)
        return made

    def member(self, tracer: Tracer, cls: type, name: str) -> Value:
        """What the class itself holds under this name."""
        raw = class_dict(cls)[name]
        found = self.standing(raw)
        return tracer.known(raw) if found is None else found

    def set(self, tracer: Tracer, cls: type, name: str, value: Value) -> None:
        record = self.records[cls]
        self._check_changed(cls, name)
        special = name.startswith("__") and name.endswith("__")
        raw = self.stands_plainly(tracer, value) if special else self.stand_in(tracer, value)
        tracer.run_real(type.__setattr__, (cls, name, raw))
        record.late.pop(name, None)
        record.late[name] = value

    def delete(self, tracer: Tracer, cls: type, name: str) -> None:
        self._check_changed(cls, name)
        tracer.run_real(type.__delattr__, (cls, name))
        self.records[cls].late.pop(name, None)
        self.records[cls].late[name] = None

    def _check_changed(self, cls: type, name: str) -> None:
        """What stands for the class is changed for real, which is to run nothing of the program."""
        if is_replaced(type(cls), name):
            raise unsupported("attribute-write", f"{name} of a class, which its metaclass changes in its own way")
        if issubclass(cls, type) and name in ASKED_OF_METACLASSES:
            raise unsupported("attribute-write", f"{name} of a metaclass, which is called for classes of it")

    # ---- leaving the graph ----

    def recipe(self, exits: ExitBuilder, cls: type) -> Recipe:
        """How the class is made; remembered for the class before its parts are made, as these may lead back to it."""
        return made_by(exits, self.records[cls], lambda made: exits.remember(self._standing[id(cls)][1], made))

    def check(self, recipe: Recipe) -> None:
        """Raises CannotRebuild where what only stands for something would be handed to the program."""
        parts: list[Any] = [recipe]
        if isinstance(recipe, CallRecipe):
            parts += [recipe.function, *recipe.args, *recipe.kwargs.values()]
        elif isinstance(recipe, NewObject):
            parts += [recipe.cls, *recipe.args]
        elif isinstance(recipe, NewTuple):
            parts += recipe.items
        for part in parts:
            if isinstance(part, Constant) and self._is_stand_in(part.value):
                self._refuse(f"{part.value!r}, which stands for what captured code made")
            if isinstance(part, Load) and self.is_about(part.source):
                self._refuse(f"{part.source}, of a class that captured code made")

    def _is_stand_in(self, obj: Any) -> bool:
        if id(obj) in self._standing or type(obj) in self.records:
            return True
        if issubclass(type(obj), type):
            return obj in self.records
        of = (getattr(obj, name, None) for name in ("__objclass__", "__self__") if type(obj) in _OF_CLASSES)
        return any(isinstance(one, type) and one in self.records for one in of)

    def _refuse(self, what: str) -> None:
        raise cannot_rebuild(what, min(record.made_at for record in self.records.values()))


def made_by(exits: ExitBuilder, record: MadeClass, remember: Callable[[Recipe], None]) -> Recipe:
    made = CallRecipe(Constant(record.make))
    remember(made)
    made.args.extend(map(exits.recipe, record.arguments))
    if record.members is not None:
        # by itself, as a dictionary that leads back to the class would be filled when that is made already
        made.args.append(Constant(tuple(record.members)))
        made.args.extend(_member_recipe(exits, value) for value in record.members.values())
    made.kwargs.update((name, exits.recipe(value)) for name, value in record.keywords.items())
    for name, value in record.late.items():
        if value is None:
            exits.fills.append(DelAttr(made, name, raw=True))
        else:
            exits.set_attr(made, name, value, raw=True)
    return made


def _member_recipe(exits: ExitBuilder, value: Value) -> Recipe:
    """Annotations and names of slots are whole when the class is made."""
    if type(value) is DictValue and value.cls is dict and value.source is None and not exits.is_made(value):
        pairs = [NewTuple([key, item]) for key, item in exits.dict_items(value)]
        exits.remember(value, CallRecipe(Constant(dict), [NewTuple(list(pairs))]))
    elif type(value) is ListValue and value.cls is list and value.source is None and not exits.is_made(value):
        exits.remember(value, CallRecipe(Constant(list), [NewTuple([exits.recipe(item) for item in value.items])]))
    return exits.recipe(value)


class Undecorated(Value):
    """A class as it was when a decorator was given it, which then changed it or made another one of it."""

    __slots__ = ("cls", "record")

    def __init__(self, cls: type, record: MadeClass) -> None:
        self.source = None
        self.cls = cls
        self.record = record

    def python_type(self, tracer: Tracer) -> type:
        return type(self.cls)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return made_by(exits, self.record, lambda made: exits.remember(self, made))


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement or its like

_OF_CLASSES = (
    types.BuiltinMethodType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodType,
)


def _function(value: FunctionValue) -> FunctionType:
    """A function that looks like this one and is never called."""
    closure = tuple(CellType() for _ in value.code.co_freevars)
    made = FunctionType(value.code, {}, value.name, None, closure)
    made.__qualname__ = value.qualname
    if value.fn is not None:
        made.__doc__, made.__module__ = value.fn.__doc__, value.fn.__module__
        made.__dict__.update(value.fn.__dict__)
    else:
        made.__module__ = value.scope.names.get("__name__")  # type: ignore[assignment]
    for name, attribute in value.attributes.items():
        if type(attribute) is ConstantValue:
            setattr(made, name, attribute.value)
        elif name == "__isabstractmethod__":  # whose truth decides what property and abc make of the function
            raise unsupported("class-definition", "a function that is abstract by something else than a constant")
    return made
