"""What guards cost a call: all guards of a compiled model, evaluated again and again, beside those of torch.compile.

`python -m benchmarks.guards [model …]` prints microseconds of one evaluation; every figure is the median of alternating
batches. Both compile with a backend that runs the captured graph as it is, which has no influence on guards.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

import stator
from benchmarks.models import NAMES, Case, build
from stator.dynamo.cache import compiled_frames

BATCHES, EVALUATIONS = 15, 300
Evaluate = Callable[[int], float]  # number of evaluations -> microseconds of one


def repeated(check: Callable[..., bool], *args: object) -> Evaluate:
    """What calls `check` that many times. Raises RuntimeError when the guards do not hold for their own call."""

    def evaluate(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            check(*args)
        return (time.perf_counter() - start) * 1e6 / count

    if not check(*args):
        raise RuntimeError("the guards do not hold for the call that they were made for")
    return evaluate


def our_guards(case: Case) -> Evaluate:
    """Compiles the model and gives what evaluates the guards of its outermost frame."""
    calls: list[tuple[Any, Any, tuple[object, ...]]] = []
    compile_version = compiled_frames.CacheMiss._version

    def recorded(miss: Any, of: Any, function: Any, bound: dict[str, object]) -> Any:
        version = compile_version(miss, of, function, bound)
        calls.append((version, function, tuple(bound.values())))
        return version

    with mock.patch.object(compiled_frames.CacheMiss, "_version", recorded):
        stator.compile(case.model, backend="eager", fullgraph=True)(*case.args, **case.kwargs)
    ((version, function, values),) = calls
    return repeated(version.guards.check, values, function)


def peer_guards(case: Case) -> Evaluate:
    """The same for torch.compile, whose guards are met where it profiles them itself."""
    import torch._dynamo.guards as peer

    profile = peer.profile_guard_manager
    made: list[tuple[Any, Any]] = []

    def recorded(root: Any, scope: Any, iterations: int) -> float:
        made.append((root, dict(scope)))
        return float(profile(root, scope, iterations))

    with mock.patch.object(peer, "profile_guard_manager", recorded):
        torch.compile(case.model, backend="eager", fullgraph=True)(*case.args, **case.kwargs)
    ((root, scope),) = made
    return repeated(root.check, scope)


def measure(name: str) -> dict[str, float]:
    """Median microseconds of one evaluation of the guards of `name`."""
    with torch.no_grad():
        case = build(name)
        evaluators = {"stator": our_guards(case), "torch.compile": peer_guards(case)}
        times: dict[str, list[float]] = {side: [] for side in evaluators}
        for _ in range(BATCHES):
            for side, evaluate in evaluators.items():
                times[side].append(evaluate(EVALUATIONS))
    return {side: statistics.median(samples) for side, samples in times.items()}


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        us = measure(name)
        ratio = us["stator"] / us["torch.compile"]
        print(f"{name}: stator {us['stator']:.1f} us, torch.compile {us['torch.compile']:.1f} us: {ratio:.2f}")


if __name__ == "__main__":
    main()
