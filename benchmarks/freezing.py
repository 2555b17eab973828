"""Inference with constant weights beside eager: `python -m benchmarks.freezing MODEL SYSTEM`, each in its own process.

SYSTEM: `stator`, `frozen` (stator with `freezing`), `peer` (torch.compile), or `peer-max` (torch.compile with freezing
and max-autotune). Prints the seconds of the first call, and the least milliseconds of calls by turns with eager.
"""

from __future__ import annotations

import argparse
import importlib
import time
from typing import Any

import torch

from benchmarks.measure import steady_state
from benchmarks.models import build, largest_relative_difference


def compiled(system: str, model: torch.nn.Module) -> Any:
    import stator

    if system == "stator":
        return stator.compile(model)
    if system == "frozen":
        return stator.compile(model, options={"freezing": True})
    if system == "peer":
        return torch.compile(model)
    importlib.import_module("torch._inductor.config").freezing = True
    return torch.compile(model, mode="max-autotune")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("system", choices=("stator", "frozen", "peer", "peer-max"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    eager, case = (build(given.model, size=given.size, batch=given.batch) for _ in range(2))
    call = compiled(given.system, case.model)
    start = time.perf_counter()
    made = call(*case.args, **case.kwargs)
    first = time.perf_counter() - start
    difference = largest_relative_difference(made, eager.model(*eager.args, **eager.kwargs))
    systems = {
        "eager": lambda: eager.model(*eager.args, **eager.kwargs),
        given.system: lambda: call(*case.args, **case.kwargs),
    }
    times = steady_state(systems, seconds=given.seconds, least=8)
    least = {name: 1e3 * min(samples) for name, samples in times.items()}
    print(
        f"{given.model} {given.system} threads {torch.get_num_threads()} batch {given.batch}: first {first:.1f} s, "
        f"eager {least['eager']:.2f} ms, {least[given.system]:.2f} ms, "
        f"over eager {least['eager'] / least[given.system]:.3f}, difference {difference:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    main()
