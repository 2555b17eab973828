"""Frames that go on together and were compiled too often: which of those inside would have to be compiled again by
themselves, too, and are given up with the one around them. Works without torch; nothing is compiled here."""

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
    """What goes on inside of a frame, by itself.

    cache: of its compiled versions.
    names: which parameters of the frame are its, and what they are called there.
    """

    cache: Any
    names: Mapping[str, str]


def failing_inner_caches(
    inside: InnerCache | None, versions: Sequence[Any], function: FunctionType, bound: Mapping[str, object]
) -> Iterator[tuple[Any, dict[str, object]]]:
    """The caches of those inside, the outermost first, and their arguments: as long as none of these versions of the
    frame around them would fit for what they rely on."""
    names: Mapping[str, str] = dict.fromkeys(bound, "") if inside is None else inside.names
    while inside is not None:
        if any(_fits(version, names, function, bound) for version in versions):
            return
        yield inside.cache, {names[name]: value for name, value in bound.items() if name in names}
        inside = inside.cache.miss.inside
        if inside is not None:
            names = {name: inside.names[there] for name, there in names.items() if there in inside.names}


def inner_sources(places: set[Source], names: Mapping[str, str]) -> set[Source]:
    """Those that what goes on inside has, too, as it finds them."""
    renamed = (_renamed(place, names) for place in places)
    return {place for place in renamed if place is not None}


def _renamed(place: Source, names: Mapping[str, str]) -> Source | None:
    """None: it is found by way of something else."""
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
    """Whether the guards seem to hold, but for those on what only the frames around have. What a version keeps of some
    guards says nothing of whether they hold; but which guard fails first is known."""
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
    """Whether a place, or one of several, is found by way of one of these parameters."""
    if isinstance(place, LocalSource):
        return place.name in names
    if isinstance(place, tuple):
        return any(_reads(one, names) for one in place)
    if not isinstance(place, Source):
        return False
    parts = (getattr(place, field.name) for field in fields(place))  # type: ignore[arg-type]
    return any(_reads(part, names) for part in parts if isinstance(part, (Source, tuple)))
