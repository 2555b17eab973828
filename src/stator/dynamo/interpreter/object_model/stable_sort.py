"""Sorting of what is no constant, by `<` alone, as list.sort() does it for few items."""

from __future__ import annotations

from typing import Any

MOST_SORTED = 63  # more than so many are merged from runs


def places_in_order(keys: list[Any]) -> list[int]:
    """At which place each of the sorted keys stands: a run that is there is found, and the rest put in one by one."""
    count = len(keys)
    if count < 2:
        return list(range(count))
    run = 2
    if keys[1] < keys[0]:
        while run < count and keys[run] < keys[run - 1]:
            run += 1
        order = list(reversed(range(run)))
    else:
        while run < count and not keys[run] < keys[run - 1]:
            run += 1
        order = list(range(run))
    for at in range(run, count):
        low, high = 0, at
        while low < high:
            middle = (low + high) // 2
            if keys[at] < keys[order[middle]]:
                high = middle
            else:
                low = middle + 1
        order.insert(low, at)
    return order
