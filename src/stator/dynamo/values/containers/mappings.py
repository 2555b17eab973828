"""dict and its subclasses (OrderedDict, defaultdict, user classes), their views, and instance dictionaries."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from types import FunctionType, MappingProxyType
from typing import Any

from stator.base.registry import Registry
from stator.dynamo.codegen import support
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ItemSource, Source
from stator.dynamo.host.iterator_state import keys_in_order
from stator.dynamo.host.naming import class_name
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, GetAttr, Load, NewDict, Recipe, call_recipe
from stator.dynamo.values.base import CaptureContext, Handler, Lazy, NotConstant, Reconstructor, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.objects import MISSING, ObjectValue, meet_attributes, meet_dict, runs_code_when_compared

from .canonical_constants import constant_at
from .iterators import ContainerIterator, IteratorValue
from .sequences import TupleValue
from .sets import SetValue

dict_methods: Registry[str, Handler] = Registry("dict method")


def _key_source(mapping: Source, index: int) -> Source:
    return ItemSource(CallSource(keys_in_order, (mapping,)), index)


class DictValue(ObjectValue):
    """A dictionary: hash key -> Value. `entries` of a real dictionary holds only the entries in use, until `complete`
    reads and guards all keys."""

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
        self.at: dict[Any, int] = {}  # position of the keys of a real dictionary at entry, filled at the first use
        self.whole = obj is None
        self.factory = factory
        self.drops = 0  # the number of removed keys
        self.dropped: dict[Any, Value] = {}  # removed keys, which may have come back

    # -- storage --
    def find(self, context: CaptureContext, key: Any) -> Value | None:
        found = self.entries.get(key)
        if type(found) is Lazy:
            found = self.entries[key] = found.realize(context)
        if found is not None or self.whole:
            return found
        if dict.__contains__(self.obj, key):
            found = context.wrap(dict.__getitem__(self.obj, key), ItemSource(self.source, key))  # type: ignore[arg-type]
            self.entries[key] = found
            return found
        if self.absent is None:
            self.absent = set()
        if key not in self.absent:
            self.absent.add(key)
            if self.source is not None:
                context.guard(self.source, GuardKind.NOT_IN, key)
        return None

    def complete(self, context: CaptureContext) -> None:
        """Read all entries, in order."""
        if self.whole:
            return
        if any(map(runs_code_when_compared, dict.keys(self.obj))):
            raise unsupported("unhashable-key", f"all of {self.describe(context)}, whose keys run code of the program")
        self.whole = True
        touched, self.entries = self.entries, {}
        plain = context.guards.dict_keys(self.source, self.obj)  # type: ignore[arg-type]
        for index, key in enumerate(keys_in_order(self.obj)):
            real = dict.__getitem__(self.obj, key)
            item_source = ItemSource(self.source, key)  # type: ignore[arg-type]
            self.entries[key] = touched.get(key) or Lazy(real, item_source)
            if not plain and not context.is_constant_object(key):
                key_source = _key_source(self.source, index)  # type: ignore[arg-type]
                context.guard(key_source, GuardKind.IS, key)
                self.key_values[key] = Lazy(key, key_source)

    def put(self, context: CaptureContext, key: Value, value: Value) -> None:
        """Store an entry without logging a mutation."""
        real = key.key(context)
        if (key.source is not None or not isinstance(key, ConstantValue)) and real not in self.entries:
            self.key_values[real] = key
        self.entries[real] = value

    def store(self, context: CaptureContext, key: Value, value: Value) -> None:
        self.complete(context)
        if self.obj is not None:
            real = key.key(context)
            context.mutations.replace(self, real, self._note_change(context, real), value)
        self.put(context, key, value)
        context.mutations.content(self)

    def _note_change(self, context: CaptureContext, key: Any) -> Any:
        """Note a change of a real dictionary, which modules read past this value. Returns the value at the key so far,
        as far as it was looked at."""
        meet_dict(context, self.obj, writes=True)
        context.changed_dicts.add(id(self.obj))
        old = self.entries.get(key)
        if type(old) is Lazy:
            old = context.wrapped.get(id(old.obj))
        if getattr(old, "is_static", False):
            context.unfix_member(old)
        return old

    def drop(self, context: CaptureContext, key: Any) -> None:
        self.complete(context)
        if self.obj is not None:
            self._note_change(context, key)
            self.dropped[key] = self.key_value(context, key)
        del self.entries[key]
        self.drops += 1
        self.key_values.pop(key, None)
        context.mutations.content(self)

    def keys(self, context: CaptureContext) -> list[Any]:
        self.complete(context)
        return list(self.entries)

    def key_value(self, context: CaptureContext, key: Any) -> Value:
        found = self.key_values.get(key)
        if found is None:
            found = self.key_values[key] = constant_at(context, key, self._own_place(key))
        return context.realized(found)

    def _own_place(self, key: Any) -> Source | None:
        """The source of a key of the real dictionary at entry."""
        if self.obj is None or self.source is None or key in self.dropped:
            return None
        self.at = self.at or {one: index for index, one in enumerate(keys_in_order(self.obj))}
        index = self.at.get(key)
        return None if index is None else _key_source(self.source, index)

    def has(self, context: CaptureContext, key: Value) -> bool:
        return self.find(context, key.key(context)) is not None

    def items(self, context: CaptureContext) -> Iterator[tuple[Value, Value]]:
        for key in self.keys(context):
            yield self.key_value(context, key), self.find(context, key)  # type: ignore[misc]

    # -- protocol --
    def slot(self, context: CaptureContext, name: str, descriptor: Any) -> Value:
        if descriptor is not defaultdict.default_factory:  # type: ignore[attr-defined,misc]
            return super().slot(context, name, descriptor)
        return self.factory if self.factory is not None else ConstantValue(None)

    def constant(self) -> Any:
        if self.cls is not dict or not self.whole:
            raise NotConstant
        return {
            self.key_values[key].constant() if key in self.key_values else key: value.constant()
            for key, value in self.entries.items()
        }

    def key(self, context: CaptureContext) -> Any:
        raise context.raised(TypeError, f"unhashable type: '{class_name(self.cls)}'")

    def truth(self, context: CaptureContext) -> bool:
        return context.override_truth(self, None) if self.cls is not dict else self.plain_length(context) > 0

    def plain_length(self, context: CaptureContext) -> int:
        if not self.whole and not self.obj:
            context.guards.length_once(self, self.source, 0)  # type: ignore[arg-type]
            return 0
        return len(self.keys(context))

    def length(self, context: CaptureContext) -> int:
        if self.special(context, "__len__") is not None:
            return super().length(context)
        return self.plain_length(context)

    def contains(self, context: CaptureContext, item: Value) -> bool:
        if self.special(context, "__contains__") is not None:
            return super().contains(context, item)
        return self.has(context, item)

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        if self.cls is not dict and self.special(context, "__getitem__") is not None:
            return super().get_item(context, key)
        return _getitem(context, self, key)

    def set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        if self.cls is not dict and self.special(context, "__setitem__") is not None:
            super().set_item(context, key, value)
        else:
            self.store(context, key, value)

    def del_item(self, context: CaptureContext, key: Value) -> None:
        if self.cls is not dict and self.special(context, "__delitem__") is not None:
            super().del_item(context, key)
        else:
            _delitem(context, self, key)

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        return context.iterate(self.iterator(context))

    def iterator(self, context: CaptureContext) -> Value:
        if self.cls is not dict and self.special(context, "__iter__") is not None:
            return super().iterator(context)
        return self.forwards(context)

    def forwards(self, context: CaptureContext) -> ContainerIterator:
        items = iter([self.key_value(context, key) for key in self.keys(context)])
        steady = self.while_steady(context, items)
        return ContainerIterator(self, steady, support.keys_at, type(iter({})), self.entries, context.end_step())

    def while_steady(self, context: CaptureContext, items: Iterator[Value]) -> Iterator[Value]:
        """The items. Raises as Python does if the program changes the number of keys meanwhile."""
        self.complete(context)  # lookups while iterating must not add entries
        return self._same_size(context, items, len(self.entries), self.drops)

    def _same_size(self, context: CaptureContext, items: Iterator[Value], size: int, drops: int) -> Iterator[Value]:
        while True:
            if len(self.entries) != size and not issubclass(self.cls, OrderedDict):
                raise context.raised(RuntimeError, "dictionary changed size during iteration")
            if (len(self.entries), self.drops) != (size, drops):
                raise unsupported("iteration", "a dictionary whose keys change during iteration")
            item = next(items, None)
            if item is None:
                return
            yield item

    def builtin_method(self, context: CaptureContext, name: str) -> Handler | None:
        return dict_methods.get(name) or super().builtin_method(context, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.cls is dict:
            made = NewDict([])
            reconstructor.remember(self, made)
            made.items.extend(reconstructor.dict_items(self))
            return made
        if self.cls is defaultdict:
            factory = reconstructor.recipe(self.factory) if self.factory is not None else ConstantRecipe(None)
            new: Recipe = call_recipe(defaultdict, factory)
        elif issubclass(self.cls, defaultdict):
            raise unsupported("reconstruct", "a subclass of defaultdict cannot leave the graph")
        else:
            base = OrderedDict if issubclass(self.cls, OrderedDict) else dict
            new = call_recipe(base.__new__, ConstantRecipe(self.cls))
        return reconstructor.made_of_class(self, new)


class AttributesValue(DictValue):
    """`obj.__dict__`: a live view of an object's own attributes."""

    __slots__ = ("owner",)

    def __init__(self, owner: ObjectValue) -> None:
        super().__init__({}, None, dict, None)
        self.owner = owner

    def find(self, context: CaptureContext, key: Any) -> Value | None:
        return self.owner.own_attribute(context, key)

    def complete(self, context: CaptureContext) -> None:
        pass

    def put(self, context: CaptureContext, key: Value, value: Value) -> None:
        name = context.constant_of(key, "an attribute's name")
        if not isinstance(name, str):
            raise unsupported("attribute-write", "an entry of an instance dictionary under a key that is no string")
        self.owner.set_own(context, name, value)

    def store(self, context: CaptureContext, key: Value, value: Value) -> None:
        self.put(context, key, value)

    def drop(self, context: CaptureContext, key: Any) -> None:
        self.owner.set_own(context, key, MISSING)

    def keys(self, context: CaptureContext) -> list[Any]:
        return self.owner.own_names(context)

    def constant(self) -> Any:
        raise NotConstant

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return GetAttr(reconstructor.recipe(self.owner), "__dict__")


class FunctionAttributesValue(DictValue):
    """`function.__dict__`: storing an entry sets an attribute of a function made in the frame."""

    __slots__ = ("function",)

    def __init__(self, context: CaptureContext, function: FunctionValue) -> None:
        own = {name: value for name, value in function.attributes.items() if not hasattr(FunctionType, name)}
        if function.fn is not None:
            meet_attributes(context, function.fn.__dict__)
            own |= {name: function.get_attr(context, name) for name in function.fn.__dict__}
        super().__init__(own)
        self.function = function

    def store(self, context: CaptureContext, key: Value, value: Value) -> None:
        self.function.set_attr(context, context.constant_of(key, "an attribute's name"), value)
        self.put(context, key, value)

    def drop(self, context: CaptureContext, key: Any) -> None:
        raise unsupported("attribute-write", f"deleting {key!r} from {self.function.describe(context)}.__dict__")

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return GetAttr(reconstructor.recipe(self.function), "__dict__")


class DictViewValue(Value):
    """dict.keys(), dict.values(), dict.items(): live views."""

    __slots__ = ("kind", "owner")

    def __init__(self, owner: DictValue, kind: str, source: Source | None = None) -> None:
        self.source = source
        self.owner = owner
        self.kind = kind

    def python_type(self, context: CaptureContext) -> type:
        base = OrderedDict if issubclass(self.owner.cls, OrderedDict) else dict
        return type(getattr(base(), self.kind)())

    def truth(self, context: CaptureContext) -> bool:
        return self.owner.plain_length(context) > 0

    def length(self, context: CaptureContext) -> int:
        return self.owner.plain_length(context)

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        owner = self.owner
        if self.kind == "keys":
            return (owner.key_value(context, key) for key in owner.keys(context))
        if self.kind == "values":
            return (owner.find(context, key) for key in owner.keys(context))  # type: ignore[misc]
        return (TupleValue([key, value]) for key, value in owner.items(context))

    def iterator(self, context: CaptureContext) -> Value:
        items = self.iterate(context)
        kind = type(iter(getattr({}, self.kind)()))
        steady = self.owner.while_steady(context, items)
        entries = self.owner.entries
        return ContainerIterator(self, steady, support.iterator_at, kind, entries, context.end_step())

    def contains(self, context: CaptureContext, item: Value) -> bool:
        if self.kind == "keys":
            return self.owner.has(context, item)
        return any(context.same(mine, item) or context.equal(mine, item) for mine in self.iterate(context))

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if self.kind == "keys" and name == "isdisjoint":  # the only method that views share with sets
            return SetValue.of(context, list(self.iterate(context))).get_attr(context, name)
        return super().get_attr(context, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        base = OrderedDict if issubclass(self.owner.cls, OrderedDict) else dict
        return call_recipe(getattr(base, self.kind), reconstructor.recipe(self.owner))


class MappingProxyValue(Value):
    """types.MappingProxyType: a live view of a dictionary that refuses to change it."""

    __slots__ = ("shown",)

    def __init__(self, shown: DictValue, source: Source | None = None) -> None:
        self.source = source
        self.shown = shown

    def python_type(self, context: CaptureContext) -> type:
        return MappingProxyType

    def truth(self, context: CaptureContext) -> bool:
        return self.shown.plain_length(context) > 0

    def length(self, context: CaptureContext) -> int:
        return self.shown.plain_length(context)

    def contains(self, context: CaptureContext, item: Value) -> bool:
        return self.shown.has(context, item)

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        return self.shown.get_item(context, key)

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        return self.shown.iterate(context)

    def iterator(self, context: CaptureContext) -> Value:
        return self.shown.iterator(context)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        return self.shown.get_attr(context, name) if name in _OF_PROXIES else super().get_attr(context, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return call_recipe(MappingProxyType, reconstructor.recipe(self.shown))


_OF_PROXIES = ("keys", "values", "items", "get", "copy")


# ---- methods ----


@dict_methods.register("__getitem__")
def _getitem(context: CaptureContext, self: DictValue, key: Value) -> Value:
    found = self.find(context, key.key(context))
    if found is not None:
        return found
    if self.factory is not None and not context.is_none(self.factory):
        made = context.call(self.factory, [], {})
        self.store(context, key, made)
        return made
    missing = self.special(context, "__missing__")
    if missing is not None:
        return missing.call(context, [key], {})
    raise context.raised_with(KeyError, [key])


@dict_methods.register("__setitem__")
def _setitem(context: CaptureContext, self: DictValue, key: Value, value: Value) -> None:
    self.store(context, key, value)


@dict_methods.register("__delitem__")
def _delitem(context: CaptureContext, self: DictValue, key: Value) -> Value:
    if not self.has(context, key):
        raise context.raised_with(KeyError, [key])
    self.drop(context, key.key(context))
    return ConstantValue(None)


@dict_methods.register("__init__", "update")
def _update(context: CaptureContext, self: DictValue, *args: Value, **kwargs: Value) -> None:
    if len(args) > 1:
        raise unsupported("call-builtin", f"{len(args)} arguments of dict.update")
    for more in args:
        pairs = context.pairs(more)
        for key, value in (
            list(pairs) if isinstance(more, DictValue) else pairs
        ):  # another iterable may read the growing dictionary
            self.set_item(context, key, value) if self.cls is not dict else self.store(context, key, value)
    for name, value in kwargs.items():
        self.store(context, ConstantValue(name), value)


@dict_methods.register("setdefault")
def _setdefault(context: CaptureContext, self: DictValue, key: Value, default: Value | None = None) -> Value:
    found = self.find(context, key.key(context))
    if found is None:
        found = default or ConstantValue(None)
        self.store(context, key, found)
    return found


@dict_methods.register("pop")
def _pop(context: CaptureContext, self: DictValue, key: Value, default: Value | None = None) -> Value:
    real = key.key(context)
    found = self.find(context, real)
    if found is not None:
        self.drop(context, real)
        return found
    if default is None:
        raise context.raised_with(KeyError, [key])
    return default


@dict_methods.register("popitem")
def _popitem(context: CaptureContext, self: DictValue, last: Value | None = None) -> Value:
    keys = self.keys(context)
    if not keys:
        raise context.raised(KeyError, "popitem(): dictionary is empty")
    key = keys[-1 if last is None or context.truth(last) else 0]
    pair = TupleValue([self.key_value(context, key), self.find(context, key)])  # type: ignore[list-item]
    self.drop(context, key)
    return pair


@dict_methods.register("move_to_end")
def _move_to_end(context: CaptureContext, self: DictValue, key: Value, last: Value | None = None) -> None:
    if not issubclass(self.cls, OrderedDict):
        raise unsupported("call-builtin", f"move_to_end of {self.describe(context)}")
    real = key.key(context)
    value = self.find(context, real)
    if value is None:
        raise context.raised_with(KeyError, [key])
    kept = self.key_value(context, real)
    self.drop(context, real)
    self.put(context, kept, value)
    if last is not None and not context.truth(last):
        self.entries = {real: value, **self.entries}


@dict_methods.register("clear")
def _clear(context: CaptureContext, self: DictValue) -> None:
    for key in self.keys(context):
        self.drop(context, key)


@dict_methods.register("copy", "__copy__")
def _copy(context: CaptureContext, self: DictValue) -> Value:
    if self.cls is not OrderedDict and issubclass(self.cls, (OrderedDict, defaultdict)) and self.cls is not defaultdict:
        raise unsupported("copy", f"copying {self.describe(context)}")
    made = DictValue({}, cls=self.cls if self.cls in (dict, OrderedDict, defaultdict) else dict, factory=self.factory)
    for key, value in self.items(context):
        made.put(context, key, value)
    return made


dict_methods.add_all(
    {
        "__contains__": lambda context, self, key: ConstantValue(self.has(context, key)),
        "__len__": lambda context, self: ConstantValue(self.plain_length(context)),
        "__iter__": lambda context, self: self.forwards(context),
        "__reversed__": lambda context, self: IteratorValue(
            iter([self.key_value(context, key) for key in reversed(self.keys(context))])
        ),
        "get": lambda context, self, key, default=None: (
            self.find(context, key.key(context)) or default or ConstantValue(None)
        ),
        "keys": lambda context, self: DictViewValue(self, "keys"),
        "values": lambda context, self: DictViewValue(self, "values"),
        "items": lambda context, self: DictViewValue(self, "items"),
    }
)
