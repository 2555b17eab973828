"""One row of the GPU benchmark in a process of its own: `python -m benchmarks.gpu.measure NAME KIND BATCH --out FILE`.

It compiles the model with every system, compares each with a reference in float32, prints "ready", waits for a line on
stdin, and times all systems in turn. FILE is written after each step, so that a process that dies leaves what it had.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.models import build_work
from benchmarks.models import relative_error
from benchmarks.rows import Row
from benchmarks.work import Work, result

BURST = 5  # steps between two events
WARM_UP = 4


class Device:
    """Events, synchronization and memory, of CUDA or, to check the benchmark itself, of the CPU."""

    def __init__(self, name: str) -> None:
        self.name, self.cuda = name, name == "cuda"

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def kept(self) -> int:
        """Bytes that cannot be given back, the memory of CUDA graphs included."""
        gc.collect()
        if not self.cuda:
            return 0
        self.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def peak_of(self, call: Callable[[], Any]) -> int:
        """The most bytes that a call has beyond what is alive before it."""
        if not self.cuda:
            call()
            return 0
        self.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        self.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """Between two events around the call."""
        if not self.cuda:
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e3
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        self.synchronize()
        return start.elapsed_time(end)


def wrapped(system: str, model: torch.nn.Module) -> Callable[..., Any]:
    name, _, mode = system.partition(" ")
    if name == "eager":
        return model
    chosen = None if mode == "default" else mode
    if name == "stator":
        import stator

        return stator.compile(model, mode=chosen)
    return torch.compile(model, mode=chosen)


def reference(work: Work, training: bool) -> list[Any]:
    """Outputs on both batches, or gradients of both, in float32 without autocast."""

    class Reference:
        reference_dtype = torch.float32

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

    model = work.model if training else copy.deepcopy(work.model).float()
    return [result(work, Reference(), turn, training) for turn in range(2)]


def compiled(system: str, work: Work, exact: list[Any] | None, training: bool, device: Device, row: Row) -> Any:
    """The first call, later ones, their errors, memory. Raises what the system raises."""
    work.model.zero_grad(set_to_none=True)
    before, counts = device.kept(), _counts()
    row.at(f"{system}: first call")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        device.synchronize()
        start = time.perf_counter()
        call = wrapped(system, work.model)
        work.step(call, 0)
        device.synchronize()
        row.note(system, first_s=time.perf_counter() - start)
        row.at(f"{system}: later calls")
        errors = []
        for turn in (0, 1, 0, 1):
            _begin_step(system)
            found = result(work, call, turn, training)
            errors += [relative_error(found, exact[turn])] if exact else []
    row.note(system, error=max(errors, default=None))
    del found  # its memory is not the system's
    for _ in range(WARM_UP):
        _begin_step(system)
        work.step(call, 0)
    _begin_step(system)
    work.model.zero_grad(set_to_none=True)  # a step begins with it: gradients belong to the peak
    peak = device.peak_of(lambda: work.step(call, 1))
    work.model.zero_grad(set_to_none=True)
    row.note(system, peak_mb=peak / 1e6, kept_mb=(device.kept() - before) / 1e6)
    if system.startswith("stator"):
        said = [str(one.message)[:300] for one in warned if str(one.message).startswith("stator")]
        row.note(system, said=said, **{name: after - counts[name] for name, after in _counts().items()})
    return call


def _counts() -> dict[str, int]:
    if "stator" not in sys.modules:
        return {}
    from stator.base import counters

    return {name: counters.counts[name] for name in ("graphs", "graph_breaks", "kernels", "left_to_eager")}


def _begin_step(system: str) -> None:
    if system.startswith("torch.compile"):
        torch.compiler.cudagraph_mark_step_begin()


def timed(calls: dict[str, Any], work: Work, device: Device, seconds: float, row: Row) -> None:
    """Medians of rounds; in each round every system goes once, in an order that moves on."""
    samples: dict[str, dict[str, list[float]]] = {
        system: {"host_ms": [], "wall_ms": [], "event_ms": []} for system in calls
    }
    names, deadline, rounds = list(calls), time.perf_counter() + seconds, 0

    def burst(system: str) -> None:
        for _ in range(BURST):
            _begin_step(system)
            work.step(calls[system], 0)

    while rounds < 3 or time.perf_counter() < deadline:
        for system in names[rounds % len(names) :] + names[: rounds % len(names)]:
            burst(system)  # what the system before has left in caches is gone
            device.synchronize()
            _begin_step(system)
            start = time.perf_counter()
            kept = work.step(calls[system], 0)
            returned = time.perf_counter()
            device.synchronize()
            ended = time.perf_counter()
            del kept
            found = samples[system]
            found["host_ms"].append((returned - start) * 1e3)
            found["wall_ms"].append((ended - start) * 1e3)
            found["event_ms"].append(device.milliseconds(lambda s=system: burst(s)) / BURST)
        rounds += 1
    eager = statistics.median(samples["eager"]["event_ms"])
    for system, found in samples.items():
        medians = {name: statistics.median(values) for name, values in found.items()}
        spread = statistics.quantiles(found["event_ms"], n=4) if rounds > 3 else [0, 0, 0]
        row.note(system, **medians, spread_ms=spread[2] - spread[0], rounds=rounds, eager_ms=eager)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("kind")
    parser.add_argument("batch", type=int)
    parser.add_argument("--systems", required=True, help="separated by commas")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    systems, device, training = options.systems.split(","), Device(options.device), options.kind != "inference"
    facts = {"model": options.name, "kind": options.kind, "batch": options.batch, "torch": torch.__version__}
    if device.cuda:
        facts["device"] = torch.cuda.get_device_name()
    row = Row(options.out, facts)
    row.at("imports")
    for prefix, module in (("stator", "stator"), ("torch.compile", "torch._inductor.compile_fx")):
        if any(system.startswith(prefix) for system in systems):
            importlib.import_module(module)  # before the clock starts: only compiling is timed
    row.at("building the model")
    with torch.set_grad_enabled(training):
        work = build_work(options.name, options.kind, options.batch, device.name, small=options.small)
        row.at("reference")
        # steps of an optimizer change the weights: their errors are those of kind "training"
        exact = reference(work, training) if options.kind != "adam" else None
        calls: dict[str, Any] = {}
        for system in systems:
            try:
                calls[system] = compiled(system, work, exact, training, device, row)
            except Exception as error:
                row.note(system, failed=f"{row.content['at']}: {type(error).__name__}: {str(error)[:300]}")
                traceback.print_exc()
                device.synchronize()  # raises where the device takes no more work
        row.wait_for_turn()
        timed(calls, work, device, options.seconds, row)
    row.end()


if __name__ == "__main__":
    main()
