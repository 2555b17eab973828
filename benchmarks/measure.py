"""Seconds of calls, of several systems by turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Call = Callable[[], Any]


def seconds_of(call: Call, clock: Callable[[], float] = time.perf_counter) -> tuple[float, Any]:
    start = clock()
    result = call()
    return clock() - start, result


def steady_state(
    calls: dict[str, Call], *, seconds: float, least: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Alternate all systems call by call, changing who goes first each round, until `seconds` have passed.

    clock: what times a call. Of one thread, other work disturbs the processor's time least.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for name in names:
        for _ in range(2):
            calls[name]()
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < deadline:
        for name in names[rounds % len(names) :] + names[: rounds % len(names)]:
            times[name].append(seconds_of(calls[name], clock)[0])
        rounds += 1
    return times
