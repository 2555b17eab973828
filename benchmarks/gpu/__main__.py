"""The GPU benchmark: models under eager, stator and torch.compile, a process for each row, as a Markdown table.

`python -m benchmarks.gpu [--models ...] [--kinds ...] [--batches ...] [--modes ...] [--peer] [--missing] [--minutes N]`

A row is a model, a kind (inference in bfloat16, training under autocast, adam: training with an optimizer) and a batch.
Each row is kept in benchmarks/results/gpu/ as soon as it is measured; with --missing, only what is not there is
measured. Of a row, only the named systems are measured again: torch.compile's figures stay beside new ones of stator.
Several rows compile at a time (--jobs), one is timed at a time. First calls beside others are slower.
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
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import KINDS, NAMES, left_out, systems
from benchmarks.gpu.table import markdown

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
SPARE = 20.0  # seconds before the end in which nothing is begun


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    batch: int

    @property
    def path(self) -> Path:
        return RESULTS / f"{self.name}-{self.kind}-{self.batch}.json"

    def kept(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def keep(self, found: dict[str, Any]) -> None:
        """Replace the systems that were measured, or failed, now."""
        kept = {**self.kept().get("systems", {}), **found.get("systems", {})}
        RESULTS.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**found, "systems": kept}, indent=1) + "\n")


class Measurement:
    """A process that compiles one row, says so, and waits for its turn to be timed."""

    def __init__(self, case: Case, wanted: Sequence[str], extra: Sequence[str], folder: str) -> None:
        self.case, self.wanted, self.out = case, wanted, Path(folder) / f"{case.path.stem}.json"
        self.errors = self.out.with_suffix(".log")
        caches = {
            name: f"{self.out.with_suffix('')}/{name.lower()}"
            for name in ("STATOR_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        }
        command = [sys.executable, "-m", "benchmarks.gpu.measure", case.name, case.kind, str(case.batch)]
        command += ["--systems", ",".join(wanted), "--out", str(self.out), *extra]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **caches}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        self.ready, self.late = False, ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.ready = self.ready or line.strip() == "ready"

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
                if "event_ms" not in entry:
                    entry.setdefault("failed", f"{found['at']}: {why}")
        return {"model": self.case.name, "kind": self.case.kind, "batch": self.case.batch, **found}


def wanted_of(case: Case, names: Sequence[str], missing: bool) -> list[str]:
    """The systems to measure. Eager is measured with any of them: ratios are of one process."""
    kept = case.kept().get("systems", {})
    wanted = [name for name in names if not (missing and name in kept)]
    return ["eager", *(name for name in wanted if name != "eager")] if wanted else []


def measure(cases: Sequence[tuple[Case, list[str]]], options: argparse.Namespace, end: float) -> None:
    """Groups of rows compile side by side, and are timed one after another."""
    extra = ["--seconds", str(options.seconds), "--device", options.device, *["--small"] * options.small]
    longest = 0.0
    for start in range(0, len(cases), options.jobs):
        began = time.monotonic()
        if began + max(longest, SPARE) > end:
            print(f"stopped for time: {len(cases) - start} rows are left", flush=True)
            return
        with tempfile.TemporaryDirectory(prefix="stator-bench-", ignore_cleanup_errors=True) as folder:
            group = [Measurement(case, wanted, extra, folder) for case, wanted in cases[start : start + options.jobs]]
            for one in group:
                one.wait_until_ready(min(began + options.limit, end - 5))
            for one in group:
                one.time(min(options.limit, max(5.0, end - time.monotonic())))
                if one.late and time.monotonic() > end - SPARE:
                    print(f"{one.case.path.stem}: {one.late}; left out for time", flush=True)
                    continue
                one.case.keep(one.found())
                print(line(one.case), flush=True)
        longest = max(longest, time.monotonic() - began)


def line(case: Case) -> str:
    cells = []
    for system, entry in case.kept()["systems"].items():
        cells.append(f"{system} {entry['event_ms']:.3f} ms" if "event_ms" in entry else f"{system} FAILED")
    return f"{case.path.stem}: {', '.join(cells)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(NAMES))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=["inference", "training"])
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 32], help="of inference; training has 16")
    parser.add_argument("--modes", nargs="*", default=["default", "reduce-overhead"], help="also max-autotune")
    parser.add_argument("--peer", action="store_true", help="also measure torch.compile in these modes")
    parser.add_argument("--missing", action="store_true", help="leave out what is kept already, failures included")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing that would not end in this time")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds in which a row must compile")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing for each row")
    parser.add_argument("--jobs", type=int, default=3, help="rows that compile at a time")
    parser.add_argument("--table", action="store_true", help="print the table of what is kept, and measure nothing")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    absent = left_out()
    for name in options.models:
        if name in absent:
            print(f"LEFT OUT: {name}: {absent[name]}", flush=True)
    shapes = [(kind, batch) for kind in options.kinds for batch in (options.batches if kind == "inference" else [16])]
    cases = [Case(name, *shape) for name in options.models if name not in absent for shape in shapes]
    names = systems(options.modes, options.peer)
    if not options.table:
        compileall.compile_dir(ROOT / "src", quiet=1)  # as an installer does; first calls import stator
        wanted = [(case, wanted_of(case, names, options.missing)) for case in cases]
        measure([(case, found) for case, found in wanted if found], options, time.monotonic() + options.minutes * 60)
    rows = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    print(markdown(sorted(rows, key=lambda row: (row["kind"], row["batch"], NAMES.index(row["model"])))))


if __name__ == "__main__":
    main()
