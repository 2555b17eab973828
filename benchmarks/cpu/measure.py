"""One row of the CPU benchmark in a process of its own: `python -m benchmarks.cpu.measure NAME KIND BATCH THREADS`.

It compiles the model with every system and compares each with eager, prints "ready", waits for a line on stdin, and
times all systems in turn: by processor time with one thread, which other work disturbs least, else by the clock.
`--out` is written after each step, so that a process that dies leaves what it had.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import systems
from benchmarks.models import relative_error, tensors_of
from benchmarks.rows import Row
from benchmarks.work import Work, result, work_of

_AGREEMENT, _PATIENCE = 1.03, 3  # of the least two times of each system; multiples of --seconds to wait for it
LARGEST_ERROR = {"inference": 1e-4, "training": 1e-2}  # of float32; gradients of some networks multiply roundings


def compiled(system: str, work: Work, exact: list[Any], kind: str, row: Row) -> Callable[..., Any]:
    """The system's callable after its first calls. Raises what the system raises, and ValueError for wrong results."""
    row.at(f"{system}: first call")
    with systems.settings(system), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        start, spent = time.perf_counter(), time.process_time()
        call = systems.compiled(system, work)
        work.step(call, 0)
        row.note(system, first_s=time.perf_counter() - start, first_process_s=time.process_time() - spent)
        row.at(f"{system}: later calls")
        error = 0.0
        for turn in (0, 1):
            found = result(work, call, turn, kind != "inference")
            wanted = tensors_of(exact[turn])[:1] if system == "onnxruntime" else exact[turn]
            error = max(error, relative_error(found, wanted))
    row.note(system, error=error)
    if system.startswith("stator"):
        row.note(system, said=[str(one.message)[:300] for one in warned if str(one.message).startswith("stator")])
    if not error <= LARGEST_ERROR[kind]:
        raise ValueError(f"differs from eager by {error:.1e}")
    return call


def timed(calls: dict[str, Callable[..., Any]], work: Work, seconds: float, row: Row) -> None:
    """Least and median milliseconds of rounds; in each, every system goes once, in an order that moves on. Rounds go on
    until the least two times of each system agree: else one system may never have run without other work."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    samples: dict[str, list[float]] = {system: [] for system in calls}
    names, begin, rounds = list(calls), time.perf_counter(), 0
    while rounds < 4 or time.perf_counter() < begin + seconds * (1 if _agree(samples) else _PATIENCE):
        for system in names[rounds % len(names) :] + names[: rounds % len(names)]:
            work.step(calls[system], 0)  # what the system before has left in caches is gone
            start = clock()
            kept = work.step(calls[system], 0)
            samples[system].append((clock() - start) * 1e3)
            del kept
        rounds += 1
    least = {system: min(found) for system, found in samples.items()}
    for system, found in samples.items():
        row.note(system, ms=least[system], median_ms=statistics.median(found), rounds=rounds, eager_ms=least["eager"])


def _agree(samples: dict[str, list[float]]) -> bool:
    return all(second <= _AGREEMENT * least for least, second, *_ in map(sorted, samples.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("kind", choices=tuple(LARGEST_ERROR))
    parser.add_argument("batch", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("--systems", required=True, help="separated by commas")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    facts = {name: getattr(options, name) for name in ("kind", "batch", "threads")}
    row = Row(options.out, {"model": options.name, **facts, "torch": torch.__version__})
    row.at("imports")
    wanted = options.systems.split(",")
    systems.load(wanted)
    row.at("building the model")
    training = options.kind != "inference"
    with torch.set_grad_enabled(training):
        work = work_of(options.name, options.kind, options.batch, "cpu", torch.float32, small=options.small)
        row.at("eager")
        exact = [result(work, work.model, turn, training) for turn in range(2)]
        calls: dict[str, Callable[..., Any]] = {}
        for system in wanted:
            try:
                calls[system] = compiled(system, work, exact, options.kind, row)
            except Exception as error:
                row.note(system, failed=f"{row.content['at']}: {type(error).__name__}: {str(error)[:300]}")
                traceback.print_exc()
        row.wait_for_turn()
        timed(calls, work, options.seconds, row)
    row.end()


if __name__ == "__main__":
    main()
