"""set and frozenset, and their methods: members by the hash keys that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stator.base.registry import Registry
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import Source
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, NewList, NewTuple, Recipe, call_recipe
from stator.dynamo.values.base import NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import ObjectValue

from .iterators import IteratorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor

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

    `twin`: of a set that was made in the frame, a real set of the keys to which the frame's operations were applied,
    since only a real set knows the order of its members; None where that order is not known.
    """

    __slots__ = ("members", "twin")

    def __init__(
        self,
        members: dict[Any, Value],
        source: Source | None = None,
        cls: type = set,
        obj: Any = None,
        twin: Any = None,
    ) -> None:
        super().__init__(cls, obj, source)
        self.members = members
        if obj is None:
            self._refuse_objects()  # which could not be made again
        self.twin = twin

    @classmethod
    def of(cls, context: CaptureContext, items: Any, kind: type = set) -> SetValue:
        made = cls({}, cls=kind, twin=set())
        for item in items:
            made.add(context, item)
        return made

    @classmethod
    def from_items(cls, context: CaptureContext, items: Value, kind: type = set) -> SetValue:
        """What `set(items)` gives."""
        made = cls.of(context, context.iterate(items), kind)
        if _is_taken_whole(context, items):
            real = _real(context, items, made.members)
            made.twin = None if real is None else set(real)
        return made

    def add(self, context: CaptureContext, item: Value) -> None:
        key = item.key(context)
        self.members.setdefault(key, item)  # of equal ones the first stays
        self.do("add", key)

    def in_order(self, context: CaptureContext) -> Any:
        """A real set of the keys, in the order of this one; None where that order is not known."""
        if self.obj is None:
            return self.twin
        if self.source is None or list(self.members) != list(self.obj):
            return None
        context.guard(self.source, GuardKind.PREDICATE, SameOrder(list(self.obj)))
        return self.obj

    def do(self, method: str, *others: Any) -> None:
        """Have the twin do what the set does. `others` are real; None is a set in an order that is not known."""
        if self.twin is not None:
            if method.endswith("update") and None in others:
                self.twin = None
            else:
                getattr(set, method)(self.twin, *others)

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
        if len(made) > 1 and (self.twin is None or list(made) != list(self.twin)):
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
        ordered = self.in_order(context) if len(self.members) > 1 else self.members
        if ordered is None:
            raise unsupported("set-members", "the order of the members of a set")
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
            return reconstructor.made_of_class(self, call_recipe(set.__new__, ConstantRecipe(self.cls)))
        made = self._new(reconstructor)
        if self.cls in (set, frozenset):
            return made if self.cls is set else call_recipe(frozenset, made)
        return reconstructor.made_of_class(self, call_recipe(frozenset.__new__, ConstantRecipe(self.cls), made))

    def _new(self, reconstructor: Reconstructor) -> Recipe:
        """A set in whose order the members come as in this one."""
        keys = list(self.members if self.twin is None and len(self.members) < 2 else self.twin or ())
        added = next((order for order in (keys, list(self.members)) if list(_added(order)) == keys), None)
        if added is not None and len(keys) == len(self.members):
            return call_recipe(set, NewList([reconstructor.recipe(self.members[key]) for key in added]))
        kept = set(self.twin or ())
        for order in (keys, list(self.members)) if len(keys) == len(self.members) else ():
            if list(set(dict.fromkeys(order))) == keys:  # CPython makes room for all keys of a dictionary at once
                listed = NewTuple([reconstructor.recipe(self.members[key]) for key in order])
                return call_recipe(set, call_recipe(dict.fromkeys, listed))
        own = all(member.is_constant() and member.source is None for member in self.members.values())
        if kept and own and list(kept.copy()) == keys:
            return call_recipe(kept.copy)
        raise unsupported("set-members", "a set whose order a new one would not have")


def _added(keys: list[Any]) -> set[Any]:
    """A set to which these keys were added one by one, as generated code makes it."""
    made: set[Any] = set()
    for key in keys:
        made.add(key)
    return made


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
        if _is_taken_whole(context, other):
            members = _members(context, other)
            self.do("update", _real(context, other, members))
            self.members = {**members, **self.members}
        else:
            for item in context.iterate(other):
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
    if self.twin is None and len(self.members) > 1:
        raise unsupported("set-members", "which member of a set comes first")
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
    return combined(context, self, "copy")


def combined(context: CaptureContext, self: SetValue, method: str, *others: Value) -> SetValue:
    """The set that a method gives: the real one of that name tells which members it has, and in which order."""
    read = [_members(context, other) for other in others]
    reals = [_real(context, other, members) for other, members in zip(others, read, strict=True)]
    members, twin = _combined(context, self, method, read, reals)
    return SetValue(members, cls=self.basic, twin=twin)


def _combined(
    context: CaptureContext, self: SetValue, method: str, read: list[dict[Any, Value]], reals: list[Any]
) -> tuple[dict[Any, Value], Any]:
    """Members and twin of the result; `read` and `reals` are the operands."""
    self._refuse_objects()
    mine = self.in_order(context)
    known = mine is not None and None not in reals
    real = mine if known else set(self.members)
    made = getattr(set if isinstance(real, set) else frozenset, method)(real, *(reals if known else map(set, read)))
    found = {id(key): item for members in (*read, self.members) for key, item in members.items()}
    equal = {key: item for members in (*reversed(read), self.members) for key, item in members.items()}
    return {key: found.get(id(key), equal[key]) for key in made}, made if known else None


def _is_taken_whole(context: CaptureContext, items: Value) -> bool:
    """Whether CPython makes room for all items at once, instead of adding one by one."""
    return isinstance(items, SetValue) or items.python_type(context) in (dict, set, frozenset)


def _real(context: CaptureContext, other: Value, members: dict[Any, Value]) -> Any:
    """The operand as a real method gets it; None for a set whose order is not known."""
    if isinstance(other, SetValue):
        return other.in_order(context) if len(other.members) > 1 else set(other.members)
    if other.is_constant() and isinstance(other.constant(), frozenset):
        return other.constant()
    return dict.fromkeys(members) if other.python_type(context) is dict else list(members)


def _members(context: CaptureContext, other: Value) -> dict[Any, Value]:
    """The items of an operand by their keys; of equal ones the first."""
    if isinstance(other, SetValue):
        other._refuse_objects()
        return other.members
    members: dict[Any, Value] = {}
    for item in context.iterate(other):
        members.setdefault(item.key(context), item)
    return members


def _refuse_iterators(context: CaptureContext, method: str, others: tuple[Value, ...]) -> None:
    """CPython's versions differ in how far these methods go through an iterator."""
    if any(hasattr(other.python_type(context), "__next__") for other in others):
        raise unsupported("set-members", f"{method}() by an iterator")


def _register_operation(name: str) -> None:
    def gives(context: CaptureContext, self: SetValue, *others: Value) -> Value:
        if name == "intersection":
            _refuse_iterators(context, name, others)
        return combined(context, self, name, *others)

    def changes(context: CaptureContext, self: SetValue, *others: Value) -> Value:
        if name == "intersection":
            _refuse_iterators(context, name, others)
        read = [_members(context, other) for other in others]
        reals = [_real(context, other, members) for other, members in zip(others, read, strict=True)]
        self.members, _ = _combined(context, self, name, read, reals)
        self.do(f"{name}_update", *reals)
        self.changed(context)
        return ConstantValue(None)

    set_methods.add(name, gives)
    if name != "union":
        set_methods.add(f"{name}_update", changes)


for _name in ("union", "intersection", "difference", "symmetric_difference"):
    _register_operation(_name)


@set_methods.register("issubset")
def _set_issubset(context: CaptureContext, self: SetValue, other: Value) -> Value:
    _refuse_iterators(context, "issubset", (other,))
    return ConstantValue(self.members.keys() <= _members(context, other).keys())


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
