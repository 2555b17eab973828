"""What the callable makers of `operator` make, as closures, and functions of `operator`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from stator.dynamo.interpreter.calling import polyfill


def itemgetter(*keys: Any) -> Callable[[Any], Any]:
    if not keys:
        raise TypeError("itemgetter expected 1 argument, got 0")
    if len(keys) == 1:
        return lambda owner: owner[keys[0]]
    return lambda owner: tuple([owner[key] for key in keys])


def _dotted(owner: Any, name: str) -> Any:
    for part in name.split("."):
        owner = getattr(owner, part)
    return owner


def attrgetter(*names: str) -> Callable[[Any], Any]:
    if not names:
        raise TypeError("attrgetter expected 1 argument, got 0")
    for name in names:
        if not isinstance(name, str):
            raise TypeError("attribute name must be a string")
    if len(names) == 1:
        return lambda owner: _dotted(owner, names[0])
    return lambda owner: tuple([_dotted(owner, name) for name in names])


def methodcaller(method: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    if not isinstance(method, str):
        raise TypeError("method name must be a string")
    return lambda owner: getattr(owner, method)(*args, **kwargs)


@polyfill(operator.concat)
def concat(left: Any, right: Any) -> Any:
    return left + right


@polyfill(operator.countOf)
def count_of(items: Any, wanted: Any) -> int:
    return sum([1 for item in items if item is wanted or item == wanted])


@polyfill(operator.indexOf)
def index_of(items: Any, wanted: Any) -> int:
    for at, item in enumerate(items):
        if item is wanted or item == wanted:
            return at
    raise ValueError("sequence.index(x): x not in sequence")
