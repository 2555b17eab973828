"""One training step measured in a process of its own: cold first steps, then alternating steps of all systems.

A step is: forward, loss, backward, SGD with momentum (the foreach implementation of torch for every system), gradients
to None. Run as `python -m benchmarks.measure_training NAME --out FILE.json`; the runner sets caches to empty folders.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import steady_state
from benchmarks.switches import switched
from benchmarks.training_models import TrainingCase, build_training, gradient_difference

Wrap = Callable[[Any], Any]


class Trainer:
    """One system training its own copy of the model; calling it makes one step and returns the loss."""

    def __init__(self, case: TrainingCase, wrap: Wrap) -> None:
        import torch

        self.case, self.call = case, wrap(case.model)
        self.optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3, momentum=0.9)

    def __call__(self) -> Any:
        self.optimizer.zero_grad()
        loss = self.case.loss(self.call)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def differences(
    name: str, size: str, wrap: Wrap, steps: int, roundings: int = 1, device: str = "cpu", tolerance: float = 0.0
) -> dict[str, float]:
    """Without dropout: relative differences of loss and gradients from eager after the first and the last step.

    Where one is not below `tolerance`, there is beside each what eager itself differs from eager when every weight is
    rounded once more (scaled by 1 + 1e-7, 2e-7 and so on, `roundings` times; the largest difference counts): some of
    these networks multiply a rounding error by thousands within a step, and by millions within ten.
    """
    found = _differences(name, size, [wrap], steps, device)
    if roundings and not all(difference < tolerance for difference in found.values()):
        rounded = [partial(rounded_once_more, scale=1 + number * 1e-7) for number in range(1, roundings + 1)]
        for what, difference in _differences(name, size, rounded, steps, device).items():
            found[f"rounding_{what}"] = difference
    return found


def _differences(name: str, size: str, systems: Sequence[Wrap], steps: int, device: str) -> dict[str, float]:
    """The largest differences of some systems from eager."""
    eager, *others = (
        Trainer(build_training(name, size=size, dropout=False, device=device), system)
        for system in (lambda model: model, *systems)
    )
    found = {}
    for step in range(1, steps + 1):
        expected, *losses = (trainer().item() for trainer in (eager, *others))
        if step in (1, steps):
            found[f"loss_{step}"] = max(abs(loss - expected) / abs(expected) for loss in losses)
            found[f"gradients_{step}"] = max(
                gradient_difference(other.case.model, eager.case.model) for other in others
            )
    return found


def rounded_once_more(model: Any, scale: float) -> Any:
    for parameter in model.parameters():
        parameter.data.mul_(scale)
    return model


def measure(
    name: str,
    *,
    peer: bool,
    seconds: float,
    size: str,
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Figures of one model, in this very process.

    options: those of stator.compile to switch, see switches.py.
    """
    import torch

    import stator

    compiled = partial(stator.compile, options=switched(options))
    systems: dict[str, Wrap] = {"stator": compiled}
    if peer:
        import torch._dynamo
        import torch._inductor.compile_fx  # loaded before the clock starts: only compiling is timed

        systems["peer"] = torch.compile
    systems["eager"] = lambda model: model
    trainers, first = {}, {}
    for system, wrap in systems.items():
        trainer = trainers[system] = Trainer(build_training(name, size=size), wrap)
        start = time.perf_counter()
        trainer()
        first[system] = time.perf_counter() - start
    times = steady_state(trainers, seconds=seconds, least=5)
    graphs = stator.explain(build_training(name, size=size).model)
    case = build_training(name, size=size)
    report = None

    def explained(*args: Any, **kwargs: Any) -> Any:
        nonlocal report
        report = graphs(*args, **kwargs)
        return case.model(*args, **kwargs)

    case.loss(explained)
    stator.reset()
    return {
        "model": name,
        "threads": torch.get_num_threads(),
        "graphs": report.graph_count,
        "breaks": report.graph_break_count,
        "first_step_s": first,
        "options": list(options),
        "difference": differences(name, size, compiled, 1),
        "median_ms": {system: statistics.median(samples) * 1e3 for system, samples in times.items()},
        "steps": {system: len(samples) for system, samples in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of alternating steady-state steps")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--options", nargs="*", default=[], help="options of stator.compile to switch on")
    options = parser.parse_args()
    result = measure(
        options.model,
        peer=not options.no_peer,
        seconds=options.seconds,
        size=options.size,
        options=options.options,
    )
    options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
