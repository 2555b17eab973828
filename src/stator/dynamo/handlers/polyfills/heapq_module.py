"""heapq's functions as plain Python, which compare the same items in the same order as those in C."""

from __future__ import annotations

import heapq
from typing import Any

from stator.dynamo.interpreter.calling import polyfill


def _toward_root(heap: list[Any], first: int, at: int) -> None:
    """The item moves up until its parent is no larger."""
    item = heap[at]
    while at > first:
        above = (at - 1) // 2
        if not item < heap[above]:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = item


def _from_root(heap: list[Any], at: int) -> None:
    """The item sinks to a leaf by the smaller children, and moves up again from there."""
    first, item, count = at, heap[at], len(heap)
    child = 2 * at + 1
    while child < count:
        other = child + 1
        if other < count and not heap[child] < heap[other]:
            child = other
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = item
    _toward_root(heap, first, at)


@polyfill(heapq.heappush)
def heappush(heap: list[Any], item: Any, /) -> None:
    heap.append(item)
    _toward_root(heap, 0, len(heap) - 1)


@polyfill(heapq.heappop)
def heappop(heap: list[Any], /) -> Any:
    last = heap.pop()  # an empty one raises
    if not heap:
        return last
    least = heap[0]
    heap[0] = last
    _from_root(heap, 0)
    return least


@polyfill(heapq.heapreplace)
def heapreplace(heap: list[Any], item: Any, /) -> Any:
    least = heap[0]
    heap[0] = item
    _from_root(heap, 0)
    return least


@polyfill(heapq.heappushpop)
def heappushpop(heap: list[Any], item: Any, /) -> Any:
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _from_root(heap, 0)
    return item


@polyfill(heapq.heapify)
def heapify(heap: list[Any], /) -> None:
    for at in reversed(range(len(heap) // 2)):
        _from_root(heap, at)
