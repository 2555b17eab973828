"""Counts and stage times of this process, for explanations, tests and benchmarks."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from . import logs

counts: Counter[str] = Counter()
seconds: defaultdict[str, float] = defaultdict(float)


def count(name: str, by: int = 1) -> None:
    counts[name] += by


def largest(name: str, value: int) -> None:
    """Keep the largest value so far."""
    counts[name] = max(counts[name], value)


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Add the wall-clock seconds of the block to `seconds[stage]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        elapsed = time.perf_counter() - start
        seconds[stage] += elapsed
        logs.log("timing", "%s: %.3f s", stage, elapsed)


def clear() -> None:
    counts.clear()
    seconds.clear()
