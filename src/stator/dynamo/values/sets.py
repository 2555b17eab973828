"""set and frozenset, and their methods: members by the hash keys that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stator.base.registry import Registry

from ..guard import GuardKind
from ..recipe import CallRecipe, Constant, Load, NewObject, NewSet, Recipe
from ..source import Source
from .base import NotConstant, Value, unsupported
from .constants import ConstantValue
from .iterators import IteratorValue
from .objects import ObjectValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

set_methods: Registry[str, Callable[..., Value]] = Registry("set method")


class SameOrder:
    """Guard predicate: a set gives its members in this order."""

    def __init__(self, members: list[Any]) -> None:
        self.members = members

    def __call__(self, now: Any) -> bool:
        return list(now) == self.members

    def __repr__(self) -> str:
        return f"the members come as {self.members!r}"


class SetValue(ObjectValue):
    """A set or frozenset: hash key -> member."""

    __slots__ = ("members",)

    def __init__(
        self, members: dict[Any, Value], source: Source | None = None, cls: type = set, obj: Any = None
    ) -> None:
        super().__init__(cls, obj, source)
        self.members = members

    @classmethod
    def of(cls, tracer: Tracer, items: Any, kind: type = set) -> SetValue:
        members: dict[Any, Value] = {}
        for item in items:
            members.setdefault(item.key(tracer), item)  # of equal ones the first stays
        return cls(members, cls=kind)

    def add(self, tracer: Tracer, item: Value) -> None:
        self.members.setdefault(item.key(tracer), item)

    def changed(self, tracer: Tracer) -> None:
        tracer.mutations.content(self)

    def constant(self) -> Any:
        if self.cls not in (set, frozenset):
            raise NotConstant
        return self.cls(member.constant() for member in self.members.values())

    def key(self, tracer: Tracer) -> Any:
        if self.cls is frozenset:
            return frozenset(self.members)
        raise tracer.raised(TypeError, "unhashable type: 'set'")

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.members)

    def length(self, tracer: Tracer) -> int:
        return len(self.members)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return item.key(tracer) in self.members

    def iterate(self, tracer: Tracer) -> Iterator[Value]:
        # the order of a real set is its hash order and depends on its history, which only a real set knows
        if self.obj is None:
            ordered = list(set(self.members))
        elif list(self.members) == list(self.obj):
            ordered = list(self.members)
            tracer.guard(self.source, GuardKind.PREDICATE, SameOrder(ordered))  # type: ignore[arg-type]
        else:
            raise unsupported("set-members", "iterating over a set that was changed before")
        return self._while_steady(tracer, [self.members[key] for key in ordered])

    def _while_steady(self, tracer: Tracer, items: list[Value]) -> Iterator[Value]:
        for item in items:
            if len(self.members) != len(items):
                raise tracer.raised(RuntimeError, "Set changed size during iteration")
            yield item

    @property
    def basic(self) -> type:
        """The class of unions, differences and copies of it."""
        return frozenset if issubclass(self.cls, frozenset) else set

    def iterator(self, tracer: Tracer) -> Value:
        return IteratorValue(self.iterate(tracer))

    def builtin_method(self, tracer: Tracer, name: str) -> Callable[..., Value] | None:
        return set_methods.get(name) or super().builtin_method(tracer, name)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.cls is not set and not issubclass(self.cls, frozenset):
            return exits.made_of_class(self, NewObject(Constant(self.cls), set.__new__))
        made = NewSet([exits.recipe(member) for member in self.members.values()])
        if self.cls in (set, frozenset):
            return made if self.cls is set else CallRecipe(Constant(frozenset), [made])
        return exits.made_of_class(self, NewObject(Constant(self.cls), frozenset.__new__, [made]))


# ---- methods of set ----


@set_methods.register("add")
def _set_add(tracer: Tracer, self: SetValue, item: Value) -> Value:
    self.add(tracer, item)
    self.changed(tracer)
    return ConstantValue(None)


@set_methods.register("update")
def _set_update(tracer: Tracer, self: SetValue, *others: Value) -> Value:
    self.changed(tracer)  # also when an exception ends it halfway
    for other in others:
        for item in tracer.iterate(other):
            self.add(tracer, item)
    return ConstantValue(None)


@set_methods.register("discard")
def _set_discard(tracer: Tracer, self: SetValue, item: Value) -> Value:
    self.members.pop(item.key(tracer), None)
    self.changed(tracer)
    return ConstantValue(None)


@set_methods.register("remove")
def _set_remove(tracer: Tracer, self: SetValue, item: Value) -> Value:
    if self.members.pop(item.key(tracer), None) is None:
        raise tracer.raised_with(KeyError, [item])
    self.changed(tracer)
    return ConstantValue(None)


@set_methods.register("clear")
def _set_clear(tracer: Tracer, self: SetValue) -> Value:
    self.members.clear()
    self.changed(tracer)
    return ConstantValue(None)


@set_methods.register("copy")
def _set_copy(tracer: Tracer, self: SetValue) -> Value:
    if self.cls is frozenset:
        return self
    return SetValue(dict(self.members), cls=self.basic)


def _members(tracer: Tracer, other: Value) -> dict[Any, Value]:
    return other.members if isinstance(other, SetValue) else {item.key(tracer): item for item in tracer.iterate(other)}


@set_methods.register("union")
def _set_union(tracer: Tracer, self: SetValue, *others: Value) -> Value:
    members = dict(self.members)
    for other in others:
        for key, item in _members(tracer, other).items():
            members.setdefault(key, item)
    return SetValue(members, cls=self.basic)


@set_methods.register("intersection")
def _set_intersection(tracer: Tracer, self: SetValue, *others: Value) -> Value:
    members = dict(self.members)
    for other in others:
        allowed = _members(tracer, other)
        members = {key: item for key, item in members.items() if key in allowed}
    return SetValue(members, cls=self.basic)


@set_methods.register("difference")
def _set_difference(tracer: Tracer, self: SetValue, *others: Value) -> Value:
    members = dict(self.members)
    for other in others:
        refused = _members(tracer, other)
        members = {key: item for key, item in members.items() if key not in refused}
    return SetValue(members, cls=self.basic)


@set_methods.register("symmetric_difference")
def _set_symmetric_difference(tracer: Tracer, self: SetValue, other: Value) -> Value:
    mine, theirs = self.members, _members(tracer, other)
    members = {key: item for key, item in {**mine, **theirs}.items() if (key in mine) != (key in theirs)}
    return SetValue(members, cls=self.basic)


@set_methods.register("issubset")
def _set_issubset(tracer: Tracer, self: SetValue, other: Value) -> Value:
    return ConstantValue(self.members.keys() <= _members(tracer, other).keys())


@set_methods.register("issuperset")
def _set_issuperset(tracer: Tracer, self: SetValue, other: Value) -> Value:
    return ConstantValue(self.members.keys() >= _members(tracer, other).keys())


@set_methods.register("isdisjoint")
def _set_isdisjoint(tracer: Tracer, self: SetValue, other: Value) -> Value:
    return ConstantValue(self.members.keys().isdisjoint(_members(tracer, other).keys()))
