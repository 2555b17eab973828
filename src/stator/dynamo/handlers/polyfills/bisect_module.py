"""bisect's functions as plain Python: guards hold the outcome of each comparison instead of the number searched.

Schedulers of torch.optim search their milestones for the epoch, which changes from call to call.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

from stator.dynamo.interpreter.calling import polyfill

Key = Callable[[Any], Any] | None


@polyfill(bisect.bisect_right)
def bisect_right(a: Sequence[Any], x: Any, lo: int = 0, hi: int | None = None, *, key: Key = None) -> int:
    low, high = _bounds(a, lo, hi)
    while low < high:
        middle = (low + high) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            high = middle
        else:
            low = middle + 1
    return low


@polyfill(bisect.bisect_left)
def bisect_left(a: Sequence[Any], x: Any, lo: int = 0, hi: int | None = None, *, key: Key = None) -> int:
    low, high = _bounds(a, lo, hi)
    while low < high:
        middle = (low + high) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            low = middle + 1
        else:
            high = middle
    return low


def _bounds(a: Sequence[Any], lo: int, hi: int | None) -> tuple[int, int]:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    return lo, len(a) if hi is None else hi


@polyfill(bisect.insort_right)
def insort_right(a: list[Any], x: Any, lo: int = 0, hi: int | None = None, *, key: Key = None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


@polyfill(bisect.insort_left)
def insort_left(a: list[Any], x: Any, lo: int = 0, hi: int | None = None, *, key: Key = None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)
