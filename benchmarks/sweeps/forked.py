"""One family in a process of its own: built there once, then measured by each compiler in a fork of that process.

A crash, a hang or too much memory is a result as well. Which families run, and when, is not decided here.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = f"{Path(__file__).parents[2]}/"  # of the project
_MOST_BYTES = 14 << 30
_WALL = 4  # a process that waits (for a lock, for other work on the machine) may take so many times its seconds
_TIMES_UP = (signal.SIGXCPU, signal.SIGALRM)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """One family to be measured: in which columns, with how many processor seconds for each ("build" for making it)."""

    suite: str
    family: str
    columns: tuple[str, ...]
    known: Row | None  # the "built" entry of an earlier result, tried first
    seconds: dict[str, int]


@dataclass(slots=True)
class Running:
    """A family's process. It writes one JSON object in a line for each thing known about the family."""

    job: Job
    process: int
    descriptor: int
    data: bytes = b""

    def read(self) -> bool:
        """Takes in what was written; False once the process closed its end."""
        part = os.read(self.descriptor, 1 << 16)
        self.data += part
        return bool(part)

    def finish(self, *, end: bool = False) -> Row:
        """The row, once the process has ended; `end` ends it and all it started first, and what is missing stays so."""
        if end:
            os.killpg(self.process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        os.close(self.descriptor)
        row: Row = {}
        for line in self.data.decode().split("\n")[:-1]:
            row.update(json.loads(line))
        if "built" not in row and "problem" not in row and not end:
            row["problem"] = _ending(status, self.job.seconds["build"])
        return row


def start(job: Job) -> Running:
    read_end, write_end = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(read_end)
            os.setpgid(0, 0)
            _family(job, write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    return Running(job, process, read_end)


def _family(job: Job, out: int) -> None:
    def say(row: Row) -> None:
        data = (json.dumps(row) + "\n").encode()
        while data:
            data = data[os.write(out, data) :]

    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    if not os.environ.get("SWEEP_VERBOSE"):
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
    _limit(job.seconds["build"])
    models = importlib.import_module(f"benchmarks.sweeps.{job.suite}_models")
    measure = importlib.import_module("benchmarks.sweeps.measure")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            built = models.build(job.family, job.known)
        except Exception as error:
            say({"problem": str(error) if type(error).__name__ == "NotBuilt" else f"{type(error).__name__}: {error}"})
            return
    signal.alarm(0)
    say({"built": models.describe(built)})
    for column in job.columns:
        _column(column, getattr(measure, f"measure_{column}"), built, job.seconds[column], say)


def _column(name: str, measured: Callable[[Any], Row], built: Any, seconds: int, say: Callable[[Row], None]) -> None:
    """Measures in a fork: what one compiler leaves in the process and in the model is not there for the other."""
    process = os.fork()
    if process == 0:
        try:
            _limit(seconds)
            say({name: _entry(measured, built)})
            sys.stderr.flush()
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status:
        say({name: {"error": _ending(status, seconds)}})


def _entry(measured: Callable[[Any], Row], built: Any) -> Row:
    try:
        return measured(built)
    except BaseException as error:
        if os.environ.get("SWEEP_VERBOSE"):
            traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:400]
        place = f"{last.filename.removeprefix(_ROOT).split('site-packages/')[-1]}:{last.lineno}"
        return {"error": f"{type(error).__name__}: {text} @ {place}"}


def _limit(seconds: int) -> None:
    """Of the processor, beyond what this process used already; and of the clock, more loosely."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_WALL * seconds)


def _ending(status: int, seconds: int) -> str:
    if -status in _TIMES_UP:
        return f"took more than {seconds} s"
    return f"the process ended with status {status}"
