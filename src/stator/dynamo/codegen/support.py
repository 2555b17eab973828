"""Functions that emitted code calls at run time. They know neither bytecode nor capture."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from types import CellType, CodeType, FunctionType
from typing import Any

_MISSING = object()


def read_item(container: Any, key: Any) -> Any:
    """`container[key]` past any override in a subclass of dict, list or tuple."""
    for base in (dict, list, tuple):
        if issubclass(type(container), base):
            return base.__getitem__(container, key)
    return container[key]


class _Finder:
    """Compares equal to the set member that is equal to a constant, and remembers that member."""

    __slots__ = ("found", "like")

    def __init__(self, like: Any) -> None:
        self.found = self.like = like

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, member: object) -> bool:
        if member is not self.like and (type(member) is not type(self.like) or member != self.like):
            return False
        self.found = member
        return True


def member_of(members: Any, like: Any) -> Any:
    """The member of a set of constants that is equal to `like`, past any override."""
    finder = _Finder(like)
    (frozenset if issubclass(type(members), frozenset) else set).__contains__(members, finder)
    return finder.found


def _keys(container: dict[Any, Any]) -> Any:
    if issubclass(type(container), OrderedDict):
        return OrderedDict.__iter__(container)
    return dict.__iter__(container)


def iterator_at(container: Any, taken: int) -> Any:
    """The built-in iterator of a list, tuple or dict view (past any override), after its first `taken` items."""
    kind = (
        list if issubclass(type(container), list) else tuple if issubclass(type(container), tuple) else type(container)
    )
    return _advanced(kind.__iter__(container), taken)


def keys_at(container: Any, taken: int) -> Any:
    return _advanced(_keys(container), taken)


def range_iterator_at(container: range, taken: int) -> Any:
    return iter(container[taken:])


def _advanced(iterator: Any, taken: int) -> Any:
    next(islice(iterator, taken, taken), None)
    return iterator


def instance_dict(instance: Any) -> Any:
    """`instance.__dict__` past any __getattribute__."""
    if issubclass(type(instance), type):
        return type.__getattribute__(instance, "__dict__")
    return object.__getattribute__(instance, "__dict__")


def new_function(
    code: CodeType,
    namespace: dict[str, Any],
    name: str,
    qualname: str,
    defaults: tuple[Any, ...] | None,
    kwdefaults: dict[str, Any] | None,
    *closure: CellType,
) -> FunctionType:
    """A function object, as MAKE_FUNCTION creates it."""
    function = FunctionType(code, namespace, name, defaults, closure or None)
    function.__qualname__ = qualname
    if kwdefaults is not None:
        function.__kwdefaults__ = kwdefaults
    return function


def set_content(cell: CellType, value: Any) -> None:
    cell.cell_contents = value


def clear_content(cell: CellType) -> None:
    """Empty a cell that may be empty already."""
    try:
        del cell.cell_contents
    except ValueError:
        return


def replace_list(target: Any, items: list[Any]) -> None:
    """`target[:] = items` of a list, past overrides."""
    list.__setitem__(target, slice(None), items)


def replace_dict(target: dict[Any, Any], items: dict[Any, Any], *again: Any) -> None:
    """Make `target` hold exactly `items`, in this order, past overrides. The keys `again` are removed first."""
    kind: Any = OrderedDict if issubclass(type(target), OrderedDict) else dict
    for key in again:
        kind.pop(target, key, None)
    old = list(_keys(target))
    kept = [key for key in old if key in items]
    if kept == list(items)[: len(kept)]:
        # in place: somebody may be iterating over it, or reading it in another thread
        for key in old:
            if key not in items:
                kind.__delitem__(target, key)
    else:
        kind.clear(target)
    for key, value in items.items():
        if dict.get(target, key, _MISSING) is not value:
            kind.__setitem__(target, key, value)


def replace_set(target: set[Any], items: list[Any]) -> None:
    wanted = set(items)
    for item in [item for item in set.__iter__(target) if item not in wanted]:
        set.discard(target, item)
    set.update(target, items)


def fill_list(target: list[Any], *items: Any) -> None:
    target.extend(items)


def fill_dict(target: dict[Any, Any], items: dict[Any, Any]) -> None:
    target.update(items)
