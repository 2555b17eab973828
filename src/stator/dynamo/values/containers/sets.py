"""set and frozenset, and their methods: members by the hash keys that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stator.base.registry import Registry
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import Source
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, NewObject, NewSet, NewTuple, Recipe
from stator.dynamo.values.base import NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import ObjectValue

from .iterators import IteratorValue

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext
    from stator.dynamo.interpreter.reconstruction import Reconstructor

set_methods: Registry[str, Callable[..., Value]] = Registry("set method")


class SameOrder:
    """Guard predicate: a set gives its members in this order."""

    def __init__(self, members: list[Any]) -> None:
        self.members = members

    def __call__(self, now: Any) -> bool:
        return list(now) == self.members

    def __repr__(self) -> str:
        return f"the members come as {self.members!r}"


class ObjectMember(Value):
    """An object in a set from outside: whether it is in there can be asked, what it is cannot."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        super().__init__()
        self.obj = obj

    def python_type(self, context: CaptureContext) -> type:
        return type(self.obj)

    def key(self, context: CaptureContext) -> Any:
        return self.obj


class SetValue(ObjectValue):
    """A set or frozenset: hash key -> member.

    `twin`: of one that was made in the frame, a real set of the keys to which the same was done: it alone knows in
    which order the members come. `rests_on`: sets from outside whose own order has a part in that.
    """

    __slots__ = ("members", "rests_on", "twin")

    def __init__(
        self,
        members: dict[Any, Value],
        source: Source | None = None,
        cls: type = set,
        obj: Any = None,
        twin: Any = None,
        rests_on: tuple[SetValue, ...] = (),
    ) -> None:
        super().__init__(cls, obj, source)
        self.members = members
        for root in (self, *rests_on) if obj is None else ():
            root._refuse_objects()  # neither the members nor their order could be made again
        self.twin = set(members) if twin is None and obj is None else twin
        self.rests_on = rests_on

    @classmethod
    def of(cls, context: CaptureContext, items: Any, kind: type = set) -> SetValue:
        members: dict[Any, Value] = {}
        twin: set[Any] = set()
        for item in items:
            key = item.key(context)
            members.setdefault(key, item)  # of equal ones the first stays
            twin.add(key)
        return cls(members, cls=kind, twin=twin)

    @classmethod
    def from_items(cls, context: CaptureContext, items: Value, kind: type = set) -> SetValue:
        """What `set(items)` gives."""
        made = cls.of(context, context.iterate(items), kind)
        if isinstance(items, SetValue):
            made.twin, made.rests_on = set(items.in_order()), items.roots()
        elif items.python_type(context) is dict:  # which makes room for all of them first
            made.twin = set(dict.fromkeys(made.members))
        return made

    def add(self, context: CaptureContext, item: Value) -> None:
        key = item.key(context)
        self.members.setdefault(key, item)
        if self.twin is not None:
            self.twin.add(key)

    def in_order(self) -> Any:
        """A real set of the keys that gives them in the order of this one."""
        if self.twin is not None:
            return self.twin
        unchanged = list(self.members) == list(self.obj)
        return self.obj if unchanged else set(self.members)

    def do_with(self, method: str, other: Value) -> None:
        """Have the twin do what the set does with another one."""
        if isinstance(other, SetValue):
            other._refuse_objects()
            self.do(method, other.in_order())
            self.rests_on += other.roots()
        elif other.is_constant() and isinstance(other.constant(), frozenset):
            self.do(method, other.constant())

    def roots(self) -> tuple[SetValue, ...]:
        return self.rests_on if self.twin is not None else (self,)

    def do(self, method: str, *others: Any) -> None:
        """Have the twin do what the set does."""
        if self.twin is not None:
            getattr(set, method)(self.twin, *others)

    def rely_on_order(self, context: CaptureContext) -> None:
        for root in self.rests_on:
            if list(root.members) == list(root.obj):
                context.guard(root.source, GuardKind.PREDICATE, SameOrder(list(root.obj)))  # type: ignore[arg-type]

    def _refuse_objects(self) -> None:
        if any(isinstance(member, ObjectMember) for member in self.members.values()):
            raise unsupported("set-members", "the members of a set of objects")

    def changed(self, context: CaptureContext) -> None:
        context.mutations.content(self)

    def constant(self) -> Any:
        """One with its members in its order, which texts show. Of sets from outside that is not relied on here."""
        if self.cls not in (set, frozenset):
            raise NotConstant
        made = self.cls(member.constant() for member in self.members.values())
        if len(made) > 1 and (self.twin is None or self.rests_on or list(made) != list(self.twin)):
            raise NotConstant
        return made

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
        self._refuse_objects()
        # the order of a real set is its hash order and depends on its history, which only a real set knows
        if self.obj is None:
            ordered = list(self.twin)
            self.rely_on_order(context)
        elif list(self.members) == list(self.obj):
            ordered = list(self.members)
            context.guard(self.source, GuardKind.PREDICATE, SameOrder(ordered))  # type: ignore[arg-type]
        else:
            raise unsupported("set-members", "iterating over a set that was changed before")
        return self._while_steady(context, [self.members[key] for key in ordered])

    def _while_steady(self, context: CaptureContext, items: list[Value]) -> Iterator[Value]:
        for item in items:
            if len(self.members) != len(items):
                raise context.raised(RuntimeError, "Set changed size during iteration")
            yield item

    @property
    def basic(self) -> type:
        """The class of unions, differences and copies of it."""
        return frozenset if issubclass(self.cls, frozenset) else set

    def iterator(self, context: CaptureContext) -> Value:
        return IteratorValue(self.iterate(context))

    def builtin_method(self, context: CaptureContext, name: str) -> Callable[..., Value] | None:
        return set_methods.get(name) or super().builtin_method(context, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.cls is not set and not issubclass(self.cls, frozenset):
            return reconstructor.made_of_class(self, NewObject(ConstantRecipe(self.cls), set.__new__))
        made = self._new(reconstructor)
        if self.cls in (set, frozenset):
            return made if self.cls is set else CallRecipe(ConstantRecipe(frozenset), [made])
        return reconstructor.made_of_class(self, NewObject(ConstantRecipe(self.cls), frozenset.__new__, [made]))

    def _new(self, reconstructor: Reconstructor) -> Recipe:
        """A set in whose order the members come as in this one, as far as a new one can be made so."""
        self.rely_on_order(reconstructor.context)
        keys = list(self.twin)
        kept = set(self.twin)
        orders = (keys, list(self.members))
        added = [order for order in orders if _as_added(order) == keys]
        for order in orders if not added else ():
            if list(set(dict.fromkeys(order))) == keys:  # for those of a dictionary, room is made at once
                listed = NewTuple([reconstructor.recipe(self.members[key]) for key in order])
                return CallRecipe(ConstantRecipe(set), [CallRecipe(ConstantRecipe(dict.fromkeys), [listed])])
        constant = all(member.is_constant() for member in self.members.values())
        if not added and constant and list(kept.copy()) == keys:
            return CallRecipe(ConstantRecipe(kept.copy))
        return NewSet([reconstructor.recipe(self.members[key]) for key in (*added, keys)[0]])


def _as_added(keys: list[Any]) -> list[Any]:
    """In which order a set has them to which they were added in this one."""
    made: set[Any] = set()
    for key in keys:
        made.add(key)
    return list(made)


# ---- methods of set ----


@set_methods.register("add")
def _set_add(context: CaptureContext, self: SetValue, item: Value) -> Value:
    self.add(context, item)
    self.changed(context)
    return ConstantValue(None)


@set_methods.register("update")
def _set_update(context: CaptureContext, self: SetValue, *others: Value) -> Value:
    self.changed(context)  # also when an exception ends it halfway
    for other in others:
        self.do_with("update", other)
        items = context.iterate(other)
        if other.python_type(context) is dict:  # for which it makes room at once
            keyed = list(items)
            self.do("update", dict.fromkeys([item.key(context) for item in keyed]))
            items = iter(keyed)
        for item in items:
            self.add(context, item)
    return ConstantValue(None)


@set_methods.register("discard")
def _set_discard(context: CaptureContext, self: SetValue, item: Value) -> Value:
    key = item.key(context)
    self.members.pop(key, None)
    self.do("discard", key)
    self.changed(context)
    return ConstantValue(None)


@set_methods.register("remove")
def _set_remove(context: CaptureContext, self: SetValue, item: Value) -> Value:
    key = item.key(context)
    if self.members.pop(key, None) is None:
        raise context.raised_with(KeyError, [item])
    self.do("discard", key)
    self.changed(context)
    return ConstantValue(None)


@set_methods.register("pop")
def _set_pop(context: CaptureContext, self: SetValue) -> Value:
    if not self.members:
        raise context.raised(KeyError, "pop from an empty set")
    self._refuse_objects()
    if len(self.members) > 1:
        if self.twin is None:
            raise unsupported("set-members", "which member of a set from outside comes first")
        self.rely_on_order(context)
    key = next(iter(self.members)) if self.twin is None else self.twin.pop()
    self.changed(context)
    return self.members.pop(key)


@set_methods.register("clear")
def _set_clear(context: CaptureContext, self: SetValue) -> Value:
    self.members.clear()
    self.do("clear")
    self.changed(context)
    return ConstantValue(None)


@set_methods.register("copy")
def _set_copy(context: CaptureContext, self: SetValue) -> Value:
    if self.cls is frozenset:
        return self
    return combined(self, "copy", dict(self.members))


def combined(self: SetValue, method: str, members: dict[Any, Value], *others: Any, roots: Any = ()) -> SetValue:
    """The set that a method gives: the real one of that name says in which order its members come."""
    real = self.in_order()
    twin = getattr(set if isinstance(real, set) else frozenset, method)(real, *others)
    return SetValue(members, cls=self.basic, twin=twin, rests_on=self.roots() + tuple(roots))


@dataclass(slots=True)
class Read:
    """The other operands of a method, each gone through once, since an iterator gives its items only once."""

    members: list[dict[Any, Value]]  # of equal ones the first
    real: list[Any]  # what the real method is given
    roots: list[SetValue]  # whose order has a part in what it makes of that

    @classmethod
    def of(cls, context: CaptureContext, others: tuple[Value, ...]) -> Read:
        read = cls([], [], [])
        for other in others:
            read.add(context, other)
        return read

    def add(
        self, context: CaptureContext, other: Value, wanted: dict[Any, Value] | None = None
    ) -> tuple[dict[Any, Value], Any]:
        """Go through one more. `wanted`: as in `_members`."""
        members = _members(context, other, wanted)
        real: Any
        if isinstance(other, SetValue):
            real = other.in_order()
            self.roots += other.roots()
        elif other.is_constant() and isinstance(other.constant(), frozenset):
            real = other.constant()
        else:  # for a dictionary, sets make room for all of it first
            real = (dict.fromkeys if other.python_type(context) is dict else list)(members)
        self.members.append(members)
        self.real.append(real)
        return members, real


def _stops_early(method: str) -> bool:
    items = iter((1, 2))
    getattr({1}, method)(items)
    return next(items, None) is not None


_SUBSET_STOPS_EARLY = _stops_early("issubset")  # since CPython 3.12
_INTERSECTION_STOPS_EARLY = _stops_early("intersection")


def _members(context: CaptureContext, other: Value, wanted: dict[Any, Value] | None = None) -> dict[Any, Value]:
    """The items of an operand by their keys, no further than until all that are `wanted` came."""
    if isinstance(other, SetValue):
        return other.members
    members: dict[Any, Value] = {}
    came = 0
    for item in context.iterate(other):
        key = item.key(context)
        if key in members:
            continue
        members[key] = item
        came += wanted is not None and key in wanted
        if wanted and came == len(wanted):
            break
    return members


@set_methods.register("union")
def _set_union(context: CaptureContext, self: SetValue, *others: Value) -> Value:
    members, read = dict(self.members), Read.of(context, others)
    for theirs in read.members:
        members = {**theirs, **members}
    return combined(self, "union", members, *read.real, roots=read.roots)


@set_methods.register("intersection")
def _set_intersection(context: CaptureContext, self: SetValue, *others: Value) -> Value:
    members, read = dict(self.members), Read([], [], [])
    for other in others:
        theirs, real = read.add(context, other, members if _INTERSECTION_STOPS_EARLY else None)
        # the objects are those of the operand that is gone through: of two sets the smaller one, else the iterable
        kept = members if isinstance(real, (set, frozenset)) and len(theirs) > len(members) else theirs
        members = {key: kept[key] for key in members if key in theirs}
    return combined(self, "intersection", members, *read.real, roots=read.roots)


@set_methods.register("difference")
def _set_difference(context: CaptureContext, self: SetValue, *others: Value) -> Value:
    read = Read.of(context, others)
    members = {key: item for key, item in self.members.items() if not any(key in theirs for theirs in read.members)}
    return combined(self, "difference", members, *read.real, roots=read.roots)


@set_methods.register("symmetric_difference")
def _set_symmetric_difference(context: CaptureContext, self: SetValue, other: Value) -> Value:
    read = Read.of(context, (other,))
    mine, (theirs,) = self.members, read.members
    members = {key: item for key, item in {**mine, **theirs}.items() if (key in mine) != (key in theirs)}
    return combined(self, "symmetric_difference", members, *read.real, roots=read.roots)


def _registers_in_place(name: str) -> None:
    """The method that leaves in the set what another gives."""
    gives = set_methods[name]

    def handler(context: CaptureContext, self: SetValue, *others: Value) -> Value:
        for other in others:
            if not isinstance(other, SetValue):
                if name == "intersection":  # which goes through the other, and so orders what is left
                    raise unsupported("set-members", "intersection_update() by something else than a set")
                other = SetValue.from_items(context, other)
            result = gives(context, self, other)
            assert isinstance(result, SetValue)
            self.members = dict(result.members)
            self.do_with(f"{name}_update", other)
            self.changed(context)
        return ConstantValue(None)

    set_methods.add(f"{name}_update", handler)


for _name in ("difference", "intersection", "symmetric_difference"):
    _registers_in_place(_name)


@set_methods.register("issubset")
def _set_issubset(context: CaptureContext, self: SetValue, other: Value) -> Value:
    wanted = self.members if _SUBSET_STOPS_EARLY else None
    return ConstantValue(self.members.keys() <= _members(context, other, wanted).keys())


def _all_are(context: CaptureContext, other: Value, contained: bool, members: dict[Any, Value]) -> Value:
    """Whether all items of the other are among the members, or none is; an iterator goes no further than that takes."""
    if isinstance(other, SetValue):
        return ConstantValue(all((key in members) is contained for key in other.members))
    return ConstantValue(all((item.key(context) in members) is contained for item in context.iterate(other)))


@set_methods.register("issuperset")
def _set_issuperset(context: CaptureContext, self: SetValue, other: Value) -> Value:
    return _all_are(context, other, True, self.members)


@set_methods.register("isdisjoint")
def _set_isdisjoint(context: CaptureContext, self: SetValue, other: Value) -> Value:
    return _all_are(context, other, False, self.members)
