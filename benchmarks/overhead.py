"""Fixed costs: importing stator, calling a compiled `x + 1`, a training step of a small model, and a first call when
all kernels are in the cache.

`python -m benchmarks.overhead` prints ratios; every figure is the median of alternating repetitions.
"""

from __future__ import annotations

import cProfile
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
    times = [time.perf_counter()]
    for _ in range(4):
        model(*case.args, **case.kwargs)
        times.append(time.perf_counter())
first, *later = [after - before for before, after in zip(times, times[1:])]
print(first, min(later))
"""


def seconds_of_script(code: str, folder: str, environment: dict[str, str] | None = None) -> list[float]:
    """What a Python program in a fresh process prints last: numbers of seconds.

    Modules are compiled to byte code once, in `folder`, as where they are installed: not in every process.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, "PYTHONPYCACHEPREFIX": folder, **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(number) for number in result.stdout.splitlines()[-1].split()]


def import_seconds(repetitions: int = 5) -> float:
    """`import stator` in a process that has imported torch."""
    code = "import torch, time; s = time.perf_counter(); import stator; print(time.perf_counter() - s)"
    with tempfile.TemporaryDirectory() as folder:
        times = [seconds_of_script(code, folder)[0] for _ in range(repetitions + 1)]
    return statistics.median(times[1:])


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


def small_kernels(x: torch.Tensor) -> torch.Tensor:
    """200 kernels: sums of columns and of rows by turns do not fuse."""
    for _ in range(100):
        x = x - x.sum(0, keepdim=True)
        x = x * x.sum(1, keepdim=True)
    return x


def report_small_kernels() -> None:
    compiled, x, times = stator.compile(small_kernels), torch.randn(4, 4) * 0.01, []
    for _ in range(1000):
        start = time.perf_counter()
        compiled(x)
        times.append(time.perf_counter() - start)
    print(f"a graph of 200 small kernels: {statistics.median(times) * 1e6:.1f} us")


class SmallModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


def training_step(model: torch.nn.Module, parameters: list[torch.Tensor]) -> Callable[[torch.Tensor], None]:
    """One step of gradient descent, by hand."""

    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 1e-4 * parameter.grad
                parameter.grad = None

    return step


def profile(call: Callable[[], object], times: int, *files: str) -> tuple[float, float, float]:
    """Of one call, in code in files whose names begin so: microseconds, calls of Python functions to and from it, and
    calls of C functions."""
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(times):
        call()
    profiler.disable()
    rows = [row for row in profiler.getstats() if not isinstance(row.code, str)]
    rows = [row for row in rows if row.code.co_filename.startswith(files)]
    called = [one for row in rows for one in row.calls or ()]
    in_c = sum(one.callcount for one in called if isinstance(one.code, str))
    in_python = sum(one.callcount for one in (*rows, *called)) - in_c
    return sum(row.inlinetime for row in rows) * 1e6 / times, in_python / times, in_c / times


def profiler_microseconds(times: int) -> tuple[float, float]:
    """What the profiler adds to a caller's time for a call of a Python function, and of a C function."""

    def nothing() -> None:
        pass

    def calls_python() -> None:
        nothing()
        nothing()

    def calls_c() -> None:
        abs(0)
        abs(0)
        abs(0)
        abs(0)

    costs = []
    for call in (calls_python, calls_c):
        profiled, in_python, in_c = profile(call, times, __file__)
        start = time.perf_counter()
        for _ in range(times):
            call()
        added = profiled - (time.perf_counter() - start) * 1e6 / times
        costs.append((added - in_python * costs[0]) / in_c if in_c else added / in_python)
    return costs[0], costs[1]


def python_of_stator(step: Callable[[torch.Tensor], None], x: torch.Tensor, times: int = 3000) -> float:
    """Microseconds of one step in Python functions of stator; what the profiler adds for each call is taken off.

    That is still too much: CPython runs every instruction slower while a profiler is set.
    """
    own, in_python, in_c = profile(lambda: step(x), times, os.path.dirname(stator.__file__), "<stator")
    for_python, for_c = profiler_microseconds(times)
    return own - in_python * for_python - in_c * for_c


def report_training_step() -> None:
    model, x = SmallModel(), torch.randn(8, 16)
    parameters: list[torch.Tensor] = list(model.parameters())
    compiled = training_step(stator.compile(model), parameters)
    ns = nanoseconds({"eager": training_step(model, parameters), "stator": compiled}, x)
    print(
        f"training step of a small model: {ns['stator'] / ns['eager']:.2f}x eager's time, "
        f"{python_of_stator(compiled, x):.0f} us in Python of stator's"
    )


def main() -> None:
    print(f"import stator, beyond torch: {import_seconds():.2f} s")
    report_calls("x + 1 on 4 floats", torch.randn(4))
    report_calls("x + 1 on 4 floats that require a gradient", torch.randn(4, requires_grad=True))
    report_small_kernels()
    report_training_step()
    with tempfile.TemporaryDirectory() as folder:
        environment = {"STATOR_CACHE_DIR": folder}
        cold = seconds_of_script(FIRST_CALL, folder, environment)
        warm = [seconds_of_script(FIRST_CALL, folder, environment) for _ in range(3)]
    beyond = [statistics.median(first - later for first, later in times) for times in ([cold], warm)]
    print(
        f"BERT-base first call, beyond a later one of {statistics.median(later for _, later in warm):.2f} s: "
        f"{beyond[0]:.2f} s with an empty cache, {beyond[1]:.2f} s in a new process with kernels cached"
    )


if __name__ == "__main__":
    main()
