"""Measures every family of a suite, each in processes of its own with limits on time and memory; keeps the results.

    python -m benchmarks.sweeps.run {transformers,timm,wide,all} [--columns stator peer] [--workers N]

Results are written as they come, one file for each suite; with `--missing` a later run goes on where one stopped. With
one worker, which is the default, the seconds are those of a process that only shares the machine with others.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import platform
import select
import statistics
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .forked import Job, Row, Running, start
from .measure import SLOWEST

RESULTS = Path(__file__).parent.parent / "results" / "sweeps"
SUITES = ("transformers", "timm", "wide")
COLUMNS = ("stator", "peer", "train", "inductor", "speed", "speed_train", "dynamic")
_USUAL = tuple(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "clip", "whisper", "bart"))
_WRITE_EVERY_S = 3.0
_BEST = 4  # of grade()
_SLOWER = 25  # how many times longer the peer's first call takes, where it is not known


def main() -> int:
    chosen = _arguments()
    began = time.monotonic()
    warm_up()
    suites = SUITES if chosen.suite == "all" else (chosen.suite,)
    kept = {suite: Kept(suite, chosen) for suite in suites}
    jobs = [job for results in kept.values() for job in results.jobs()]
    jobs.sort(key=lambda job: kept[job.suite].expected_seconds(job), reverse=not chosen.cheapest_first)
    number = 0
    for job, row in run(jobs, chosen.workers, began + chosen.limit_seconds):
        kept[job.suite].take(job, row)
        number += 1
        for column in job.columns:
            text = describe(kept[job.suite].rows[job.family], column) if row else "stopped: no time left"
            print(f"{time.monotonic() - began:.0f} s {number}/{len(jobs)} {job.family}, {column}: {text}", flush=True)
    for results in kept.values():
        results.write(last=True)
        print(results.verdict(), flush=True)
    print(f"{number} of {len(jobs)} families in {time.monotonic() - began:.0f} s")
    return any(results.worse for results in kept.values())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=(*SUITES, "all"))
    parser.add_argument(
        "--columns",
        nargs="+",
        choices=COLUMNS,
        default=["stator"],
        help="peer: torch.compile; train: steps of training; inductor: by its kernels; speed*: beside eager; "
        "dynamic: other sizes",
    )
    parser.add_argument("--only", nargs="+", default=[], help="these families")
    parser.add_argument("--missing", action="store_true", help="only what has no result yet in the folder of results")
    parser.add_argument("--again", action="store_true", help="only what is missing, failed, is not equal or has breaks")
    parser.add_argument("--every", type=int, default=1, help="every so many-th family: a sample")
    parser.add_argument("--workers", type=int, default=1, help="families at a time")
    parser.add_argument("--build-seconds", type=int, default=60, help="of the processor, to find a small model")
    parser.add_argument("--seconds", type=int, default=120, help="of the processor, for one compiler on one model")
    parser.add_argument("--limit-seconds", type=float, default=1e9, help="for all of it; the costliest come first")
    parser.add_argument("--cheapest-first", action="store_true", help="instead: most results in little time")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of results")
    parser.add_argument("--check", action="store_true", help="fail if a family does worse than in the kept results")
    return parser.parse_args()


class Kept:
    """The results of one suite: those of earlier runs, and the file in which they and the new ones are kept."""

    def __init__(self, suite: str, chosen: argparse.Namespace) -> None:
        self.suite, self.chosen = suite, chosen
        self.path = chosen.results / f"{suite}.json"
        self.models = importlib.import_module(f"benchmarks.sweeps.{suite}_models")
        self.hints = _read(RESULTS / f"{suite}.json")["families"]
        self.content = _read(self.path)
        present = versions(suite)
        if self.content.get("versions", present) != present and not chosen.check:
            raise SystemExit(f"{self.path} was measured with other versions than {present}: choose another --results")
        self.content |= {"versions": present, "known": len(self.models.families())}
        self.rows: dict[str, Row] = self.content["families"]
        self.worse: list[str] = []
        self.written = 0.0

    def jobs(self) -> Iterator[Job]:
        seconds = dict.fromkeys(COLUMNS, self.chosen.seconds) | {"build": self.chosen.build_seconds}
        families = sorted(name for name in self.models.families() if not self.chosen.only or name in self.chosen.only)
        for name in families[:: self.chosen.every]:
            possible = self.models.columns(name) if hasattr(self.models, "columns") else COLUMNS
            columns = tuple(c for c in self.chosen.columns if c in possible and self.wanted(name, c))
            if columns:
                known = self.rows.get(name, {}).get("built") or self.hints.get(name, {}).get("built")
                yield Job(self.suite, name, columns, known, seconds)

    def wanted(self, name: str, column: str) -> bool:
        row = self.rows.get(name, {})
        if self.chosen.again:
            return grade(row.get(column)) < _BEST
        return not self.chosen.missing or not (column in row or "problem" in row)

    def expected_seconds(self, job: Job) -> float:
        """From earlier results, on whatever machine: only the order counts. What is not known may be costly."""
        row = self.hints.get(job.family, {})
        ours = row.get("stator", {}).get("first_call_s", 1.0)
        theirs = row.get("peer", {}).get("first_call_s", _SLOWER * ours)
        seconds = {"stator": ours, "peer": theirs, "train": 8 * ours, "inductor": 30 * ours, "speed": 10 * ours}
        seconds["dynamic"] = 3 * ours
        seconds["speed_train"] = seconds["inductor"] + seconds["speed"]
        return sum(seconds[column] for column in job.columns)

    def take(self, job: Job, row: Row) -> None:
        before = self.rows.get(job.family, {})
        if "built" in row:
            before.pop("problem", None)
        merged = self.rows[job.family] = {**before, **row}
        if not merged:
            del self.rows[job.family]
        kept = self.hints.get(job.family, {})
        if row and any(grade(merged.get(column)) < grade(kept.get(column)) for column in job.columns):
            self.worse.append(job.family)
        self.write()

    def write(self, *, last: bool = False) -> None:
        if self.chosen.check or not (last or time.monotonic() - self.written > _WRITE_EVERY_S):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.content["families"] = dict(sorted(self.rows.items()))
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n")
        part.replace(self.path)
        self.written = time.monotonic()

    def verdict(self) -> str:
        built = [row for row in self.rows.values() if "built" in row]
        text = f"{self.suite}: {len(self.rows)} tried, {len(built)} built"
        for column in COLUMNS:
            entries = [row[column] for row in built if column in row and not fails_in_eager(row[column])]
            equal = sum(runs_equal(entry) for entry in entries)
            whole = sum("error" not in entry and not entry["breaks"] for entry in entries)
            text += f"; {column}: {len(entries)} measured, {equal} equal, {whole} without breaks" if entries else ""
            if speeds := [entry["speed"] for entry in entries if "speed" in entry]:
                text += f", {statistics.geometric_mean(speeds):.2f} times eager's speed, {slower(speeds)} slower"
        return text + (f"; worse than before: {', '.join(self.worse)}" if self.worse else "")


def run(jobs: list[Job], workers: int, deadline: float) -> Iterator[tuple[Job, Row]]:
    """Rows as they come. At the deadline (of the monotonic clock) what runs is ended; the rest is not begun."""
    waiting, running = iter(jobs), dict[int, Running]()
    while time.monotonic() < deadline:
        while len(running) < workers and (job := next(waiting, None)):
            begun = start(job)
            running[begun.descriptor] = begun
        if not running:
            return
        ready, _, _ = select.select(list(running), [], [], min(1.0, max(0.0, deadline - time.monotonic())))
        for descriptor in ready:
            if not running[descriptor].read():
                ended = running.pop(descriptor)
                yield ended.job, ended.finish()
    for begun in running.values():
        yield begun.job, begun.finish(end=True)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"families": {}}


def versions(suite: str) -> dict[str, str]:
    packages = getattr(importlib.import_module(f"benchmarks.sweeps.{suite}_models"), "PACKAGES", (suite,))
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version(name) for name in packages},
    }


def warm_up() -> None:
    """Import before forking what every family needs."""
    torch.set_num_threads(1)
    from benchmarks.models import import_torchvision

    import_torchvision()
    # torch._dynamo comes in with the first operation on a meta tensor, so every child would load it anew
    for name in ("timm", "stator.pipeline", "torch._dynamo", *_USUAL):
        importlib.import_module(name)
    gc.freeze()


def grade(entry: Row | None) -> int:
    """How good a result is: 0 none, 1 failed, 2 other outputs, 3 equal with breaks, 4 equal in one go."""
    if entry is None:
        return 0
    if "error" in entry:
        return 1
    if not runs_equal(entry):
        return 2
    return 3 if entry["breaks"] else 4


def fails_in_eager(entry: Row) -> bool:
    """Whether there was nothing to compare with (see measure.EagerFails): such a call counts for nobody."""
    return entry.get("error", "").startswith("EagerFails")


def runs_equal(entry: Row) -> bool:
    return entry.get("equal") in ("bitwise", "close", "but for rounding")


def slower(speeds: list[float]) -> int:
    """How many programs are slower than eager, beyond noise."""
    return sum(speed < SLOWEST for speed in speeds)


def describe(row: Row, column: str) -> str:
    if "built" not in row:
        return f"not built: {row.get('problem', '')[:150]}"
    entry = row.get(column)
    if entry is None:
        return "not measured"
    if "error" in entry:
        return f"ERROR {entry['error'][:200]}"
    text = f"{entry['equal']} ({entry['difference']}), {entry['graphs']} graphs, {entry['breaks']} breaks, "
    text += f"{entry['recompiled']} recompiled, {entry['first_call_s']} s"
    text += f", {entry['speed']} times eager's speed" if "speed" in entry else ""
    return text + "".join(f"\n    {count}x {reason[:220]}" for reason, count in entry["reasons"].items())


if __name__ == "__main__":
    sys.exit(main())
