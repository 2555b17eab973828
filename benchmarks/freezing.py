"""Inference with constant weights beside eager: `python -m benchmarks.freezing MODEL SYSTEM`, each in its own process.

SYSTEM: `stator`, `frozen` (stator with `freezing`), `peer` (torch.compile), `peer-max` (torch.compile with freezing
and max-autotune), or `onnxruntime` (for models of images, where onnx and onnxruntime are installed). Prints the seconds
of the first call, and the least milliseconds of calls by turns with eager: of the processor with one thread, which
other work disturbs least, else of the clock.
"""

from __future__ import annotations

import argparse
import importlib
import io
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.models import Case, build, largest_relative_difference


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


def in_onnxruntime(case: Case) -> Callable[..., torch.Tensor]:
    onnxruntime = importlib.import_module("onnxruntime")
    exported = io.BytesIO()
    torch.onnx.export(case.model, case.args, exported, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(exported.getvalue(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def least_milliseconds(
    systems: dict[str, Callable[[], Any]], clock: Callable[[], float], seconds: float
) -> dict[str, float]:
    least = dict.fromkeys(systems, float("inf"))
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < 8 or time.perf_counter() < deadline:
        for name, run in systems.items():
            start = clock()
            run()
            least[name] = min(least[name], 1e3 * (clock() - start))
        rounds += 1
    return least


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("system", choices=("stator", "frozen", "peer", "peer-max", "onnxruntime"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    eager, case = (build(given.model, size=given.size, batch=given.batch) for _ in range(2))
    call = in_onnxruntime(case) if given.system == "onnxruntime" else compiled(given.system, case.model)
    start = time.perf_counter()
    made = call(*case.args, **case.kwargs)
    first = time.perf_counter() - start
    difference = largest_relative_difference(made, eager.model(*eager.args, **eager.kwargs))
    systems = {
        "eager": lambda: eager.model(*eager.args, **eager.kwargs),
        given.system: lambda: call(*case.args, **case.kwargs),
    }
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    least = least_milliseconds(systems, clock, given.seconds)
    print(
        f"{given.model} {given.system} threads {torch.get_num_threads()} batch {given.batch}: first {first:.1f} s, "
        f"eager {least['eager']:.2f} ms, {least[given.system]:.2f} ms, "
        f"over eager {least['eager'] / least[given.system]:.3f}, difference {difference:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    main()
