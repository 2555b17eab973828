"""bisect's searches as plain Python, so that guards hold the outcome of each comparison instead of the number searched.

Schedulers of torch.optim search their milestones for the epoch, which changes from call to call.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from stator.dynamo.interpreter.calling import polyfill


@polyfill(bisect.bisect_right)
def bisect_right(a: Sequence[Any], x: Any) -> int:
    low, high = 0, len(a)
    while low < high:
        middle = (low + high) // 2
        if x < a[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@polyfill(bisect.bisect_left)
def bisect_left(a: Sequence[Any], x: Any) -> int:
    low, high = 0, len(a)
    while low < high:
        middle = (low + high) // 2
        if a[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low
