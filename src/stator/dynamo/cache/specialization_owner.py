"""The objects for which compiled versions of a frame are counted: the instance that the frame works for, and the
function that it wraps. Many owners share a code object, but each has a recompile limit of its own. Works without
torch."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any

from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import ItemSource, LocalSource, Source
from stator.dynamo.guards.type_only_guards import TENSORS
from stator.dynamo.host.iterator_state import is_known_iterator, next_items
from stator.dynamo.host.naming import is_plain_class, is_python_class, qualified_name
from stator.dynamo.host.weak_references import can_be_referred_to
from stator.dynamo.ir.resume import is_stack_name

_DEEPEST = 8  # nested wrappers that are distinguished
_MOST = 4  # instances of an owner


@dataclass(frozen=True, slots=True)
class Owner:
    """instances: objects that support weak references. sources: where guards find the instances; None: unknown. wraps:
    ids of the code of functions in the frame's closures and of callables that wait on the stack; a function that is
    created anew for each call keeps its code."""

    instances: tuple[object, ...] = ()
    wraps: tuple[int, ...] = ()
    sources: tuple[Source, ...] | None = None

    def is_nobody(self) -> bool:
        return not self.instances and not self.wraps

    def receives(self, receiver: str) -> bool:
        """Whether the frame is a method of the first instance, rather than a function called for many objects."""
        return self.sources is None or self.sources[:1] == (LocalSource(receiver),)

    def described(self) -> str:
        if self.instances:
            return f"one {' and '.join(qualified_name(type(one)) for one in self.instances)}"
        return "one of the functions that it wraps"

    def noted(self, *, by_id: bool) -> NotedOwner:
        """by_id: keep ids, because a program that counts weak references must only find its own; a reused id must be
        harmless."""
        return NotedOwner(tuple(id(one) if by_id else weakref.ref(one) for one in self.instances), self.wraps)

    def guards(self) -> list[Guard] | None:
        """Guards that hold for this owner alone; None if no guards can express that."""
        if not self.instances or self.wraps or self.sources is None:
            return None
        found = zip(self.sources, self.instances, strict=True)
        return [Guard(source, GuardKind.IS, instance) for source, instance in found]


@dataclass(frozen=True, slots=True)
class NotedOwner:
    """An Owner without strong references: it holds weak references to the instances, or their ids."""

    instances: tuple[Any, ...]
    wraps: tuple[int, ...]

    def is_(self, owner: Owner) -> bool:
        if self.wraps != owner.wraps or len(self.instances) != len(owner.instances):
            return False
        return all(map(_is_noted, self.instances, owner.instances))

    def is_gone(self) -> bool:
        return any(isinstance(noted, weakref.ref) and noted() is None for noted in self.instances)


def _is_noted(noted: Any, instance: object) -> bool:
    return noted == id(instance) if type(noted) is int else noted() is instance


NOBODY = NotedOwner((), ())


def owner_of(bound: Mapping[str, object], receiver: str, function: FunctionType | None) -> Owner:
    """The owner of a frame with these arguments. `receiver` is the parameter that names the instance."""
    cells = [value for value in bound.values() if type(value) is CellType]
    if function is not None:
        cells += function.__closure__ or ()
    on_stack = (value for name, value in bound.items() if is_stack_name(name))
    functions = [one for value in (*map(_content, cells), *on_stack) if (one := _function_of(value)) is not None]
    wraps = tuple(sorted(set(_wrapped(functions))))
    waiting = _next_to_be_called(bound)
    if waiting is not None:
        return Owner((waiting,), wraps)
    found = list(itertools.islice(_instances(bound, receiver), _MOST))
    return Owner(tuple(instance for _, instance in found), wraps, tuple(source for source, _ in found))


def first_instance(bound: Mapping[str, object]) -> object:
    """The object by whose address csrc/cache.c orders versions: `self`, or the first argument."""
    value = bound["self"] if "self" in bound else next(iter(bound.values()), None)
    return value if _is_instance(value) else None


def _next_to_be_called(bound: Mapping[str, object]) -> object:
    """The next layer of a loop over layers, if the graph broke in the loop's body; or a layer (or the layer of a
    method) that waits on the stack to be called."""
    for value in bound.values():
        if is_known_iterator(value):
            for item in next_items(value):
                if callable(item) and can_be_referred_to(item):
                    return item
    for name, value in bound.items():
        if is_stack_name(name) and callable(value):
            called = value.__self__ if type(value) in _METHODS else value  # type: ignore[attr-defined]
            if _is_instance(called):
                return called
    return None


def _instances(bound: Mapping[str, object], receiver: str) -> Iterator[tuple[Source, object]]:
    """The receiver of a method call and callable arguments such as modules; or the program's first object among
    them."""
    given = [(source, value) for source, value in _arguments(bound) if _is_instance(value)]
    if receiver in bound and can_be_referred_to(bound[receiver]):
        mine = bound[receiver]
        yield LocalSource(receiver), mine
        yield from ((source, value) for source, value in given if callable(value) and value is not mine)
    elif any(callable(value) for _, value in given):
        yield from ((source, value) for source, value in given if callable(value))
    else:
        yield from given[:1]


def _arguments(bound: Mapping[str, object]) -> Iterator[tuple[Source, object]]:
    for name, value in bound.items():
        yield LocalSource(name), value
        if type(value) is tuple:
            yield from ((ItemSource(LocalSource(name), at), item) for at, item in enumerate(value[:_MOST]))
        elif type(value) is dict:
            named = itertools.islice(value.items(), _MOST)
            yield from ((ItemSource(LocalSource(name), key), item) for key, item in named if type(key) is str)


def _is_instance(obj: object) -> bool:
    """Whether the object is an instance of a program's class. (Functions and containers may be created anew for each
    call.)"""
    kind = type(obj)
    if not is_python_class(kind) or not is_plain_class(kind):
        return False
    return not issubclass(kind, (*_OTHERS, *TENSORS)) and can_be_referred_to(obj)


_METHODS = (MethodType, BuiltinMethodType)  # created anew at each attribute read
_OTHERS = (type, tuple, list, dict, set, frozenset, str, bytes, int, float, complex, BaseException)


def _wrapped(functions: Iterable[FunctionType]) -> Iterable[int]:
    """The ids of the codes of these functions and of the functions that they wrap."""
    for function in functions:
        found: FunctionType | None = function
        depth = 0
        while found is not None and depth < _DEEPEST:
            yield id(found.__code__)
            inner = (_function_of(_content(cell)) for cell in found.__closure__ or ())
            found, depth = next((one for one in inner if one is not None), None), depth + 1


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _function_of(value: object) -> FunctionType | None:
    value = value.__func__ if type(value) is MethodType else value
    return value if type(value) is FunctionType else None
