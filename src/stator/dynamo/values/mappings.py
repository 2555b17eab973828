"""dict and its subclasses (OrderedDict, defaultdict, user classes), their views, and instance dictionaries."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

from stator.base.registry import Registry

from ..emit import support
from ..guard import GuardKind
from ..iterator_state import keys_in_order
from ..naming import class_name
from ..recipe import CallRecipe, Constant, GetAttr, Load, NewDict, NewObject, Recipe
from ..source import AttrSource, DictKeySource, ItemSource, Source
from .attribute_dicts import meet_dict
from .base import Lazy, NotConstant, Value, unsupported
from .constants import ConstantValue
from .iterators import ContainerIterator, IteratorValue
from .objects import MISSING, ObjectValue, runs_code_when_compared
from .places import known_at
from .sequences import TupleValue
from .sets import SetValue
from .slots import names_of_slots

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer
    from .functions import FunctionValue

dict_methods: Registry[str, Callable[..., Value]] = Registry("dict method")


class DictValue(ObjectValue):
    """A dictionary: hash key -> Value. Of a real dictionary only the entries that were touched are held until
    `complete` is called, which relies on all its keys."""

    __slots__ = ("at", "dropped", "drops", "entries", "factory", "key_values", "whole")

    def __init__(
        self,
        entries: dict[Any, Any],
        source: Source | None = None,
        cls: type = dict,
        obj: Any = None,
        factory: Value | None = None,
    ) -> None:
        super().__init__(cls, obj, source)
        self.entries = entries
        self.key_values: dict[Any, Value] = {}
        self.at: dict[Any, int] = {}  # where the keys of a real dictionary stand at entry, once one has been asked for
        self.whole = obj is None
        self.factory = factory
        self.drops = 0  # how often a key was taken out
        self.dropped: dict[Any, Value] = {}  # keys that were taken out, and may be in again

    # -- storage --
    def find(self, tracer: Tracer, key: Any) -> Value | None:
        found = self.entries.get(key)
        if type(found) is Lazy:
            found = self.entries[key] = found.realize(tracer)
        if found is not None or self.whole:
            return found
        if dict.__contains__(self.obj, key):
            found = tracer.wrap(dict.__getitem__(self.obj, key), ItemSource(self.source, key))  # type: ignore[arg-type]
            self.entries[key] = found
            return found
        if self.absent is None:
            self.absent = set()
        if key not in self.absent:
            self.absent.add(key)
            if self.source is not None:
                tracer.guard(self.source, GuardKind.NOT_IN, key)
        return None

    def complete(self, tracer: Tracer) -> None:
        """Hold all entries, in order."""
        if self.whole:
            return
        if any(map(runs_code_when_compared, dict.keys(self.obj))):
            raise unsupported(
                "unhashable-key", f"all of {self.describe(tracer)}, whose keys are compared by the program"
            )
        self.whole = True
        touched, self.entries = self.entries, {}
        plain = tracer.guards.dict_keys(self.source, self.obj)  # type: ignore[arg-type]
        for index, key in enumerate(keys_in_order(self.obj)):
            real = dict.__getitem__(self.obj, key)
            item_source = ItemSource(self.source, key)  # type: ignore[arg-type]
            self.entries[key] = touched.get(key) or Lazy(real, item_source)
            if not plain and not tracer.is_constant_object(key):
                key_source = DictKeySource(self.source, index)  # type: ignore[arg-type]
                tracer.guard(key_source, GuardKind.IS, key)
                self.key_values[key] = Lazy(key, key_source)

    def put(self, tracer: Tracer, key: Value, value: Value) -> None:
        """Store without logging a mutation."""
        real = key.key(tracer)
        if (key.source is not None or not isinstance(key, ConstantValue)) and real not in self.entries:
            self.key_values[real] = key
        self.entries[real] = value

    def store(self, tracer: Tracer, key: Value, value: Value) -> None:
        self.complete(tracer)
        if self.obj is not None:
            self._note_change(tracer, key.key(tracer))
        self.put(tracer, key, value)
        tracer.mutations.content(self)

    def _note_change(self, tracer: Tracer, key: Any) -> None:
        """Tell those who read the real dictionary: modules do."""
        meet_dict(tracer, self.obj, writes=True)
        tracer.changed_dicts.add(id(self.obj))
        old = self.entries.get(key)
        if type(old) is Lazy:
            old = tracer.wrapped.get(id(old.obj))
        if getattr(old, "is_static", False):
            tracer.unfix_member(old)

    def drop(self, tracer: Tracer, key: Any) -> None:
        self.complete(tracer)
        if self.obj is not None:
            self._note_change(tracer, key)
            self.dropped[key] = self.key_value(tracer, key)
        del self.entries[key]
        self.drops += 1
        self.key_values.pop(key, None)
        tracer.mutations.content(self)

    def keys(self, tracer: Tracer) -> list[Any]:
        self.complete(tracer)
        return list(self.entries)

    def key_value(self, tracer: Tracer, key: Any) -> Value:
        found = self.key_values.get(key)
        if found is None:
            found = self.key_values[key] = known_at(tracer, key, self._own_place(key))
        return tracer.realized(found)

    def _own_place(self, key: Any) -> Source | None:
        """Where a key of the real dictionary is found at entry."""
        if self.obj is None or self.source is None or key in self.dropped:
            return None
        self.at = self.at or {one: index for index, one in enumerate(keys_in_order(self.obj))}
        index = self.at.get(key)
        return None if index is None else DictKeySource(self.source, index)

    def has(self, tracer: Tracer, key: Value) -> bool:
        return self.find(tracer, key.key(tracer)) is not None

    def items(self, tracer: Tracer) -> Iterator[tuple[Value, Value]]:
        for key in self.keys(tracer):
            yield self.key_value(tracer, key), self.find(tracer, key)  # type: ignore[misc]

    # -- protocol --
    def slot(self, tracer: Tracer, name: str, descriptor: Any) -> Value:
        if descriptor is not defaultdict.default_factory:  # type: ignore[attr-defined,misc]
            return super().slot(tracer, name, descriptor)
        return self.factory if self.factory is not None else ConstantValue(None)

    def generic_set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if tracer.class_lookup(self.cls, name) is not defaultdict.default_factory:  # type: ignore[attr-defined,misc]
            super().generic_set_attr(tracer, name, value)
        elif self.obj is None:
            self.factory = value
        else:
            raise unsupported("attribute-write", "changing default_factory of a dictionary that was there before")

    def constant(self) -> Any:
        if self.cls is not dict or not self.whole:
            raise NotConstant
        return {
            self.key_values[key].constant() if key in self.key_values else key: value.constant()
            for key, value in self.entries.items()
        }

    def key(self, tracer: Tracer) -> Any:
        raise tracer.raised(TypeError, f"unhashable type: '{class_name(self.cls)}'")

    def truth(self, tracer: Tracer) -> bool:
        return tracer.override_truth(self, None) if self.cls is not dict else self.plain_length(tracer) > 0

    def plain_length(self, tracer: Tracer) -> int:
        if not self.whole and not self.obj:
            tracer.guards.length_once(self, self.source, 0)  # type: ignore[arg-type]
            return 0
        return len(self.keys(tracer))

    def length(self, tracer: Tracer) -> int:
        if self.special(tracer, "__len__") is not None:
            return super().length(tracer)
        return self.plain_length(tracer)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        if self.special(tracer, "__contains__") is not None:
            return super().contains(tracer, item)
        return self.has(tracer, item)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if self.cls is not dict and self.special(tracer, "__getitem__") is not None:
            return super().get_item(tracer, key)
        return _getitem(tracer, self, key)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        if self.cls is not dict and self.special(tracer, "__setitem__") is not None:
            super().set_item(tracer, key, value)
        else:
            self.store(tracer, key, value)

    def del_item(self, tracer: Tracer, key: Value) -> None:
        if self.cls is not dict and self.special(tracer, "__delitem__") is not None:
            super().del_item(tracer, key)
        else:
            _delitem(tracer, self, key)

    def iterate(self, tracer: Tracer) -> Iterator[Value]:
        return tracer.iterate(self.iterator(tracer))

    def iterator(self, tracer: Tracer) -> Value:
        if self.cls is not dict and self.special(tracer, "__iter__") is not None:
            return super().iterator(tracer)
        return self.forwards(tracer)

    def forwards(self, tracer: Tracer) -> ContainerIterator:
        items = iter([self.key_value(tracer, key) for key in self.keys(tracer)])
        steady = self.while_steady(tracer, items)
        return ContainerIterator(self, steady, support.keys_at, type(iter({})), self.entries, tracer.end_step())

    def while_steady(self, tracer: Tracer, items: Iterator[Value]) -> Iterator[Value]:
        """The items, as long as the program does not change the number of keys meanwhile."""
        self.complete(tracer)  # what is looked up while iterating must not look like a change
        return self._same_size(tracer, items, len(self.entries), self.drops)

    def _same_size(self, tracer: Tracer, items: Iterator[Value], size: int, drops: int) -> Iterator[Value]:
        while True:
            ordered = issubclass(self.cls, OrderedDict)
            if ordered and (len(self.entries), self.drops) != (size, drops):
                raise tracer.raised(RuntimeError, "OrderedDict mutated during iteration")
            if len(self.entries) != size:
                raise tracer.raised(RuntimeError, "dictionary changed size during iteration")
            if self.drops != drops:
                raise unsupported("iteration", "a dictionary whose keys were exchanged during iteration")
            item = next(items, None)
            if item is None:
                return
            yield item

    def builtin_method(self, tracer: Tracer, name: str) -> Callable[..., Value] | None:
        return dict_methods.get(name) or super().builtin_method(tracer, name)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.cls is dict:
            made = NewDict([])
            exits.remember(self, made)
            made.items.extend(exits.dict_items(self))
            return made
        if self.cls is defaultdict:
            factory = exits.recipe(self.factory) if self.factory is not None else Constant(None)
            new: Recipe = CallRecipe(Constant(defaultdict), [factory])
        elif issubclass(self.cls, defaultdict):
            raise unsupported("reconstruct", "a subclass of defaultdict cannot leave the graph")
        else:
            new = NewObject(
                Constant(self.cls), OrderedDict.__new__ if issubclass(self.cls, OrderedDict) else dict.__new__
            )
        return exits.made_of_class(self, new)


class AttributesValue(DictValue):
    """`obj.__dict__`: a live view of an object's own attributes but for those in `__slots__`."""

    __slots__ = ("in_slots", "owner")

    def __init__(self, owner: ObjectValue) -> None:
        super().__init__({}, None, dict, None)
        self.owner = owner
        self.in_slots = names_of_slots(owner.cls)

    def find(self, tracer: Tracer, key: Any) -> Value | None:
        if key in self.in_slots:  # of a name that is one, the dictionary may hold an entry, too: that is not modelled
            real = self.owner.instance_dict()
            if real is not None and key in real:
                raise unsupported("attribute", f"an entry of an instance dictionary beside the slot {key!r}")
            return None
        return self.owner.own_attribute(tracer, key)

    def complete(self, tracer: Tracer) -> None:
        pass

    def put(self, tracer: Tracer, key: Value, value: Value) -> None:
        name = tracer.constant_of(key, "an attribute's name")
        if not isinstance(name, str):
            raise unsupported("attribute-write", "an entry of an instance dictionary under a key that is no string")
        if name in self.in_slots:
            raise unsupported("attribute-write", f"writing an entry of an instance dictionary beside the slot {name!r}")
        self.owner.set_own(tracer, name, value)

    def store(self, tracer: Tracer, key: Value, value: Value) -> None:
        self.put(tracer, key, value)

    def drop(self, tracer: Tracer, key: Any) -> None:
        self.owner.set_own(tracer, key, MISSING)

    def keys(self, tracer: Tracer) -> list[Any]:
        names = self.owner.own_names(tracer)
        if not self.in_slots:
            return names
        return [name for name in names if name not in self.in_slots or self.find(tracer, name) is not None]

    def constant(self) -> Any:
        raise NotConstant

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return GetAttr(exits.recipe(self.owner), "__dict__")


class MappingProxyValue(DictValue):
    """A view of a class's `__dict__` and the like, which nobody writes through."""

    __slots__ = ()

    def __init__(self, entries: dict[Any, Any], source: Source) -> None:
        super().__init__(entries, source, MappingProxyType)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        raise tracer.raised(TypeError, "'mappingproxy' object does not support item assignment")

    def del_item(self, tracer: Tracer, key: Value) -> None:
        raise tracer.raised(TypeError, "'mappingproxy' object does not support item deletion")


class FunctionAttributesValue(DictValue):
    """`function.__dict__`: what is stored in it becomes an attribute of a function made in the frame."""

    __slots__ = ("function",)

    def __init__(self, function: Value) -> None:
        super().__init__({})
        self.function = function

    @classmethod
    def of(cls, tracer: Tracer, function: FunctionValue) -> FunctionAttributesValue:
        made = cls(function)
        for name, value in function.attributes.items():
            if not hasattr(FunctionType, name):
                made.entries[name] = value
        for name, real in (vars(function.fn) if function.fn is not None else {}).items():
            if name not in function.attributes:
                source = AttrSource(function.source, name) if function.source is not None else None
                made.entries[name] = tracer.lazy(real, source)
        return made

    def store(self, tracer: Tracer, key: Value, value: Value) -> None:
        self.function.set_attr(tracer, tracer.constant_of(key, "an attribute's name"), value)
        self.put(tracer, key, value)

    def drop(self, tracer: Tracer, key: Any) -> None:
        self.function.del_attr(tracer, key)
        del self.entries[key]

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return GetAttr(exits.recipe(self.function), "__dict__")


class DictViewValue(Value):
    """dict.keys(), dict.values(), dict.items(): live views."""

    __slots__ = ("kind", "owner")

    def __init__(self, owner: DictValue, kind: str) -> None:
        self.source = None
        self.owner = owner
        self.kind = kind

    def python_type(self, tracer: Tracer) -> type:
        return type(getattr({}, self.kind)())

    def truth(self, tracer: Tracer) -> bool:
        return self.owner.plain_length(tracer) > 0

    def length(self, tracer: Tracer) -> int:
        return self.owner.plain_length(tracer)

    def iterate(self, tracer: Tracer) -> Iterator[Value]:
        owner = self.owner
        if self.kind == "keys":
            return (owner.key_value(tracer, key) for key in owner.keys(tracer))
        if self.kind == "values":
            return (owner.find(tracer, key) for key in owner.keys(tracer))  # type: ignore[misc]
        return (TupleValue([key, value]) for key, value in owner.items(tracer))

    def iterator(self, tracer: Tracer) -> Value:
        items = self.iterate(tracer)
        kind = type(iter(getattr({}, self.kind)()))
        steady = self.owner.while_steady(tracer, items)
        entries = self.owner.entries
        return ContainerIterator(self, steady, support.iterator_at, kind, entries, tracer.end_step())

    def contains(self, tracer: Tracer, item: Value) -> bool:
        if self.kind == "keys":
            return self.owner.has(tracer, item)
        return any(tracer.same(mine, item) or tracer.equal(mine, item) for mine in self.iterate(tracer))

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if self.kind == "keys" and name == "isdisjoint":  # the one method that it shares with sets
            return SetValue.of(tracer, list(self.iterate(tracer))).get_attr(tracer, name)
        return super().get_attr(tracer, name)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        known = (OrderedDict, MappingProxyType)  # each knows its own order, or is none
        base = next((kind for kind in known if issubclass(self.owner.cls, kind)), dict)
        return CallRecipe(Constant(getattr(base, self.kind)), [exits.recipe(self.owner)])


# ---- methods ----


@dict_methods.register("__getitem__")
def _getitem(tracer: Tracer, self: DictValue, key: Value) -> Value:
    found = self.find(tracer, key.key(tracer))
    if found is not None:
        return found
    if self.factory is not None and not tracer.is_none(self.factory):
        made = tracer.call(self.factory, [], {})
        self.store(tracer, key, made)
        return made
    missing = self.special(tracer, "__missing__")
    if missing is not None:
        return missing.call(tracer, [key], {})
    raise tracer.raised_with(KeyError, [key])


@dict_methods.register("__setitem__")
def _setitem(tracer: Tracer, self: DictValue, key: Value, value: Value) -> Value:
    self.store(tracer, key, value)
    return ConstantValue(None)


@dict_methods.register("__delitem__")
def _delitem(tracer: Tracer, self: DictValue, key: Value) -> Value:
    if not self.has(tracer, key):
        raise tracer.raised_with(KeyError, [key])
    self.drop(tracer, key.key(tracer))
    return ConstantValue(None)


@dict_methods.register("__contains__")
def _contains(tracer: Tracer, self: DictValue, key: Value) -> Value:
    return ConstantValue(self.has(tracer, key))


@dict_methods.register("__len__")
def _len(tracer: Tracer, self: DictValue) -> Value:
    return ConstantValue(self.plain_length(tracer))


@dict_methods.register("__iter__")
def _iter(tracer: Tracer, self: DictValue) -> Value:
    return self.forwards(tracer)


@dict_methods.register("__reversed__")
def _reversed(tracer: Tracer, self: DictValue) -> Value:
    return IteratorValue(iter([self.key_value(tracer, key) for key in reversed(self.keys(tracer))]))


@dict_methods.register("__init__", "update")
def _update(tracer: Tracer, self: DictValue, *args: Value, **kwargs: Value) -> Value:
    if len(args) > 1:
        raise unsupported("call-builtin", f"{len(args)} arguments of dict.update")
    for more in args:
        pairs = tracer.pairs(more)
        for key, value in list(pairs) if isinstance(more, DictValue) else pairs:  # an iterable may see the dict grow
            self.set_item(tracer, key, value) if self.cls is not dict else self.store(tracer, key, value)
    for name, value in kwargs.items():
        self.store(tracer, ConstantValue(name), value)
    return ConstantValue(None)


@dict_methods.register("get")
def _get(tracer: Tracer, self: DictValue, key: Value, default: Value | None = None) -> Value:
    return self.find(tracer, key.key(tracer)) or default or ConstantValue(None)


@dict_methods.register("setdefault")
def _setdefault(tracer: Tracer, self: DictValue, key: Value, default: Value | None = None) -> Value:
    found = self.find(tracer, key.key(tracer))
    if found is None:
        found = default or ConstantValue(None)
        self.store(tracer, key, found)
    return found


@dict_methods.register("pop")
def _pop(tracer: Tracer, self: DictValue, key: Value, default: Value | None = None) -> Value:
    real = key.key(tracer)
    found = self.find(tracer, real)
    if found is not None:
        self.drop(tracer, real)
        return found
    if default is None:
        raise tracer.raised_with(KeyError, [key])
    return default


@dict_methods.register("popitem")
def _popitem(tracer: Tracer, self: DictValue, last: Value | None = None) -> Value:
    keys = self.keys(tracer)
    if not keys:
        raise tracer.raised(KeyError, "popitem(): dictionary is empty")
    key = keys[-1 if last is None or tracer.truth(last) else 0]
    pair = TupleValue([self.key_value(tracer, key), self.find(tracer, key)])  # type: ignore[list-item]
    self.drop(tracer, key)
    return pair


@dict_methods.register("move_to_end")
def _move_to_end(tracer: Tracer, self: DictValue, key: Value, last: Value | None = None) -> Value:
    self.complete(tracer)
    real = key.key(tracer)
    if real not in self.entries:
        raise tracer.raised_with(KeyError, [key])
    value = self.entries.pop(real)
    self.drops += 1
    if last is None or tracer.truth(last):
        self.entries[real] = value
    else:
        self.entries = {real: value, **self.entries}
    tracer.mutations.content(self)
    return ConstantValue(None)


@dict_methods.register("clear")
def _clear(tracer: Tracer, self: DictValue) -> Value:
    for key in self.keys(tracer):
        self.drop(tracer, key)
    return ConstantValue(None)


@dict_methods.register("copy", "__copy__")
def _copy(tracer: Tracer, self: DictValue) -> Value:
    if self.cls is not OrderedDict and issubclass(self.cls, (OrderedDict, defaultdict)) and self.cls is not defaultdict:
        raise unsupported("copy", f"copying {self.describe(tracer)}")
    made = DictValue({}, cls=self.cls if self.cls in (dict, OrderedDict, defaultdict) else dict, factory=self.factory)
    for key, value in self.items(tracer):
        made.put(tracer, key, value)
    return made


@dict_methods.register("keys")
def _keys(tracer: Tracer, self: DictValue) -> Value:
    return DictViewValue(self, "keys")


@dict_methods.register("values")
def _values(tracer: Tracer, self: DictValue) -> Value:
    return DictViewValue(self, "values")


@dict_methods.register("items")
def _items(tracer: Tracer, self: DictValue) -> Value:
    return DictViewValue(self, "items")
