"""The recompile limit of joined frames: which inner caches are given up with the outer frame, because their versions
would fail, too. Works without torch; nothing is compiled here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import FunctionType
from typing import Any

from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.guard_tree import HELD_WEAKLY, build_guard_tree
from stator.dynamo.guards.source import CallSource, ItemSource, LocalSource, Source
from stator.dynamo.ir.resume import closure_of


@dataclass(frozen=True, slots=True)
class InnerCache:
    """The continuation that a joined function resumes first.

    cache: the Cache of that continuation.
    names: parameter of the joined function -> name of that parameter in the continuation.
    """

    cache: Any
    names: Mapping[str, str]


def failing_inner_caches(
    inside: InnerCache | None, versions: Sequence[Any], function: FunctionType, bound: Mapping[str, object]
) -> Iterator[tuple[Any, dict[str, object]]]:
    """The inner caches, the outermost first, with their arguments, up to the first whose part of the guards holds in
    some of these versions of the joined function."""
    names: Mapping[str, str] = dict.fromkeys(bound, "") if inside is None else inside.names
    while inside is not None:
        if any(_fits(version, names, function, bound) for version in versions):
            return
        yield inside.cache, {names[name]: value for name, value in bound.items() if name in names}
        inside = inside.cache.miss.inside
        if inside is not None:
            names = {name: inside.names[there] for name, there in names.items() if there in inside.names}


def inner_sources(places: set[Source], names: Mapping[str, str]) -> set[Source]:
    """The sources that the continuation has, too, by its own parameter names."""
    renamed = (_renamed(place, names) for place in places)
    return {place for place in renamed if place is not None}


def _renamed(place: Source, names: Mapping[str, str]) -> Source | None:
    """The source by the continuation's parameter names; None if the source is read from another parameter."""
    if isinstance(place, LocalSource):
        return LocalSource(names[place.name]) if place.name in names else None
    if isinstance(place, CallSource):
        arguments = [found for one in place.args if (found := _renamed(one, names)) is not None]
        return replace(place, args=tuple(arguments)) if len(arguments) == len(place.args) else None
    base = _renamed(place.base, names) if hasattr(place, "base") else None
    if base is None:
        return None
    return ItemSource(base, place.key) if isinstance(place, ItemSource) else replace(place, base=base)  # type: ignore[type-var, call-arg]


def _fits(version: Any, names: Mapping[str, str], function: FunctionType, bound: Mapping[str, object]) -> bool:
    """Whether the guards seem to hold, apart from those on the outer frames' parameters. Some guards in
    `version.detail` are descriptions without the object and cannot be checked; but the index of the first failed guard
    is exact."""
    others = bound.keys() - names.keys()
    values = tuple(bound.values())
    failure = version.guards.explain(values, function)
    if failure is not None and (failure[0] < 0 or _is_inside(version.detail[failure[0]], others)):
        return False
    kept = [guard for guard in version.detail if guard.kind not in _NOT_KEPT and _is_inside(guard, others)]
    return build_guard_tree(kept, function, closure=closure_of(function.__code__)).check(values, function)


_NOT_KEPT = (*HELD_WEAKLY, GuardKind.DICT_KEYS, GuardKind.LOOKUPS)


def _is_inside(guard: Guard, others: set[str]) -> bool:
    return not _reads(guard.source, others) and not _reads(guard.expected, others)


def _reads(place: object, names: set[str]) -> bool:
    """Whether a source, or a source of a tuple, is read from one of these parameters."""
    if isinstance(place, LocalSource):
        return place.name in names
    if isinstance(place, tuple):
        return any(_reads(one, names) for one in place)
    if not isinstance(place, Source):
        return False
    parts = (getattr(place, field.name) for field in fields(place))  # type: ignore[arg-type]
    return any(_reads(part, names) for part in parts if isinstance(part, (Source, tuple)))
