"""Iterating and counting as plain Python: `iter` with a sentinel, and what `collections.Counter` counts with."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stator.dynamo.interpreter.calling import polyfill, standing_for


def until_as_iterator(function: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    """iter(function, sentinel)."""
    return standing_for(_CALLABLE_ITERATOR, _called_until(function, sentinel))


_CALLABLE_ITERATOR = type(iter(int, 1))


def _called_until(function: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    while True:
        try:
            value = function()
        except StopIteration:  # which is the end, too
            return
        if value is sentinel or sentinel == value:
            return
        yield value


@polyfill(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(mapping: dict[Any, int], iterable: Iterable[Any]) -> None:
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1
