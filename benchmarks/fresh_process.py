"""Runs a module of the benchmarks in a process of its own: empty caches, and processor cores of its own if wanted.

What is measured there, and how several run at a time, is the caller's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def run_module(
    module: str,
    arguments: Sequence[str],
    cores: Sequence[int] | None,
    limit: float | None = None,
    caches: Path | None = None,
) -> None:
    """`python -m module arguments`. cores: which ones it may use, and as many threads; None leaves both as they are.
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
            environment["OMP_NUM_THREADS"] = str(len(cores))
        subprocess.run(command, env=environment, check=True, cwd=Path(__file__).parent.parent, timeout=limit)


def shared_out(jobs: int, cores: int) -> list[list[int] | None]:
    """The cores of each of several jobs, out of those that this process may use; None for a job that runs alone.

    Raises ValueError where there are fewer than they need.
    """
    if jobs == 1:
        return [None]
    usable = sorted(os.sched_getaffinity(0))
    if jobs * cores > len(usable):
        raise ValueError(f"{jobs} jobs on {cores} cores each need {jobs * cores} cores; there are {len(usable)}")
    return [usable[job * cores : (job + 1) * cores] for job in range(jobs)]
