"""Whom compiled versions of a frame are counted for: the object that it works for, and the function that it wraps. Many
of them share one code, and are not to share its limit. Works without torch."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

from .iterator_state import is_known_iterator, next_items
from .naming import qualified_name
from .resume import is_stack_name

_DEEPEST = 8  # wrappers around one another that are told apart


@dataclass(frozen=True, slots=True)
class Owner:
    """instance: if there is one that can be referred to weakly. wraps: the ids of the code of functions that closures
    of the frame lead to; functions that are made anew for each call have the same code."""

    instance: object = None
    wraps: tuple[int, ...] = ()

    def is_nobody(self) -> bool:
        return self.instance is None and not self.wraps

    def described(self) -> str:
        if self.instance is not None:
            return f"one {qualified_name(type(self.instance))}"
        return "one of the functions that it wraps"

    def noted(self, *, by_id: bool) -> NotedOwner:
        """by_id: where a program that counts weak references is to find its own; that another object may come to have
        this id has to do no harm."""
        if self.instance is None:
            return NotedOwner(None, self.wraps)
        return NotedOwner(id(self.instance) if by_id else weakref.ref(self.instance), self.wraps)


@dataclass(frozen=True, slots=True)
class NotedOwner:
    """The same without holding the instance: a weak reference to it, its id, or None."""

    instance: Any
    wraps: tuple[int, ...]

    def is_(self, owner: Owner) -> bool:
        if self.wraps != owner.wraps:
            return False
        if type(self.instance) is int:
            return self.instance == id(owner.instance)
        found = None if self.instance is None else self.instance()
        return found is owner.instance and (found is not None or self.instance is None)

    def is_gone(self) -> bool:
        return isinstance(self.instance, weakref.ref) and self.instance() is None


NOBODY = NotedOwner(None, ())


def owner_of(bound: Mapping[str, object], receiver: str, function: FunctionType | None) -> Owner:
    """Of the frame of a function with these values of its parameters. receiver: the one that says whom it works for."""
    cells = [value for value in bound.values() if type(value) is CellType]
    if function is not None:
        cells += function.__closure__ or ()
    return Owner(_instance(bound, receiver), tuple(sorted(set(_wrapped(cells)))))


def _instance(bound: Mapping[str, object], receiver: str) -> object:
    """The layer that a loop over layers comes to next, where the graph broke in the loop's body; one that waits on the
    stack to be called; the receiver of a method call; or the first argument of a function that takes any, if it can be
    called."""
    for value in bound.values():
        if is_known_iterator(value):
            for item in next_items(value):
                if callable(item) and _can_be_referred_to(item):
                    return item
    for name, value in bound.items():
        if is_stack_name(name) and callable(value) and _can_be_referred_to(value):
            return value
    if receiver in bound:
        instance = bound[receiver]
        return instance if _can_be_referred_to(instance) else None
    first = next(iter(bound.values()), None)
    if type(first) is tuple and first and callable(first[0]) and _is_instance(first[0]):
        return first[0]
    return None


def _can_be_referred_to(obj: object) -> bool:
    return bool(type.__dict__["__weakrefoffset__"].__get__(type(obj)))


def _is_instance(obj: object) -> bool:
    """Functions may be made anew for each call."""
    return not issubclass(type(obj), (FunctionType, MethodType, type)) and _can_be_referred_to(obj)


def _wrapped(cells: Iterable[CellType]) -> Iterable[int]:
    for cell in cells:
        found, depth = _function_in(cell), 0
        while found is not None and depth < _DEEPEST:
            yield id(found.__code__)
            inner = (_function_in(one) for one in found.__closure__ or ())
            found, depth = next((one for one in inner if one is not None), None), depth + 1


def _function_in(cell: CellType) -> FunctionType | None:
    try:
        content = cell.cell_contents
    except ValueError:
        return None
    content = content.__func__ if type(content) is MethodType else content
    return content if type(content) is FunctionType else None
