"""Turns a list of guards into the C guard tree, and a failed guard into a sentence.

Shared prefixes of sources become shared nodes. tensor_guards.py registers the guards on tensors and torch's state, so
this file works without torch. csrc/guard_*.c evaluate guards; nothing here does.
"""

from __future__ import annotations

import enum
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from stator.base.errors import CompileError
from stator.base.registry import Registry
from stator.dynamo.host.naming import class_name, full_name, safe_repr
from stator.dynamo.host.native_status import native as _native

from . import source as sources
from .guard import Guard, GuardKind, Lookup
from .source import Source

MAX_CALL_ARGUMENTS = 8


@dataclass(slots=True)
class GuardTreeBuilder:
    """The tree under construction. `ordinal` is the index of the current guard."""

    tree: Any
    code: CodeType
    closure: Sequence[str]
    parameters: dict[str, int]
    by_identity: dict[int, int]
    by_path: dict[tuple[object, ...], int]
    checked: set[tuple[int, int, int]]
    ordinal: int = 0

    def node(self, source: Source) -> int:
        """The node that reads `source`; created on first use."""
        node = self.by_identity.get(id(source))
        if node is None:
            accessor = accessors.get(type(source))
            if accessor is None:
                raise CompileError("guards", f"no accessor for {type(source).__name__} ({source})")
            node = self.by_identity[id(source)] = accessor(self, source)
        return node

    def child(self, parent: int, access: int, key: Any = None, index: int = 0, identity: object = None) -> int:
        """The child of `parent` by this accessor; `identity` distinguishes keys that may compare equal."""
        path = (parent, access, type(key), key if identity is None else identity, index)
        node = self.by_path.get(path)
        if node is None:
            node = self.by_path[path] = self.tree.add_node(parent, access, key, index, self.ordinal)
        return node

    def check(self, guard: Guard, kind: int, payload: object) -> None:
        node = self.node(guard.source)
        mark = (node, kind, id(guard.expected))
        if mark not in self.checked:
            self.checked.add(mark)
            self.tree.add_check(node, kind, payload, self.ordinal)


Accessor = Callable[[GuardTreeBuilder, Any], int]
Checker = Callable[[GuardTreeBuilder, Guard], None]
accessors: Registry[type, Accessor] = Registry("source accessor")
checkers: Registry[GuardKind, Checker] = Registry("guard kind")
describers: Registry[GuardKind, Callable[[Guard, object], str]] = Registry("description of a guard kind")


def build_guard_tree(
    guards: Sequence[Guard],
    function: FunctionType,
    invalidated: Callable[[Any], None] | None = None,
    *,
    closure: Sequence[str] | None = None,
) -> Any:
    """The C tree of `guards` for calls of `function`. Its `__closure__` holds the cells of the variables `closure` (by
    default `co_freevars`; resume code has more).

    `invalidated` is called (with a weak reference) when an object dies that an identity guard holds weakly: the tree
    can then never hold again. Raises CompileError for a guard that no check can express.
    """
    code = function.__code__
    parameters = {name: index for index, name in enumerate(code.co_varnames[: bound_count(code)])}
    names = code.co_freevars if closure is None else closure
    builder = GuardTreeBuilder(_native.GuardTree(invalidated), code, names, parameters, {}, {}, set())
    for builder.ordinal, guard in enumerate(guards):
        checkers[guard.kind](builder, guard)
    return builder.tree


def bound_count(code: CodeType) -> int:
    """The number of leading local variables that a call binds."""
    star = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_argcount + code.co_kwonlyargcount + star


# ---- sources ----


@accessors.register(sources.LocalSource)
def _local(builder: GuardTreeBuilder, source: sources.LocalSource) -> int:
    if source.name not in builder.parameters:
        raise CompileError("guards", f"{source.name!r} is not a parameter of {builder.code.co_name}")
    return builder.child(0, _native.ACCESS_LOCAL, None, builder.parameters[source.name])


@accessors.register(sources.CellSource)
def _cell(builder: GuardTreeBuilder, source: sources.CellSource) -> int:
    if source.name not in builder.closure:
        raise CompileError("guards", f"{source.name!r} is not a free variable of {builder.code.co_name}")
    index = builder.closure.index(source.name)
    return builder.child(builder.child(0, _native.ACCESS_FUNCTION), _native.ACCESS_CLOSURE, None, index)


@accessors.register(sources.GlobalSource)
def _global(builder: GuardTreeBuilder, source: sources.GlobalSource) -> int:
    function = builder.child(0, _native.ACCESS_FUNCTION)
    return builder.child(builder.child(function, _native.ACCESS_GLOBALS), _native.ACCESS_DICT_ITEM, source.name)


@accessors.register(sources.ModuleGlobalSource)
def _module_global(builder: GuardTreeBuilder, source: sources.ModuleGlobalSource) -> int:
    module = builder.child(0, _native.ACCESS_MODULE_DICT, source.module)
    return builder.child(module, _native.ACCESS_DICT_ITEM, source.name)


@accessors.register(sources.ItemSource)
def _item(builder: GuardTreeBuilder, source: sources.ItemSource) -> int:
    base = builder.node(source.base)
    if type(source.key) is int and abs(source.key) < 1 << 62:
        return builder.child(base, _native.ACCESS_SEQUENCE_ITEM, source.key, source.key)
    identity = None if is_plain(source.key) else id(source.key)
    return builder.child(base, _native.ACCESS_DICT_ITEM, source.key, identity=identity)


@accessors.register(sources.CallSource, sources.ReadSource)
def _call(builder: GuardTreeBuilder, source: sources.CallSource) -> int:
    if len(source.args) > MAX_CALL_ARGUMENTS:
        raise CompileError("guards", f"{source} has more than {MAX_CALL_ARGUMENTS} arguments")
    slots = tuple(builder.tree.save(builder.node(argument)) for argument in source.args)
    identity = (id(source.function), slots)
    return builder.child(0, _native.ACCESS_CALL, (source.function, slots), identity=identity)


# ---- checks ----

PLAIN_TYPES: set[type] = {
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    range,
}


def register_plain_type(type_: type) -> None:
    """Allow EQUALS for this type; its == must be written in C and free of side effects."""
    PLAIN_TYPES.add(type_)
    if _native is not None:
        _native.register_plain_type(type_)


def is_plain(value: object) -> bool:
    """Whether EQUALS can compare this value without running user code."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    if type(value) is slice:
        return is_plain((value.start, value.stop, value.step))
    return type(value) in PLAIN_TYPES or issubclass(type(value), enum.Enum)


# Kinds whose native check compares `expected` itself, with the name of the check.
PLAIN_CHECKS = {
    GuardKind.IS: "CHECK_IS",
    GuardKind.TYPE: "CHECK_TYPE",
    GuardKind.LENGTH: "CHECK_LENGTH",
    GuardKind.ABSENT: "CHECK_ABSENT",
    GuardKind.NOT_IN: "CHECK_NOT_IN",
    GuardKind.CODE: "CHECK_CODE",
    GuardKind.PREDICATE: "CHECK_PREDICATE",
    GuardKind.CALLBACKS: "CHECK_CALLBACKS",
}


def _check_expected(check: str, builder: GuardTreeBuilder, guard: Guard) -> None:
    builder.check(guard, getattr(_native, check), guard.expected)


for _kind, _check in PLAIN_CHECKS.items():
    checkers.add(_kind, partial(_check_expected, _check))


@checkers.register(GuardKind.EQUALS)
def _check_equals(builder: GuardTreeBuilder, guard: Guard) -> None:
    if type(guard.expected) is CodeType:  # distinct code objects compare equal, so code is compared by identity
        builder.check(guard, _native.CHECK_IS, guard.expected)
        return
    if not is_plain(guard.expected):
        raise CompileError("guards", f"{guard.source} == {class_name(type(guard.expected))} could run user code")
    builder.check(guard, _native.CHECK_EQUALS, guard.expected)


@checkers.register(GuardKind.LOOKUPS)
def _check_lookups(builder: GuardTreeBuilder, guard: Guard) -> None:
    payload = tuple(part for lookup in guard.expected for part in (lookup.name, lookup.found, lookup.owner))
    builder.check(guard, _native.CHECK_LOOKUPS, payload)


def _relate(builder: GuardTreeBuilder, kind: int, related: Sequence[Source]) -> None:
    slots = tuple(builder.tree.save(builder.node(source)) for source in related)
    builder.tree.add_relation(kind, slots, builder.ordinal)


# ---- explanations ----

HELD_WEAKLY = (GuardKind.IS, GuardKind.TYPE, GuardKind.CODE)


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A text in place of an object in a kept guard, so that explanations keep nothing alive. `held`: a weak reference
    to the object, if the explanation needs it."""

    text: str
    held: Any = None

    def __repr__(self) -> str:
        return self.text


def without_strong_references(guards: Sequence[Guard]) -> tuple[Guard, ...]:
    """The guards without strong references to objects whose identity they compare."""
    return tuple(map(_note, guards))


def _note(guard: Guard) -> Guard:
    if guard.kind in HELD_WEAKLY:
        held = weakref.ref(guard.expected) if guard.movable else None
        return replace(guard, expected=ObjectName(brief(guard.expected), held))
    if guard.kind is GuardKind.DICT_KEYS and not all(map(is_plain, guard.expected)):
        keys = tuple(key if is_plain(key) else ObjectName(brief(key)) for key in guard.expected)
        return replace(guard, expected=keys)
    if guard.kind is GuardKind.LOOKUPS:
        return replace(guard, expected=tuple(map(_noted_lookup, guard.expected)))
    return guard


def _noted_lookup(lookup: Lookup) -> Lookup:
    return Lookup(lookup.name, _weakly(lookup.found), _weakly(lookup.owner))


def _weakly(value: Any) -> Any:
    """A weak reference to a class or function; any other value itself."""
    return weakref.ref(value) if isinstance(value, (type, FunctionType)) else value


def _held(value: Any) -> Any:
    return value() if type(value) is weakref.ref else value


def brief(value: object) -> str:
    """A short text for a value, made without running user code."""
    if type(value) in PLAIN_TYPES or (type(value) is tuple and is_plain(value)):
        text = safe_repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    if issubclass(type(value), type):
        return full_name(value)  # type: ignore[arg-type]
    if type(value) is FunctionType:
        return f"function {value.__qualname__}"
    if type(value) is CodeType:
        return f'code of {value.co_name}, File "{value.co_filename}", line {value.co_firstlineno}'
    return f"{class_name(type(value))} object"


def describe_failure(guards: Sequence[Guard], failure: tuple[int] | tuple[int, object]) -> str:
    """A line for a result of `GuardTree.explain`, e.g. `x: tensor shape [4] became [5] (relied on at File ...)`."""
    if failure[0] < 0:
        return "the objects that the guards refer to are gone"
    guard = guards[failure[0]]
    if len(failure) == 1:
        text = f"{guard.source}: cannot be read any more"
    else:
        text = f"{guard.source}: {describers.get(guard.kind)(guard, failure[1])}"  # type: ignore[misc]
    known = guard.place is not None and not guard.place.filename.endswith(_MODULE_CALL)
    return f"{text} (relied on at {guard.place})" if known else text


_MODULE_CALL = os.path.join("torch", "nn", "modules", "module.py")  # the user's line is further out


_TEXTS = {
    GuardKind.ABSENT: "attribute {!r} changed between absent and present",
    GuardKind.DISTINCT: "is now the same object as {}",
    GuardKind.SAME: "is no longer the same object as {}",
}


def _describe_by(text: str, guard: Guard, found: object) -> str:
    return text.format(guard.expected)


for _kind, _text in _TEXTS.items():
    describers.add(_kind, partial(_describe_by, _text))


@describers.register(GuardKind.IS, GuardKind.EQUALS)
def _describe_value(guard: Guard, found: object) -> str:
    old, new = safe_repr(guard.expected), brief(found)
    return f"{old} became {new}" if old != new else f"{old} became another {new}"


@describers.register(GuardKind.TYPE)
def _describe_type(guard: Guard, found: object) -> str:
    return f"type {guard.expected!r} became {brief(type(found))}"


@describers.register(GuardKind.LENGTH)
def _describe_length(guard: Guard, found: object) -> str:
    for type_ in (list, tuple, dict, set, frozenset, str):
        if issubclass(type(found), type_):
            return f"length {guard.expected} became {type_.__len__(found)}"  # type: ignore[arg-type]
    return f"something of length {guard.expected} became {brief(found)}"


@describers.register(GuardKind.DICT_KEYS)
def _describe_keys(guard: Guard, found: object) -> str:
    if not issubclass(type(found), dict):
        return f"a dict became {brief(found)}"
    new: list[object] = list(dict.keys(found))  # type: ignore[arg-type]
    old_names = [key if type(key) is ObjectName else _key_name(key) for key in guard.expected]
    new_names = [_key_name(key) for key in new]
    added = [str(name) for name in new_names if name not in old_names]
    gone = [str(name) for name in old_names if name not in new_names]
    changes = ([f"gained {', '.join(added)}"] if added else []) + ([f"lost {', '.join(gone)}"] if gone else [])
    return f"its keys {' and '.join(changes) or 'changed their order'}"


def _key_name(key: object) -> object:
    """A text for a key in an explanation; equal keys of one type have equal texts."""
    return ObjectName(brief(key))


@describers.register(GuardKind.NOT_IN)
def _describe_not_in(guard: Guard, found: object) -> str:
    return f"now has the key {brief(guard.expected)}"


@describers.register(GuardKind.CODE)
def _describe_code(guard: Guard, found: object) -> str:
    new = brief(found.__code__) if type(found) is FunctionType else brief(found)
    return f"{guard.expected!r} became {new}"


@describers.register(GuardKind.LOOKUPS)
def _describe_lookups(guard: Guard, found: object) -> str:
    changed = [lookup.name for lookup in guard.expected if not _finds(found, lookup)]
    return f"{', '.join(changed) or 'an attribute'} of the class was changed, added or removed"


def _finds(cls: Any, lookup: Lookup) -> bool:
    owner = next((base for base in cls.__mro__ if lookup.name in base.__dict__), None)
    if lookup.found is not None:
        return owner is not None and owner.__dict__[lookup.name] is _held(lookup.found)
    return owner is _held(lookup.owner)


@describers.register(GuardKind.CALLBACKS)
@describers.register(GuardKind.PREDICATE)
def _describe_predicate(guard: Guard, found: object) -> str:
    if hasattr(guard.expected, "what_changed"):
        return guard.expected.what_changed(found)
    return f"{getattr(guard.expected, '__name__', 'a predicate')} no longer holds for {brief(found)}"


@describers.register(GuardKind.ALL_DISTINCT)
def _describe_all_distinct(guard: Guard, found: object) -> str:
    return f"two of {len(guard.expected)} places that held different objects now hold the same one"


accessors.add_all(
    {
        sources.FunctionSource: lambda builder, source: builder.child(0, _native.ACCESS_FUNCTION),
        sources.BuiltinSource: lambda builder, source: builder.child(
            builder.child(0, _native.ACCESS_BUILTINS), _native.ACCESS_DICT_ITEM, source.name
        ),
        sources.ConstantSource: lambda builder, source: builder.child(
            0, _native.ACCESS_CONSTANT, source.value, identity=id(source.value)
        ),
        sources.AttrSource: lambda builder, source: builder.child(
            builder.node(source.base), _native.ACCESS_ATTR, source.name
        ),
        sources.InstanceDictSource: lambda builder, source: builder.child(
            builder.node(source.base), _native.ACCESS_INSTANCE_DICT
        ),
        sources.TypeSource: lambda builder, source: builder.child(builder.node(source.base), _native.ACCESS_TYPE),
        sources.ClosureSource: lambda builder, source: builder.child(
            builder.node(source.base), _native.ACCESS_CLOSURE, None, source.index
        ),
    }
)


checkers.add_all(
    {
        GuardKind.DICT_KEYS: lambda builder, guard: builder.check(
            guard, _native.CHECK_DICT_KEYS, tuple(guard.expected)
        ),
        GuardKind.DISTINCT: lambda builder, guard: _relate(
            builder, _native.CHECK_DISTINCT, (guard.source, guard.expected)
        ),
        GuardKind.SAME: lambda builder, guard: _relate(builder, _native.CHECK_SAME, (guard.source, guard.expected)),
        GuardKind.ALL_DISTINCT: lambda builder, guard: _relate(builder, _native.CHECK_DISTINCT, guard.expected),
    }
)
