"""One model measured in a process of its own: cold first calls, then alternating steady-state calls of all systems.

Run as `python -m benchmarks.measure NAME --out FILE.json`; the caches' places come from the environment, which the
runner sets to empty folders. Written to FILE.json: seconds of first calls, median milliseconds, and differences.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.models import build, largest_relative_difference

Call = Callable[[], Any]


def seconds_of(call: Call) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def first_calls(name: str, systems: dict[str, Callable[[Any], Any]], size: str) -> dict[str, Any]:
    """Compile the same model with each system in turn; every system gets a module of its own with equal weights."""
    found: dict[str, Any] = {}
    for system, wrap in systems.items():
        case = build(name, size=size)
        expected = case.model(*case.args, **case.kwargs)
        compiled = wrap(case.model)
        elapsed, actual = seconds_of(lambda c=compiled, k=case: c(*k.args, **k.kwargs))
        found[system] = {
            "call": lambda c=compiled, k=case: c(*k.args, **k.kwargs),
            "eager": lambda k=case: k.model(*k.args, **k.kwargs),
            "first_call_s": elapsed,
            "difference": largest_relative_difference(actual, expected),
        }
    return found


def steady_state(calls: dict[str, Call], *, seconds: float, least: int) -> dict[str, list[float]]:
    """Alternate all systems call by call, changing who goes first each round, until `seconds` have passed."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for name in names:
        for _ in range(2):
            calls[name]()
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < deadline:
        for name in names[rounds % len(names) :] + names[: rounds % len(names)]:
            times[name].append(seconds_of(calls[name])[0])
        rounds += 1
    return times


def measure(name: str, *, peer: bool, seconds: float, size: str) -> dict[str, Any]:
    import torch

    import stator

    systems: dict[str, Callable[[Any], Any]] = {"stator": stator.compile}
    if peer:
        import torch._dynamo
        import torch._inductor.compile_fx  # loaded before the clock starts: only compiling is timed

        systems["peer"] = torch.compile
    with torch.no_grad():
        found = first_calls(name, systems, size)
        calls = {system: entry["call"] for system, entry in found.items()}
        case = build(name, size=size)
        calls["eager"] = lambda: case.model(*case.args, **case.kwargs)
        times = steady_state(calls, seconds=seconds, least=10)
        report = stator.explain(build(name, size=size).model)(*case.args, **case.kwargs)
    return {
        "model": name,
        "threads": torch.get_num_threads(),
        "graphs": report.graph_count,
        "breaks": report.graph_break_count,
        "first_call_s": {system: entry["first_call_s"] for system, entry in found.items()},
        "difference": {system: entry["difference"] for system, entry in found.items()},
        "median_ms": {system: statistics.median(samples) * 1e3 for system, samples in times.items()},
        "calls": {system: len(samples) for system, samples in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of alternating steady-state calls")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    options = parser.parse_args()
    result = measure(options.model, peer=not options.no_peer, seconds=options.seconds, size=options.size)
    options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
