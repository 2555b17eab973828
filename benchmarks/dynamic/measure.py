"""One program measured in a process of its own: the first pass over all sizes, equality, compilations, steady times.

Run as `python -m benchmarks.dynamic.measure NAME MODE --out FILE.json`; the runner sets caches to empty folders.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import stator
from benchmarks.measure import seconds_of, steady_state
from benchmarks.models import tensors_of
from stator.base import counters

from .program import Call, Compile, Program, Size, programs

SYSTEMS = ("eager", "alone", "stator", "dynamic", "peer", "peer_dynamic")
"""eager; stator's code for one size alone; stator and torch.compile as they decide by themselves; with dynamic=True."""

_COUNTED = {
    "compiled": "dynamo.compiled_frames",
    "recompiled": "dynamo.recompiles",
    "breaks": "graph_breaks",
    "limits": "dynamo.recompile_limit",
    "failed": "dynamo.failed_frames",
    "eager_graphs": "left_to_eager",
}


def compilers() -> dict[str, Compile]:
    return {
        "eager": lambda target: target,
        "alone": partial(stator.compile, dynamic=False),
        "stator": stator.compile,
        "dynamic": partial(stator.compile, dynamic=True),
        "peer": torch.compile,
        "peer_dynamic": partial(torch.compile, dynamic=True),
    }


def difference(actual: Any, expected: Any, mode: str) -> float:
    """max |actual - expected| / max |expected| over all tensors of two outputs. Other structure, shapes, dtypes, or
    other whole numbers are infinitely different.

    In training relative to 1e-4 of the largest of all gradients at least: some gradients are zero but for rounding (of
    the keys' bias in attention, say), in eager as well.
    """
    pairs = tensors_of(actual), tensors_of(expected)
    if [(t.shape, t.dtype) for t in pairs[0]] != [(t.shape, t.dtype) for t in pairs[1]] or not pairs[0]:
        return float("inf")
    least = 1e-12
    if mode == "training":
        least = 1e-4 * max(e.abs().max().item() for e in pairs[1])
    worst = 0.0
    for a, e in zip(*pairs, strict=True):
        if not e.dtype.is_floating_point:
            worst = worst if torch.equal(a, e) else float("inf")
        elif e.numel():
            scale = max(e.double().abs().max().item(), least)
            worst = max(worst, (a.double() - e.double()).abs().max().item() / scale)
    return worst


def copied(result: Any) -> Any:
    """The tensors of a result, which a later step may write into."""
    return [one.detach().clone() for one in tensors_of(result)]


def first_pass(
    call: Call, program: Program, mode: str, expected: dict[Size, Any], count: Callable[[], dict[str, int]]
) -> Any:
    """Every size once, in order, as a program that starts meets them, then every size again."""
    found: dict[str, Any] = {"first_s": {}, "difference": {}, "compiled_at": {}}
    begin = count()
    for size in program.sizes:
        before = count()
        seconds, result = seconds_of(partial(call, program.arguments(size)))
        found["first_s"][str(size)] = seconds
        found["difference"][str(size)] = difference(copied(result), expected[size], mode)
        found["compiled_at"][str(size)] = count()["compiled"] - before["compiled"]
    after = count()
    found["counts"] = {name: after[name] - begin[name] for name in after}
    for size in program.sizes:
        again = difference(copied(call(program.arguments(size))), expected[size], mode)
        found["difference"][str(size)] = max(again, found["difference"][str(size)])
    found["compiled_again"] = count()["compiled"] - after["compiled"]
    return found


def counts_of_stator() -> dict[str, int]:
    return {name: counters.counts[counter] for name, counter in _COUNTED.items()}


def counts_of_peer() -> dict[str, int]:
    from torch._dynamo.utils import counters as peers

    return {"compiled": peers["stats"]["unique_graphs"], "breaks": sum(peers["graph_break"].values())}


def start_peer() -> None:
    """Do what torch.compile does once in a process: import itself, and replace nn.Module.__init__, after which stator
    compiles functions that make modules anew."""
    importlib.import_module("torch._inductor.compile_fx")
    torch.compile(torch.relu, backend="eager")(torch.ones(1))


def measure(program: Program, mode: str, systems: list[str], seconds: float) -> dict[str, Any]:
    """Figures of one program, in this very process."""
    if not program.alone:
        systems = [name for name in systems if name != "alone"]
    if any(name.startswith("peer") for name in systems):
        start_peer()
    made = compilers()
    eager = program.step(mode, program.model(mode), made["eager"])
    expected = {size: copied(eager(program.arguments(size))) for size in program.sizes}
    passes: dict[str, Any] = {}
    calls: dict[str, dict[Size, Call]] = {}
    for name in systems:
        if name == "eager":
            calls[name] = dict.fromkeys(program.sizes, eager)
            continue
        count = counts_of_peer if name.startswith("peer") else counts_of_stator
        if name == "alone":
            calls[name] = {size: program.step(mode, program.model(mode), made[name]) for size in program.sizes}
            passes[name] = {"first_s": {}, "difference": {}}
            for size, call in calls[name].items():
                taken, result = seconds_of(partial(call, program.arguments(size)))
                passes[name]["first_s"][str(size)] = taken
                passes[name]["difference"][str(size)] = difference(copied(result), expected[size], mode)
            continue
        call = program.step(mode, program.model(mode), made[name])
        try:
            passes[name] = first_pass(call, program, mode, expected, count)
        except Exception as error:
            if not name.startswith("peer"):
                raise
            passes[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
            continue
        calls[name] = dict.fromkeys(program.sizes, call)
    steady = {}
    for size in program.sizes:
        inputs = program.arguments(size)
        at_size = {name: partial(by_size[size], inputs) for name, by_size in calls.items()}
        times = steady_state(at_size, seconds=seconds, least=3)
        steady[str(size)] = {name: statistics.median(samples) * 1e3 for name, samples in times.items()}
    return {
        "program": program.name,
        "mode": mode,
        "threads": torch.get_num_threads(),
        "systems": passes,
        "median_ms": steady,
        "units": {str(size): program.unit(size) for size in program.sizes},
        "torch": torch.__version__,
        "measured": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("mode", choices=("inference", "training"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=["eager", "alone", "stator"])
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of steady-state calls for each size")
    options = parser.parse_args()
    with torch.set_grad_enabled(options.mode == "training"):
        found = measure(programs()[options.program], options.mode, options.systems, options.seconds)
    options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
