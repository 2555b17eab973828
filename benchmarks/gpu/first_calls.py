"""First calls on a GPU, in seconds: eager, stator and torch.compile, without caches and with those of such a process.

`python -m benchmarks.gpu.first_calls [--models ...] [--kinds ...] [--systems ...] [--missing] [--minutes N] [--table]`

Each first call is made in a process of its own, one at a time; a compiler's second process finds the caches of its
first. Counted: the import of the compiler, `compile`, and the first step to the end of its work. Rows are kept in
benchmarks/results/gpu_first_calls/ as soon as they are measured; with --missing, only what is not there is measured.
"""

from __future__ import annotations

import argparse
import compileall
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import run_module
from benchmarks.rows import RESULTS, ROOT, SPARE, Case, kept_rows
from benchmarks.table import lines_of
from benchmarks.work import left_out

# the models of the tables of docs/gpu.md
MODELS = (
    *("bert-base", "llama-8x1024", "resnet50", "mobilenetv3_large_100", "vit_base_patch16_224", "convnext_tiny"),
    *("gpt2", "distilbert", "t5-small"),
)
BATCHES = {"inference": 1, "training": 16}
MODULE, FOLDER = "benchmarks.gpu.first_call", RESULTS / "gpu_first_calls"
SYSTEMS = ("eager", "stator", "torch.compile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--kinds", nargs="*", choices=list(BATCHES), default=list(BATCHES))
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--missing", action="store_true", help="leave out what is kept already")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing that would not end in this time")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that a process may take")
    parser.add_argument("--table", action="store_true", help="print the table of what is kept, and measure nothing")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.table:
        measure(options)
    print(markdown(kept_rows(FOLDER)))


def measure(options: argparse.Namespace) -> None:
    compileall.compile_dir(ROOT / "src", quiet=1)  # as an installer does
    end, longest, absent = time.monotonic() + options.minutes * 60, SPARE, left_out()
    extra = ["--device", options.device, *["--small"] * options.small]
    for name in options.models:
        if name in absent:
            print(f"LEFT OUT: {name}: {absent[name]}", flush=True)
            continue
        for kind in options.kinds:
            case = Case(MODULE, FOLDER, dict(model=name, kind=kind, batch=BATCHES[kind]), "first_s")
            kept = case.kept().get("systems", {})
            for system in options.systems:
                if options.missing and all(one in kept for one in _columns(system)):
                    continue
                began = time.monotonic()
                if began + longest > end:
                    print(f"stopped for time before {case.name}, {system}", flush=True)
                    return
                case.keep(_first_calls(case, system, extra, min(options.limit, end - began)))
                longest = max(longest, time.monotonic() - began)
            if case.path.exists():
                print(_line(case.kept()), flush=True)


def _columns(system: str) -> tuple[str, ...]:
    return (system,) if system == "eager" else (f"{system} cold", f"{system} warm")


def _first_calls(case: Case, system: str, extra: Sequence[str], limit: float) -> dict[str, Any]:
    """What the processes of a system found, or why they failed."""
    found: dict[str, Any] = {**case.facts, "systems": {}}
    with tempfile.TemporaryDirectory(prefix="stator-bench-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "found.json"
        for column in _columns(system):
            arguments = [*map(str, case.facts.values()), system, "--out", str(out), *extra]
            try:
                run_module(MODULE, arguments, None, limit, Path(folder))
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                found["systems"][column] = {"failed": str(error)[-300:]}
                break
            facts = json.loads(out.read_text())
            found["systems"][column] = facts.pop("times")
            found.update(facts)
    return found


def _line(row: dict[str, Any]) -> str:
    cells = [f"{name} {_seconds(entry)}" for name, entry in row["systems"].items()]
    return f"{row['model']}-{row['kind']}-{row['batch']}: {', '.join(cells)}"


def _seconds(entry: dict[str, Any]) -> str:
    if not entry:
        return ""
    return "failed" if "failed" in entry else f"{entry['import_s'] + entry['first_s']:.2f}"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    columns = [column for system in SYSTEMS for column in _columns(system)]
    cells = []
    for row in sorted(rows, key=lambda row: (row["kind"], MODELS.index(row["model"]))):
        found = [row["systems"].get(column, {}) for column in columns]
        times = [entry["import_s"] + entry["first_s"] if "first_s" in entry else None for entry in found]
        eager, cold, warm, peer, _ = times
        beyond = "" if eager is None or warm is None else f"{warm - eager:.2f}"
        share = "" if cold is None or peer is None else f"{cold / peer:.2f}"
        cells.append([f"{row['model']}, {row['kind']}, {row['batch']}", *map(_seconds, found), beyond, share])
    header = ["seconds", *columns, "stator warm beyond eager", "cold over torch.compile's"]
    return "\n".join(lines_of(header, cells))


if __name__ == "__main__":
    main()
