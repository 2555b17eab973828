"""`heapq` as plain Python: it compares items, which may be the program's objects. Layouts of heaps are those of C."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

from stator.dynamo.interpreter.calling import polyfill


def _rise(heap: list[Any], top: int, at: int) -> None:
    """Move the item at `at` towards `top` while it is smaller than its parent."""
    item = heap[at]
    while at > top:
        parent = (at - 1) // 2
        if not item < heap[parent]:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = item


def _sink(heap: list[Any], top: int) -> None:
    """Move the item at `top` to a leaf, past the smaller child each time, and let it rise again."""
    size, at, item = len(heap), top, heap[top]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and not heap[child] < heap[child + 1]:
            child += 1
        heap[at] = heap[child]
        at = child
    heap[at] = item
    _rise(heap, top, at)


@polyfill(heapq.heappush)
def heappush(heap: list[Any], item: Any, /) -> None:
    heap.append(item)
    _rise(heap, 0, len(heap) - 1)


@polyfill(heapq.heappop)
def heappop(heap: list[Any], /) -> Any:
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    first, heap[0] = heap[0], last
    _sink(heap, 0)
    return first


@polyfill(heapq.heapreplace)
def heapreplace(heap: list[Any], item: Any, /) -> Any:
    if not heap:
        raise IndexError("index out of range")
    first, heap[0] = heap[0], item
    _sink(heap, 0)
    return first


@polyfill(heapq.heappushpop)
def heappushpop(heap: list[Any], item: Any, /) -> Any:
    if not heap or not heap[0] < item:
        return item
    first, heap[0] = heap[0], item
    _sink(heap, 0)
    return first


@polyfill(heapq.heapify)
def heapify(heap: list[Any], /) -> None:
    for at in range(len(heap) // 2 - 1, -1, -1):
        _sink(heap, at)


@polyfill(heapq.nsmallest)
def nsmallest(n: int, iterable: Iterable[Any], key: Any = None) -> list[Any]:
    return sorted(iterable, key=key)[: max(n, 0)]
