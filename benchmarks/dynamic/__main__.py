"""Every program in a fresh process with empty caches, stator beside eager, and beside torch.compile with `--peer` or
`--peer-dynamic`.

`python -m benchmarks.dynamic [NAME ...]` prints the table and keeps the raw figures in benchmarks/results/dynamic/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import run_module
from benchmarks.rows import RESULTS

from .program import programs
from .table import markdown, row

FOLDER = RESULTS / "dynamic"


def measured(name: str, mode: str, systems: list[str], seconds: float, limit: float) -> dict[str, Any] | None:
    """The figures of a fresh process, which are kept; None where it failed or took too long."""
    print(f"measuring {name}, {mode} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        arguments = [name, mode, "--out", str(out), "--seconds", str(seconds), "--systems", *systems]
        try:
            run_module("benchmarks.dynamic.measure", arguments, None, limit)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"  failed: {error}", file=sys.stderr, flush=True)
            return None
        found: dict[str, Any] = json.loads(out.read_text())
    FOLDER.mkdir(parents=True, exist_ok=True)
    place(name, mode, "peer_dynamic" in systems).write_text(json.dumps(found, indent=1) + "\n")
    print("  " + "  ".join(row(found)), file=sys.stderr, flush=True)
    return found


def place(name: str, mode: str, beside_dynamic: bool) -> Path:
    """The file of a program's figures; those beside torch.compile with dynamic=True have a file of their own."""
    return FOLDER / f"{name}_{mode}{'_beside_dynamic' if beside_dynamic else ''}.json"


def kept(name: str, mode: str) -> list[dict[str, Any]]:
    paths = [place(name, mode, beside_dynamic) for beside_dynamic in (False, True)]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; all of them by default")
    parser.add_argument("--modes", nargs="*", default=["inference", "training"])
    peer = parser.add_mutually_exclusive_group()  # versions of both would share torch.compile's limit for a function
    peer.add_argument("--peer", action="store_true", help="also torch.compile")
    peer.add_argument("--peer-dynamic", action="store_true", help="also torch.compile with dynamic=True")
    parser.add_argument("--dynamic", action="store_true", help="also stator with dynamic=True")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of steady-state calls for each size")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a program is given up")
    parser.add_argument("--kept", action="store_true", help="measure nothing; print the table of the kept results")
    options = parser.parse_args()
    systems = ["eager", "alone", "stator"] + ["dynamic"] * options.dynamic
    systems += ["peer"] * options.peer + ["peer_dynamic"] * options.peer_dynamic
    found = []
    for name in options.names or programs():
        for mode in programs()[name].modes:
            if mode in options.modes:
                if options.kept:
                    found += kept(name, mode)
                else:
                    found.append(measured(name, mode, systems, options.seconds, options.limit))
    print(markdown([one for one in found if one]))


if __name__ == "__main__":
    main()
