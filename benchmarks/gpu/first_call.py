"""One first call in a process of its own: `python -m benchmarks.gpu.first_call NAME KIND BATCH SYSTEM --out FILE`.

FILE gets the seconds of the system's import, and of the first and the second step. The model is on the device by then,
and one product has started the device's library.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.measure import Device
from benchmarks.gpu.models import build_work


def compiled(system: str, model: torch.nn.Module) -> Callable[..., Any]:
    if system == "eager":
        return model
    if system == "torch.compile":
        return torch.compile(model)
    import stator

    return stator.compile(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("kind")
    parser.add_argument("batch", type=int)
    parser.add_argument("system")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    device, training = Device(options.device), options.kind == "training"
    with torch.set_grad_enabled(training):
        work = build_work(options.name, options.kind, options.batch, options.device, small=options.small)
        square = torch.ones(64, 64, device=options.device, dtype=torch.bfloat16)
        square @ square
        device.synchronize()
        start = time.perf_counter()
        call = compiled(options.system, work.model)
        imported = time.perf_counter()
        times = {"import_s": imported - start}
        for name in ("first_s", "second_s"):
            begun = time.perf_counter()
            work.step(call, 0)
            device.synchronize()
            times[name] = time.perf_counter() - begun
    facts: dict[str, Any] = {"torch": torch.__version__, "python": sys.version.split()[0], "times": times}
    if device.cuda:
        facts["device"] = torch.cuda.get_device_name()
    options.out.write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
