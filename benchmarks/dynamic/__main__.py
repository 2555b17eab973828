"""Every program in a fresh process with empty caches, stator beside eager, and beside torch.compile with `--peer` or
`--peer-dynamic`.

`python -m benchmarks.dynamic [NAME ...]` prints the table and keeps the raw figures in benchmarks/results/dynamic/ as
soon as they are there. With --missing, only what is not there is measured. With --jobs, each of several programs has
cores of its own: all run one thread, and further cores are for the compilers' processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import run_module, side_by_side
from benchmarks.rows import RESULTS

from .program import programs
from .table import markdown, row

FOLDER = RESULTS / "dynamic"


@dataclass(frozen=True)
class Case:
    """A program, inference or training, and whether torch.compile's column is that of dynamic=True."""

    name: str
    mode: str
    beside_dynamic: bool

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}_{self.mode}{'_beside_dynamic' if self.beside_dynamic else ''}.json"

    def kept(self) -> dict[str, Any] | None:
        return json.loads(self.path.read_text()) if self.path.exists() else None

    def measure(self, systems: Sequence[str], seconds: float, limit: float, cores: Sequence[int] | None) -> None:
        """Keep the figures of a fresh process; say so where it failed or took too long."""
        told = f"{self.name}, {self.mode}"
        print(f"measuring {told} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            arguments = [self.name, self.mode, "--out", str(out), "--seconds", str(seconds), "--systems", *systems]
            try:
                run_module("benchmarks.dynamic.measure", arguments, cores, limit, threads=None if cores is None else 1)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(f"  {told} failed: {error}", file=sys.stderr, flush=True)
                return
            found: dict[str, Any] = json.loads(out.read_text())
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(found, indent=1) + "\n")
        print("  " + "  ".join(row(found)), file=sys.stderr, flush=True)


def measure_all(cases: Sequence[tuple[Case, Sequence[str]]], options: argparse.Namespace) -> None:
    """Measure these systems of each case, as many side by side as there are jobs, and begin none after the end."""
    end = time.monotonic() + options.minutes * 60

    def measure(case: Case, systems: Sequence[str], cores: list[int] | None) -> None:
        left = end - time.monotonic()
        if left > 0:
            case.measure(systems, options.seconds, min(options.limit, left), cores)

    side_by_side(options.jobs, options.cores, [partial(measure, *one) for one in cases])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; all of them by default")
    parser.add_argument("--modes", nargs="*", default=["inference", "training"])
    parser.add_argument("--peer", action="store_true", help="also torch.compile")
    parser.add_argument("--peer-dynamic", action="store_true", help="also torch.compile with dynamic=True, separately")
    parser.add_argument("--dynamic", action="store_true", help="also stator with dynamic=True")
    parser.add_argument("--missing", action="store_true", help="leave out what is kept already")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of steady-state calls for each size")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a program is given up")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after this time, and end by then")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time, each with cores of its own")
    parser.add_argument("--cores", type=int, default=1, help="of its own for each of --jobs programs")
    parser.add_argument("--kept", action="store_true", help="measure nothing; print the table of the kept results")
    options = parser.parse_args()
    chosen = [
        (name, mode) for name in options.names or programs() for mode in programs()[name].modes if mode in options.modes
    ]
    # separately: versions of both would share torch.compile's limit for a function
    columns = [False] * (options.peer or not options.peer_dynamic) + [True] * options.peer_dynamic
    cases = [Case(*one, beside_dynamic) for beside_dynamic in columns for one in chosen]
    if options.kept:
        cases = [Case(*one, beside_dynamic) for one in chosen for beside_dynamic in (False, True)]
    else:
        ours = ["eager", "alone", "stator"] + ["dynamic"] * options.dynamic
        peers = {False: ["peer"] * options.peer, True: ["peer_dynamic"]}
        wanted = [one for one in cases if not (options.missing and one.path.exists())]
        measure_all([(one, ours + peers[one.beside_dynamic]) for one in wanted], options)
    print(markdown([found for one in cases if (found := one.kept())]))


if __name__ == "__main__":
    main()
