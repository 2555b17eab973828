"""The user's guard filter: shows it the guards of a compiled version, and keeps those it selects. At the user's own
risk: compiled code does not notice changes that are no longer guarded.

The filter is `options={"guard_filter_fn": f}`, with `f(records) -> list of bool`. Records have the fields that filters
written for torch.compile read. Values are read by the guard tree's own accessors; no guard is evaluated here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType

import torch

from stator.base.errors import CompileError, StatorError, UsageError, UserPlace

from .guard import Guard, GuardKind
from .guard_tree import build_guard_tree
from .source import BuiltinSource, GlobalSource, ModuleGlobalSource, Source

_TYPES = {
    GuardKind.IS: "ID_MATCH",
    GuardKind.TYPE: "TYPE_MATCH",
    GuardKind.EQUALS: "EQUALS_MATCH",
    GuardKind.TENSOR: "TENSOR_MATCH",
    GuardKind.CONTENT: "TENSOR_VERSION_MATCH",
    GuardKind.LENGTH: "SEQUENCE_LENGTH",
    GuardKind.DICT_KEYS: "DICT_KEYS_MATCH",
    GuardKind.ABSENT: "NOT_PRESENT_IN_GENERIC_DICT",
    GuardKind.NOT_IN: "DICT_CONTAINS",
    GuardKind.CODE: "FUNCTION_MATCH",
    GuardKind.DISTINCT: "NO_TENSOR_ALIASING",
    GuardKind.ALL_DISTINCT: "NO_TENSOR_ALIASING",
    GuardKind.SAME: "DUPLICATE_INPUT",
    GuardKind.GLOBAL_STATE: "GLOBAL_STATE",
    GuardKind.LOOKUPS: "CLASS_MATCH",
    GuardKind.SIZES: "SHAPE_ENV",
    GuardKind.PREDICATE: "LAMBDA_GUARD",
    GuardKind.CALLBACKS: "LAMBDA_GUARD",
}


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The questions that torch.compiler's filters ask about the origin of a guarded value."""

    source: Source
    through_module: bool
    through_builtin_module: bool

    def name(self) -> str:
        return str(self.source)

    def is_unspecialized_nn_module(self) -> bool:
        return self.through_module

    def is_unspecialized_builtin_nn_module(self) -> bool:
        return self.through_builtin_module


@dataclass(frozen=True, slots=True)
class OriginalGuard:
    source: SourceFacts


@dataclass(frozen=True, slots=True)
class GuardRecord:
    """A guard, as the filter sees it.

    name: the source as a user would write it, such as `self.__dict__['scale']`. kind: the kind of comparison.
        guard_type: torch.compile's word for that. value: the present value, if `has_value`. is_global: read from a
        global or builtin name. place: the user's line that needs the guard.
    """

    name: str
    kind: GuardKind
    guard_type: str
    has_value: bool
    value: object
    is_global: bool
    expected: object
    place: UserPlace | None
    orig_guard: OriginalGuard
    derived_guard_types: tuple[str, ...] = ()


GuardFilter = Callable[[Sequence[GuardRecord]], Sequence[bool]]


def kept_guards(
    guards: Sequence[Guard], keep: GuardFilter, function: FunctionType, bound: Mapping[str, object]
) -> Sequence[Guard]:
    """The guards that the filter keeps. Raises UsageError unless the filter returns one bool for each guard."""
    values = tuple(bound.values())
    records = [_record(guard, function, values) for guard in guards]
    try:
        flags = list(keep(records))
    except StatorError:
        raise
    except Exception as error:
        raise CompileError("guard_filter_fn", f"{type(error).__name__}: {error}") from error
    if len(flags) != len(guards) or not all(isinstance(flag, bool) for flag in flags):
        raise UsageError(
            f"guard_filter_fn must return one bool for each of {len(guards)} guards, not {len(flags)} of "
            f"{', '.join(sorted({type(flag).__name__ for flag in flags})) or 'nothing'}"
        )
    return [guard for guard, flag in zip(guards, flags, strict=True) if flag]


def _record(guard: Guard, function: FunctionType, values: tuple[object, ...]) -> GuardRecord:
    found = _read(guard.source, function, values)
    modules = [
        value
        for source in _prefixes(guard.source)
        for value in _read(source, function, values)
        if isinstance(value, torch.nn.Module)
    ]
    builtin = bool(modules) and type(modules[0]).__module__.startswith(("torch.nn.", "torch.ao."))
    return GuardRecord(
        str(guard.source),
        guard.kind,
        _TYPES[guard.kind],
        bool(found),
        found[0] if found else None,
        isinstance(_root(guard.source), GlobalSource | ModuleGlobalSource | BuiltinSource),
        guard.expected,
        guard.place,
        OriginalGuard(SourceFacts(guard.source, bool(modules), builtin)),
    )


def _prefixes(source: Source) -> list[Source]:
    """The source and all its bases, from the root to the source."""
    found = [source]
    while (base := getattr(found[-1], "base", None)) is not None:
        found.append(base)
    return found


def _root(source: Source) -> Source:
    return _prefixes(source)[-1]


def _read(source: Source, function: FunctionType, values: tuple[object, ...]) -> list[object]:
    """The content of the source, in a list; an empty list if there is none."""
    found: list[object] = []

    def see(value: object) -> bool:
        found.append(value)
        return True

    build_guard_tree([Guard(source, GuardKind.PREDICATE, see)], function).check(values, function)
    return found
