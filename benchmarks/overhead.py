"""Fixed costs: importing stator, calling a compiled `x + 1`, and a first call when all kernels are in the cache.

`python -m benchmarks.overhead` prints ratios; every figure is the median of alternating repetitions.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch

import stator

FIRST_CALL = """
import time, torch, stator
from benchmarks.models import build
case = build("BertForMaskedLM")
model = stator.compile(case.model)
with torch.no_grad():
    case.model(*case.args, **case.kwargs)
    start = time.perf_counter()
    model(*case.args, **case.kwargs)
    print(time.perf_counter() - start)
"""


def seconds_of_script(code: str, environment: dict[str, str] | None = None) -> float:
    """What a Python program in a fresh process prints last: a number of seconds."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout.split()[-1])


def import_seconds(repetitions: int = 5) -> float:
    """`import stator` in a process that has imported torch."""
    code = "import torch, time; s = time.perf_counter(); import stator; print(time.perf_counter() - s)"
    return statistics.median(seconds_of_script(code) for _ in range(repetitions))


def nanoseconds(calls: dict[str, Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor) -> dict[str, float]:
    """Median nanoseconds of one call, in alternating batches of a thousand."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(30):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(1000):
                call(x)
            times[name].append((time.perf_counter() - start) * 1e6)
    return {name: statistics.median(samples) for name, samples in times.items()}


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def report_calls(what: str, x: torch.Tensor) -> None:
    calls = {"eager": add_one, "stator": stator.compile(add_one), "torch.compile": torch.compile(add_one)}
    ns = nanoseconds(calls, x)
    print(f"{what}: " + ", ".join(f"{name} {value:.0f} ns" for name, value in ns.items()))
    print("  over eager: " + ", ".join(f"{name} {ns[name] / ns['eager']:.2f}x" for name in list(calls)[1:]))


def main() -> None:
    print(f"import stator, beyond torch: {import_seconds():.2f} s")
    report_calls("x + 1 on 4 floats", torch.randn(4))
    report_calls("x + 1 on 4 floats that require a gradient", torch.randn(4, requires_grad=True))
    with tempfile.TemporaryDirectory() as folder:
        environment = {"STATOR_CACHE_DIR": folder}
        cold = seconds_of_script(FIRST_CALL, environment)
        warm = statistics.median(seconds_of_script(FIRST_CALL, environment) for _ in range(3))
    print(f"BERT-base first call: {cold:.2f} s with an empty cache, {warm:.2f} s in a new process with kernels cached")


if __name__ == "__main__":
    main()
