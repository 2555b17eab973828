"""set and frozenset, and their methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stator.base.registry import Registry
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import Source
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, NewList, Recipe, call_recipe
from stator.dynamo.values.base import (
    CaptureContext,
    Handler,
    NotConstant,
    Reconstructor,
    Value,
    cannot_rebuild,
    unsupported,
)
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import ObjectValue

from .iterators import IteratorValue

set_methods: Registry[str, Handler] = Registry("set method")


class SameOrder:
    """Guard predicate: a set gives its members in this order."""

    def __init__(self, members: list[Any]) -> None:
        self.members = members

    def __call__(self, now: Any) -> bool:
        return list(now) == self.members

    def __repr__(self) -> str:
        return f"the members come as {self.members!r}"


class SetValue(ObjectValue):
    """A set or frozenset: hash key -> member, in the order of insertion.

    The order of a set that the frame made is known while members are only added one by one (`only_added`), after those
    of a constant `start`. `made_at`: the step that made it.
    """

    __slots__ = ("made_at", "members", "only_added", "start")

    def __init__(
        self,
        members: dict[Any, Value],
        source: Source | None = None,
        cls: type = set,
        obj: Any = None,
        made_at: int | None = None,
    ) -> None:
        super().__init__(cls, obj, source)
        self.members = members
        self.made_at = made_at
        self.only_added = False
        self.start: frozenset[Any] = frozenset()

    @classmethod
    def of(cls, context: CaptureContext, items: Any, kind: type = set) -> SetValue:
        made = cls({}, cls=kind, made_at=context.end_step())
        made.only_added = True
        for item in items:
            made.add(context, item)
        return made

    @classmethod
    def from_items(cls, context: CaptureContext, items: Value, kind: type = set) -> SetValue:
        """`set(items)`."""
        made = cls.of(context, [], kind)
        made.update(context, items)
        return made

    def add(self, context: CaptureContext, item: Value) -> None:
        self.members.setdefault(item.key(context), item)  # the first of equal members stays

    def update(self, context: CaptureContext, items: Value) -> None:
        known = items.value if isinstance(items, ConstantValue) and type(items.value) is frozenset else None
        if known is not None and not self.members and self.only_added and self.cls is set:
            self.start = known
        elif isinstance(items, SetValue) or items.python_type(context) in (dict, frozenset):
            self.refuse_to_reorder()
            self.only_added = False  # CPython makes room for all items at once
        for item in _members(context, items).values() if isinstance(items, SetValue) else context.iterate(items):
            self.add(context, item)

    def refuse_to_reorder(self) -> None:
        """Replayed changes of a set from outside would leave its members in another order."""
        if self.source is not None:
            raise unsupported("set-members", "an operation that changes the order of a set from outside")

    def changed(self, context: CaptureContext) -> None:
        context.mutations.content(self)

    def constant(self) -> Any:
        """A set in the known order of the members, which texts show."""
        if self.cls not in (set, frozenset) or self.start or (len(self.members) > 1 and not self.only_added):
            raise NotConstant
        return self.cls(member.constant() for member in self.members.values())

    def key(self, context: CaptureContext) -> Any:
        if self.cls is frozenset:
            return frozenset(self.members)
        raise context.raised(TypeError, "unhashable type: 'set'")

    def truth(self, context: CaptureContext) -> bool:
        return bool(self.members)

    def length(self, context: CaptureContext) -> int:
        return len(self.members)

    def contains(self, context: CaptureContext, item: Value) -> bool:
        return item.key(context) in self.members

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        return self._while_steady(context, [self.members[key] for key in self._ordered(context)])

    def _ordered(self, context: CaptureContext) -> list[Any]:
        """The keys in the order in which CPython gives them. Raises Unsupported where that is unknown."""
        if len(self.members) < 2:
            return list(self.members)
        if self.only_added:
            ordered = set(self.start)
            for key in self.members:
                ordered.add(key)
            return list(ordered)
        if self.obj is None or list(self.members) != list(self.obj):
            raise unsupported("set-members", "the order of the members of a set")
        if self.source is not None:
            context.guard(self.source, GuardKind.PREDICATE, SameOrder(list(self.obj)))
        return list(self.obj)

    def _while_steady(self, context: CaptureContext, items: list[Value]) -> Iterator[Value]:
        for item in items:
            if len(self.members) != len(items):
                raise context.raised(RuntimeError, "Set changed size during iteration")
            yield item

    def in_any_order(self) -> list[Value] | None:
        """The members, if they are texts or ints, which sorted() brings into one order whatever their order here."""
        kinds = {type(key) for key in self.members}
        return list(self.members.values()) if kinds in ({str}, {int}) else None

    @property
    def basic(self) -> type:
        """The class of unions, differences and copies."""
        return frozenset if issubclass(self.cls, frozenset) else set

    def iterator(self, context: CaptureContext) -> Value:
        return IteratorValue(self.iterate(context))

    def builtin_method(self, context: CaptureContext, name: str) -> Handler | None:
        return set_methods.get(name) or super().builtin_method(context, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.obj is not None:
            return ConstantRecipe(self.obj)
        frozen = issubclass(self.cls, frozenset)
        if self.cls is not set and not frozen:
            return reconstructor.made_of_class(self, call_recipe(set.__new__, ConstantRecipe(self.cls)))
        plain = self.only_added and len(self.start) in (0, len(self.members))
        if not plain and len(self.members) > 1:
            raise cannot_rebuild("a set whose order a new one would not have", self.made_at)
        if plain and self.start:
            return call_recipe(set, ConstantRecipe(self.start))
        members = NewList([reconstructor.recipe(member) for member in self.members.values()])
        if self.cls in (set, frozenset):
            return call_recipe(self.cls, members)
        return reconstructor.made_of_class(self, call_recipe(frozenset.__new__, ConstantRecipe(self.cls), members))


# ---- methods of set ----


@set_methods.register("add")
def _set_add(context: CaptureContext, self: SetValue, item: Value) -> None:
    self.add(context, item)
    self.changed(context)


@set_methods.register("update")
def _set_update(context: CaptureContext, self: SetValue, *others: Value) -> None:
    self.changed(context)  # even if an exception ends the loop halfway
    for other in others:
        self.update(context, other)


def _drop(context: CaptureContext, self: SetValue, key: Any) -> Value | None:
    self.only_added = False
    self.changed(context)
    return self.members.pop(key, None)


@set_methods.register("discard")
def _set_discard(context: CaptureContext, self: SetValue, item: Value) -> None:
    _drop(context, self, item.key(context))


@set_methods.register("remove")
def _set_remove(context: CaptureContext, self: SetValue, item: Value) -> None:
    key = item.key(context)
    if key not in self.members:
        raise context.raised_with(KeyError, [item])
    _drop(context, self, key)


@set_methods.register("pop")
def _set_pop(context: CaptureContext, self: SetValue) -> Value:
    if not self.members:
        raise context.raised(KeyError, "pop from an empty set")
    if len(self.members) > 1 and not self.only_added:
        raise unsupported("set-members", "which member of a set comes first")
    return _drop(context, self, self._ordered(context)[0])  # type: ignore[return-value]


@set_methods.register("clear")
def _set_clear(context: CaptureContext, self: SetValue) -> None:
    self.members.clear()
    self.only_added = False
    self.changed(context)


@set_methods.register("copy")
def _set_copy(context: CaptureContext, self: SetValue) -> Value:
    if self.cls is frozenset:
        return self
    return combined(context, self, "copy")


def combined(context: CaptureContext, self: SetValue, method: str, *others: Value) -> SetValue:
    """The set that a method gives. A real set of the keys tells which members it has."""
    read = [_members(context, other) for other in others]
    keys = getattr(set, method)(set(self.members), *map(set, read))
    found = {id(key): item for members in (*read, self.members) for key, item in members.items()}
    return SetValue({key: found[id(key)] for key in keys}, cls=self.basic, made_at=context.end_step())


def _members(context: CaptureContext, other: Value) -> dict[Any, Value]:
    """The items of an operand by their keys; the first of equal items."""
    if isinstance(other, SetValue):
        return other.members
    if hasattr(other.python_type(context), "__next__"):
        raise unsupported(
            "set-members", "a set operation by an iterator"
        )  # CPython's versions read different numbers of items
    members: dict[Any, Value] = {}
    for item in context.iterate(other):
        members.setdefault(item.key(context), item)
    return members


def _register_operation(name: str) -> None:
    def gives(context: CaptureContext, self: SetValue, *others: Value) -> Value:
        return combined(context, self, name, *others)

    def changes(context: CaptureContext, self: SetValue, *others: Value) -> Value:
        self.refuse_to_reorder()
        self.members = combined(context, self, name, *others).members
        self.only_added = False
        self.changed(context)
        return ConstantValue(None)

    set_methods.add(name, gives)
    if name != "union":
        set_methods.add(f"{name}_update", changes)


for _name in ("union", "intersection", "difference", "symmetric_difference"):
    _register_operation(_name)


set_methods.add_all(
    {
        "__contains__": lambda context, self, item: ConstantValue(SetValue.contains(self, context, item)),
        "issubset": lambda context, self, other: ConstantValue(self.members.keys() <= _members(context, other).keys()),
        "issuperset": lambda context, self, other: ConstantValue(
            self.members.keys() >= _members(context, other).keys()
        ),
        "isdisjoint": lambda context, self, other: ConstantValue(
            self.members.keys().isdisjoint(_members(context, other))
        ),
    }
)
