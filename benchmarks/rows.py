"""Rows of a benchmark that can be stopped and go on: each is measured in a process of its own, with empty caches, and
kept as a JSON file. What a row measures, and how, is the measuring module's (benchmarks.gpu.measure, .cpu.measure).
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import side_by_side

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SPARE = 20.0  # seconds before the end in which nothing is begun


@dataclass(frozen=True)
class Case:
    """One row.

    module: what measures it, given the values of `facts`, `--systems` and `--out`.
    facts: what names the row: its model, its kind and so on.
    figure: the milliseconds of a system that was measured to the end.
    """

    module: str
    folder: Path
    facts: dict[str, str | int]
    figure: str

    @property
    def name(self) -> str:
        return "-".join(map(str, self.facts.values()))

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.json"

    def kept(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def keep(self, found: dict[str, Any]) -> None:
        """Replace the systems that were measured, or failed, now."""
        kept = {**self.kept().get("systems", {}), **found.get("systems", {})}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**found, "systems": kept}, indent=1) + "\n")

    def line(self) -> str:
        cells = []
        for system, entry in self.kept()["systems"].items():
            cells.append(f"{system} {entry[self.figure]:.3f} ms" if self.figure in entry else f"{system} FAILED")
        return f"{self.name}: {', '.join(cells)}"


class Row:
    """What a measuring process knows of its row; every change is written to its file."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.content = path, {**facts, "systems": {}}

    def note(self, system: str, **found: Any) -> None:
        self.content["systems"].setdefault(system, {}).update(found)
        self.write()

    def at(self, step: str) -> None:
        self.content["at"] = step
        self.write()

    def wait_for_turn(self) -> None:
        """Say that all is compiled, and wait until nothing else is timed."""
        self.at("waiting")
        print("ready", flush=True)
        sys.stdin.readline()
        self.at("timing")

    def end(self) -> None:
        self.content.pop("at")
        self.write()

    def write(self) -> None:
        self.path.write_text(json.dumps(self.content, indent=1) + "\n")


class Measurement:
    """A process that compiles one row, says so, and waits for its turn to be timed."""

    def __init__(
        self,
        case: Case,
        wanted: Sequence[str],
        extra: Sequence[str],
        folder: str,
        cores: Sequence[int] | None = None,
        gpu: int | None = None,
    ) -> None:
        self.case, self.wanted, self.out = case, wanted, Path(folder) / f"{case.name}.json"
        self.errors = self.out.with_suffix(".log")
        environment = {
            name: f"{self.out.with_suffix('')}/{name.lower()}"
            for name in ("STATOR_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        }
        command = [sys.executable, "-m", case.module, *map(str, case.facts.values())]
        command += ["--systems", ",".join(wanted), "--out", str(self.out), *extra]
        if cores is not None:
            command = ["taskset", "-c", ",".join(map(str, cores)), *command]
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        self.ready, self.late = False, ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if cores is not None:  # nothing else is on these cores: its turn is now
            self._take_turn()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.ready = self.ready or line.strip() == "ready"

    def _take_turn(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait_until_ready(self, deadline: float) -> None:
        while not self.ready and self.process.poll() is None:
            if time.monotonic() > deadline:
                return self.end("took too long to compile")
            time.sleep(0.05)
        return None

    def time(self, limit: float) -> None:
        if self.process.poll() is None:
            try:
                self.process.communicate("go\n", timeout=limit)
            except subprocess.TimeoutExpired:
                self.end("took too long to be timed")

    def finish(self, limit: float, end: float) -> None:
        """Time the row, keep what is found, and print it."""
        self.time(min(limit, max(5.0, end - time.monotonic())))
        if self.late and time.monotonic() > end - SPARE:
            print(f"{self.case.name}: {self.late}; left out for time", flush=True)
            return
        found = self.found()
        if slow := self.too_slow():  # nothing is known of the others: they are measured once more
            found["systems"] = {slow: found["systems"][slow]}
        self.case.keep(found)
        print(self.case.line(), flush=True)

    def too_slow(self) -> str | None:
        """The system whose compilation was stopped for time, unless it is eager."""
        at = json.loads(self.out.read_text()).get("at", "") if self.late and self.out.exists() else ""
        return next((system for system in self.wanted if system != "eager" and at.startswith(f"{system}:")), None)

    def without(self, system: str) -> tuple[Case, list[str]]:
        return self.case, [name for name in self.wanted if name != system]

    def end(self, why: str) -> None:
        """Kill the process and what it started."""
        if self.process.poll() is None:
            self.late = why
            os.killpg(self.process.pid, 9)
            self.process.wait()

    def found(self) -> dict[str, Any]:
        """What the process wrote; a system that it died in, and later ones, are marked as failed."""
        found = json.loads(self.out.read_text()) if self.out.exists() else {"at": "start"}
        found.setdefault("systems", {})
        if "at" in found:
            lines = [line for line in self.errors.read_text().splitlines() if line.strip()] or [""]
            said = [line for line in lines if "Error" in line or "assert" in line] or lines
            why = self.late or f"ended with {self.process.returncode}: {said[-1][:300]}"
            for system in self.wanted:
                entry = found["systems"].setdefault(system, {})
                if self.case.figure not in entry:
                    entry.setdefault("failed", f"{found['at']}: {why}")
        return {**self.case.facts, **found}


def wanted_of(case: Case, names: Sequence[str], missing: bool) -> list[str]:
    """The systems to measure. Eager is measured with any of them: ratios are of one process."""
    kept = case.kept().get("systems", {})
    wanted = [name for name in names if not (missing and name in kept)]
    return ["eager", *(name for name in wanted if name != "eager")] if wanted else []


def measure(
    cases: Sequence[tuple[Case, Sequence[str]]], options: argparse.Namespace, extra: Sequence[str], cores: int = 0
) -> None:
    """Measure these systems of each row, `missing` ones only if that option is set, and print a line for each row.

    Groups of rows compile side by side, and are timed one after another. options: those of `add_options`.
    extra: further arguments of the measuring module. cores: how many each of several rows has to itself, on which it is
    timed beside the others; 0 gives no row cores of its own.
    """
    compileall.compile_dir(ROOT / "src", quiet=1)  # as an installer does; first calls import stator
    end, extra = time.monotonic() + options.minutes * 60, ["--seconds", str(options.seconds), *extra]
    wanted = [(case, wanted_of(case, names, options.missing)) for case, names in cases]
    left = [(case, found) for case, found in wanted if found]
    with tempfile.TemporaryDirectory(prefix="stator-bench-", ignore_cleanup_errors=True) as folder:
        if cores and options.jobs > 1:
            tasks = [partial(_alone, case, found, extra, folder, options.limit, end) for case, found in left]
            side_by_side(options.jobs, cores, tasks)
        else:
            _in_groups(left, options, extra, folder, end)


def _alone(
    case: Case, systems: Sequence[str], extra: Sequence[str], folder: str, limit: float, end: float, cores: list[int]
) -> None:
    """Measure a row on its own cores."""
    if time.monotonic() + SPARE < end:
        row = Measurement(case, systems, extra, folder, cores)
        row.wait_until_ready(min(time.monotonic() + limit, end - 5))
        row.finish(limit, end)


def _in_groups(
    left: Sequence[tuple[Case, Sequence[str]]],
    options: argparse.Namespace,
    extra: Sequence[str],
    folder: str,
    end: float,
) -> None:
    longest, waiting = 0.0, list(left)
    while waiting:
        began = time.monotonic()
        if began + max(longest, SPARE) > end:
            print(f"stopped for time: {len(waiting)} rows are left", flush=True)
            return
        gpus = [place % options.gpus if options.gpus else None for place in range(options.jobs)]
        group = [Measurement(*one, extra, folder, gpu=gpu) for one, gpu in zip(waiting, gpus, strict=False)]
        del waiting[: options.jobs]
        for row in group:
            row.wait_until_ready(min(began + options.limit, end - 5))
        for row in group:
            row.finish(options.limit, end)
        waiting[:0] = [row.without(slow) for row in group if (slow := row.too_slow())]
        longest = max(longest, time.monotonic() - began)


def add_options(parser: argparse.ArgumentParser, *, jobs: int, limit: float, seconds: float) -> None:
    parser.add_argument("--missing", action="store_true", help="leave out what is kept already, failures included")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing that would not end in this time")
    parser.add_argument("--limit", type=float, default=limit, help="seconds in which a row must compile")
    parser.add_argument("--seconds", type=float, default=seconds, help="of timing for each row")
    parser.add_argument("--jobs", type=int, default=jobs, help="rows that compile at a time")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that rows take by turns; 0: each sees all")
    parser.add_argument("--table", action="store_true", help="print the table of what is kept, and measure nothing")
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)


def kept_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
