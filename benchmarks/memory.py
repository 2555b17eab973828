"""Peak memory of one training step: eager, stator and torch.compile, each in a process of its own.

`python -m benchmarks.memory [MODEL ...]` prints a Markdown table and keeps the figures in results/memory.json; with
`--options exact_rounding` stator compiles with that option on, with `--options no-exact_rounding` with it off; figures
are kept in memory-exact_rounding.json and memory-no-exact_rounding.json then.

A step is: forward, loss, backward, SGD with momentum, gradients to None. All figures are megabytes above what is alive
between steps (parameters, the optimizer's state, the batch), after three steps of warming up:

- allocated: the most bytes that tensors held at one time, as torch's CPU allocator reports them to its profiler. The
  arena of stator, which lives outside of that allocator and between steps, is added whole. Exact, and repeatable.
- resident: the growth of the process's resident set (VmHWM after a reset by /proc/self/clear_refs, over VmRSS before
  the step with the heap trimmed), to which the arena is added. Includes scratch memory of libraries and the heap's
  fragmentation; differs by a few percent from run to run.
- predicted: what stator said when it compiled the graphs.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.switches import switched
from benchmarks.training_models import NAMES, build_training

RESULTS = Path(__file__).parent / "results"
SYSTEMS = ("eager", "stator", "peer")
WARM_UP = 3


def measure(name: str, system: str, size: str, batch: int, options: list[str]) -> dict[str, float]:
    """Figures of one system in this very process."""
    import torch

    case = build_training(name, size=size, batch=batch)
    model = _wrapped(case.model, system, options)
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        loss = case.loss(model)
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP):
        step()
    arena = _arena_bytes()
    found = {
        "resident": (_resident_growth(step) + arena) / 1e6,
        "allocated": (_allocated_growth(step) + arena) / 1e6,
        "arena": arena / 1e6,
    }
    if system == "stator":
        found |= _predicted()
    return found


def _wrapped(model: Any, system: str, options: list[str]) -> Any:
    if system == "eager":
        return model
    if system == "peer":
        import torch

        return torch.compile(model)
    import stator

    return stator.compile(model, options=switched(options))


def _arena_bytes() -> int:
    arena = sys.modules.get("stator.runtime.memory.arena")
    return arena.idle_bytes() if arena is not None else 0


def _predicted() -> dict[str, float]:
    from stator.base import counters

    peaks = [counters.counts[f"memory:{part}_peak"] for part in ("forward", "backward")]
    return {"predicted": max(peaks) / 1e6}


def _resident_growth(step: Callable[[], None]) -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    step()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _allocated_growth(step: Callable[[], None]) -> int:
    """The highest sum of allocations less frees that torch's allocator reports during a step."""
    from torch.autograd.profiler import profile

    with profile(use_kineto=True, profile_memory=True, use_cpu=True) as profiler:
        step()
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    alive = most = 0
    for event in events:
        alive += event.nbytes()
        most = max(most, alive)
    return most


def measure_in_fresh_process(name: str, system: str, extra: Sequence[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="stator-bench-") as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.memory", name, "--system", system, "--out", str(out), *extra]
        subprocess.run(command, check=True, cwd=Path(__file__).parent.parent)
        return json.loads(out.read_text())


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown: a row for each model, and the geometric means of the ratios."""
    systems = [system for system in SYSTEMS if any(system in found for found in results.values())]
    kinds = ("allocated", "resident")
    head = ["model", *(f"{kind}: {system}" for kind in kinds for system in systems), "predicted"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for name, found in results.items():
        cells = [f"{found[system][kind]:.1f}" if system in found else "" for kind in kinds for system in systems]
        predicted = found.get("stator", {}).get("predicted")
        lines.append(f"| {name} | {' | '.join(cells)} | {'' if predicted is None else f'{predicted:.1f}'} |")
    for other in [system for system in systems if system != "stator"]:
        for kind in kinds:
            ratios = [
                found["stator"][kind] / found[other][kind]
                for found in results.values()
                if "stator" in found and other in found
            ]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                lines.append(f"\n{kind}: stator / {other}: {mean:.3f} in the geometric mean, {max(ratios):.3f} at most")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(NAMES))
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--system", choices=SYSTEMS, help="measure one system in this process")
    parser.add_argument(
        "--options", nargs="*", default=[], help="options of stator.compile to switch on, or with no- off"
    )
    parser.add_argument("--out", type=Path, help="with --system: where to write its figures")
    options = parser.parse_args()
    if options.system:
        found = measure(options.models[0], options.system, options.size, options.batch, options.options)
        (options.out or Path("/dev/stdout")).write_text(json.dumps(found) + "\n")
        return
    extra = ["--size", options.size, "--batch", str(options.batch), "--options", *options.options]
    systems = [system for system in SYSTEMS if system != "peer" or not options.no_peer]
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.models:
        results[name] = {system: measure_in_fresh_process(name, system, extra) for system in systems}
        print(name, results[name], file=sys.stderr, flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / ("-".join(["memory", *options.options]) + ".json")).write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
