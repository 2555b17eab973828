"""Measures every family of a suite, each in a process of its own with limits on time and memory; keeps the results.

    python -m benchmarks.sweeps.run {transformers,timm} [--peer] [--only NAME ...] [--check]

With one worker, which is the default, the seconds are those of a process that only shares the machine with others.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import platform
import random
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent.parent / "results" / "sweeps"
SUITES = ("transformers", "timm")
_USUAL = tuple(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "clip", "whisper", "bart"))
_LIMIT_S, _LIMIT_BYTES = 600, 14 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--peer", action="store_true", help="fill the columns of torch.compile instead of stator's")
    parser.add_argument("--only", nargs="+", default=[], help="these families")
    parser.add_argument("--missing", action="store_true", help="only families without a result")
    parser.add_argument("--first", type=int, default=10**6, help="so many families")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=int, default=60, help="the most processor seconds of a family")
    parser.add_argument("--results", type=Path, help="the file of results")
    parser.add_argument("--check", action="store_true", help="fail if a family does worse than in the kept results")
    chosen = parser.parse_args()
    path = chosen.results or RESULTS / f"{chosen.suite}.json"
    suite = importlib.import_module(f"benchmarks.sweeps.{chosen.suite}_models")
    kept = json.loads(path.read_text()) if path.exists() else {"families": {}}
    column = "peer" if chosen.peer else "stator"
    names = [name for name in suite.families() if not chosen.only or name in chosen.only][: chosen.first]
    if chosen.peer:  # only what can be built
        names = [name for name in names if "built" in kept["families"].get(name, {})]
    if chosen.missing:
        names = [
            name
            for name in names
            if column not in kept["families"].get(name, {}) and "problem" not in kept["families"].get(name, {})
        ]
    random.Random(0).shuffle(names)  # so that a part of a run is a fair sample
    warm_up()
    worse: list[str] = []
    kept |= {"versions": versions(chosen.suite), "known": len(suite.families())}

    def measured(name: str) -> tuple[str, dict[str, Any]]:
        known = kept["families"].get(name, {}).get("built")
        return name, in_process(chosen.suite, name, column, known, chosen.seconds)

    with ThreadPoolExecutor(chosen.workers) as pool:
        for number, (name, row) in enumerate(pool.map(measured, names), 1):
            before = kept["families"].get(name, {})
            merged = kept["families"][name] = {**before, **row}
            if chosen.check and grade(merged.get(column)) < grade(before.get(column)):
                worse.append(name)
            if not chosen.check:
                write(path, kept)
            print(f"{number}/{len(names)} {name}: {describe(merged, column)}", flush=True)
    if worse:
        print(f"worse than before: {', '.join(worse)}")
    return bool(worse)


def write(path: Path, kept: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept["families"] = dict(sorted(kept["families"].items()))
    part = path.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1) + "\n")
    part.replace(path)


def versions(suite: str) -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, suite: version(suite)}


def warm_up() -> None:
    """Import before forking what every family needs."""
    torch.set_num_threads(1)
    from benchmarks.models import import_torchvision

    import_torchvision()
    # torch._dynamo comes in with the first operation on a meta tensor, so every child would load it anew
    for name in ("timm", "stator.pipeline", "torch._dynamo", *_USUAL):
        importlib.import_module(name)
    gc.freeze()


def grade(entry: dict[str, Any] | None) -> int:
    """How good a result is: 0 none, 1 failed, 2 other outputs, 3 equal with breaks, 4 equal in one go."""
    if entry is None:
        return 0
    if "error" in entry:
        return 1
    if not runs_equal(entry):
        return 2
    return 3 if entry["breaks"] else 4


def runs_equal(entry: dict[str, Any]) -> bool:
    return entry.get("equal") in ("bitwise", "close")


def describe(row: dict[str, Any], column: str) -> str:
    if "problem" in row and "built" not in row:
        return f"not built: {row['problem'][:150]}"
    entry = row.get(column, {})
    if "error" in entry:
        return f"ERROR {entry['error'][:200]}"
    text = f"{entry['equal']} ({entry['difference']}), {entry['graphs']} graphs, {entry['breaks']} breaks, "
    text += f"{entry['recompiled']} recompiled, {entry['first_call_s']} s"
    return text + "".join(f"\n    {count}x {reason[:220]}" for reason, count in entry["reasons"].items())


# ---- one family in a forked process ----


def in_process(suite: str, family: str, column: str, known: dict[str, Any] | None, seconds: int) -> dict[str, Any]:
    """The row of one family; a crash, a hang or too much memory is a result as well."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        _child(suite, family, column, known, write_end)
    os.close(write_end)
    lines, status = _follow(read_end, child)
    os.close(read_end)
    row: dict[str, Any] = {}
    for line in lines:
        row.update(json.loads(line))
    if column not in row and "problem" not in row:
        if "built" in row:
            row[column] = {"error": f"the process ended with status {status}"}
        else:
            row["problem"] = f"the process ended with status {status}"
    return row


def _follow(descriptor: int, child: int) -> tuple[list[str], int]:
    """What the child wrote, and its exit status; it is ended when it takes too long."""
    deadline, data = time.monotonic() + _LIMIT_S, b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], 0.5)
        part = os.read(descriptor, 1 << 16) if ready else b""
        data += part
        if part:
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return [line for line in data.decode().split("\n")[:-1] if line], status
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        if ready:  # it closed its end and is about to go
            time.sleep(0.01)


def _child(suite: str, family: str, column: str, known: dict[str, Any] | None, out: int) -> None:
    def say(row: dict[str, Any]) -> None:
        os.write(out, (json.dumps(row) + "\n").encode())

    resource.setrlimit(resource.RLIMIT_AS, (_LIMIT_BYTES, _LIMIT_BYTES))
    silence = os.open(os.devnull, os.O_WRONLY)
    if not os.environ.get("SWEEP_VERBOSE"):
        os.dup2(silence, 1)
        os.dup2(silence, 2)
    try:
        models = importlib.import_module(f"benchmarks.sweeps.{suite}_models")
        measure = importlib.import_module("benchmarks.sweeps.measure")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                built = models.build(family, known)
            except Exception as error:
                say(
                    {
                        "problem": f"{error}"
                        if type(error).__name__ == "NotBuilt"
                        else f"{type(error).__name__}: {error}"
                    }
                )
                return
            say({"built": models.describe(built)})
        try:
            entry = measure.measure_peer(built) if column == "peer" else measure.measure_stator(built)
        except BaseException as error:
            if os.environ.get("SWEEP_VERBOSE"):
                traceback.print_exc()
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:400]
            entry = {
                "error": f"{type(error).__name__}: {text} @ {last.filename.split('site-packages/')[-1]}:{last.lineno}"
            }
        say({column: entry})
    finally:
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
