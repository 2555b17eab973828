"""Runs a module of the benchmarks in a process of its own: empty caches, and processor cores of its own if wanted.

What is measured there is the caller's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


def run_module(
    module: str,
    arguments: Sequence[str],
    cores: Sequence[int] | None,
    limit: float | None = None,
    caches: Path | None = None,
    threads: int | None = None,
) -> None:
    """`python -m module arguments`. cores: which ones it may use; None: all that this process may use.
    threads: of OpenMP; None: one for each of the cores, or as many as this process has.
    caches: a folder for caches that other processes left or will find; None: one of its own, empty.

    Raises CalledProcessError where it fails, and TimeoutExpired after `limit` seconds, when it is killed.
    """
    with tempfile.TemporaryDirectory(prefix="stator-bench-", ignore_cleanup_errors=True) as own:
        folder = own if caches is None else caches
        environment = {
            **os.environ,
            "STATOR_CACHE_DIR": f"{folder}/stator",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        command = [sys.executable, "-m", module, *arguments]
        if cores is not None:
            command = ["taskset", "-c", ",".join(map(str, cores)), *command]
            threads = threads or len(cores)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        subprocess.run(command, env=environment, check=True, cwd=Path(__file__).parent.parent, timeout=limit)


def side_by_side(jobs: int, cores: int, tasks: Sequence[Callable[[list[int] | None], Result]]) -> list[Result]:
    """The results of all tasks, of which `jobs` run at a time; each gets the cores that it has to itself meanwhile, or
    None where one runs at a time.

    Raises ValueError where there are fewer cores than they need.
    """
    free: SimpleQueue[list[int] | None] = SimpleQueue()
    for own in _shared_out(jobs, cores):
        free.put(own)

    def run(task: Callable[[list[int] | None], Result]) -> Result:
        own = free.get()
        try:
            return task(own)
        finally:
            free.put(own)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(run, tasks))


def _shared_out(jobs: int, cores: int) -> list[list[int] | None]:
    if jobs == 1:
        return [None]
    usable = sorted(os.sched_getaffinity(0))
    if jobs * cores > len(usable):
        raise ValueError(f"{jobs} jobs on {cores} cores each need {jobs * cores} cores; there are {len(usable)}")
    return [usable[job * cores : (job + 1) * cores] for job in range(jobs)]
