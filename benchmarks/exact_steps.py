"""Whether training steps equal eager's: `python -m benchmarks.exact_steps [MODEL ...]`, a Markdown row each.

Every model at full size, the same weights and batch for both, SGD with momentum: loss and every gradient after the
first and the last of ten optimizer steps, in bits and as relative differences; how many graphs. Ways of training:

- exact: `exact_rounding`, without dropout; random: `exact_rounding` and `exact_random`, with the model's own dropout;
- default: no options, without dropout; free: `exact_rounding` switched off, without dropout;
- rounded: eager with every weight rounded once more (scaled by 1 + 1e-7).

One process and one file of figures for each model; what a file has is not measured again. With --jobs N, N models at a
time, each on cores of its own; with --limit, what is not done after so many seconds is left to another run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.fresh_process import run_module, shared_out
from benchmarks.training_models import NAMES

RESULTS = Path(__file__).parent / "results" / "exact_steps"
STEPS = 10
ALLOWED = 1e-3  # relative, of loss and of each gradient


@dataclass(frozen=True)
class Way:
    """One way to train beside eager. options: of stator.compile; None trains eagerly with weights rounded once more."""

    options: dict[str, Any] | None
    dropout: bool = False


WAYS = {
    "exact": Way({"exact_rounding": True}),
    "random": Way({"exact_rounding": True, "exact_random": True}, dropout=True),
    "default": Way({}),
    "free": Way({"exact_rounding": False}),
    "rounded": Way(None),
}


def measure(name: str, size: str, way: Way) -> dict[str, Any]:
    """Figures of both steps and of the graphs, in this very process."""
    import torch

    import stator
    from benchmarks.measure_training import Trainer, rounded_once_more
    from benchmarks.training_models import build_training
    from stator.base import counters

    def compiled(model: Any) -> Any:
        return stator.compile(model, fullgraph=True, options=way.options)

    start, steps = time.perf_counter(), {}
    eager = Trainer(build_training(name, size=size, dropout=way.dropout), lambda model: model)
    wrap = rounded_once_more if way.options is None else compiled
    ours = Trainer(build_training(name, size=size, dropout=way.dropout), wrap)
    counters.clear()
    for step in range(1, STEPS + 1):
        losses = []
        for trainer in (eager, ours):
            torch.manual_seed(step)
            losses.append(trainer())
        if step in (1, STEPS):
            steps[str(step)] = compared(losses[1], losses[0], ours.case.model, eager.case.model)
    found = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - start, 1),
        "steps": steps,
        "state_of_other_bits": state_of_other_bits(ours.case.model, eager.case.model),
        "graphs": counters.counts["graphs"],
        "breaks": counters.counts["graph_breaks"],
        "forward_graphs": counters.counts["compiled:forward"],
        "backward_graphs": counters.counts["compiled:backward"],
    }
    stator.reset()
    return found


def compared(loss: Any, expected_loss: Any, model: Any, expected: Any) -> dict[str, Any]:
    """gradient: the largest difference of one parameter's gradient, relative to that gradient's largest element.

    scaled: the same, but relative to at least 1e-4 of the largest of all gradients (some are zero but for rounding).
    other_bits: the differences by parameter, of the gradients that are not the same to the last bit.
    """
    from benchmarks.training_models import gradient_difference

    others, count = {}, 0
    for (key, value), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        count += theirs.grad is not None
        if (value.grad is None) != (theirs.grad is None):
            others[key] = float("inf")
        elif value.grad is not None and not same_bits(value.grad, theirs.grad):
            others[key] = relative(value.grad, theirs.grad)
    return {
        "loss": relative(loss, expected_loss),
        "loss_same_bits": same_bits(loss, expected_loss),
        "gradient": max(others.values(), default=0.0),
        "scaled": gradient_difference(model, expected),
        "gradients": count,
        "other_bits": others,
    }


def relative(actual: Any, expected: Any) -> float:
    """The largest difference of an element over the largest element; zero where both are zero."""
    difference = (actual.double() - expected.double()).abs().max().item()
    return difference / expected.double().abs().max().item() if difference else 0.0


def same_bits(actual: Any, expected: Any) -> bool:
    import torch

    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return False
    if actual.is_floating_point():  # so that zeros of either sign differ
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
        actual, expected = actual.view(whole), expected.view(whole)
    return torch.equal(actual, expected)


def state_of_other_bits(model: Any, expected: Any) -> list[str]:
    """Parameters and buffers that differ after the last step."""
    pairs = zip(model.state_dict().items(), expected.state_dict().values(), strict=True)
    return [key for (key, value), theirs in pairs if not same_bits(value, theirs)]


# ---- all models


HEADER = (
    "model",
    "gradients",
    "exact_rounding: loss and gradients of other bits, 1 step",
    "10 steps",
    "with dropout, 1 step",
    "10 steps",
    "graphs",
    "breaks",
    "default: loss, 1 step",
    "gradients",
    "10 steps: loss",
    "gradients",
    "exact_rounding off: loss, 1 step",
    "gradients",
    "10 steps: loss",
    "gradients",
    "eager rounded, 1 step",
    "10 steps",
)


def row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    """Cells of what was measured; the others are empty."""
    cells = [name, *[""] * (len(HEADER) - 1)]

    def of(way: str, step: int) -> dict[str, Any]:
        return found[way]["steps"][str(step)]

    def bits(way: str, step: int) -> str:
        at = of(way, step)
        others = len(at["other_bits"]) + (not at["loss_same_bits"])
        return f"{others} ({max(at['loss'], at['gradient']):.0e})" if others else "0"

    for at, way in ((2, "exact"), (4, "random")):
        if way in found:
            cells[1] = str(of(way, 1)["gradients"])
            cells[at : at + 2] = bits(way, 1), bits(way, STEPS)
    ways = [found[way] for way in ("exact", "random", "default", "free") if way in found]
    if ways:
        cells[6] = "; ".join(sorted(set(map(graphs, ways))))
        cells[7] = str(max(way["breaks"] for way in ways))
    for at, way in ((8, "default"), (12, "free"), (16, "rounded")):
        if way in found:
            steps = [of(way, step) for step in (1, STEPS)]
            both = [(f"{step['loss']:.0e}", f"{step['scaled']:.0e}") for step in steps]
            cells[at:] = [both[0][1], both[1][1]] if way == "rounded" else [*both[0], *both[1], *cells[at + 4 :]]
    return tuple(cells)


def graphs(way: dict[str, Any]) -> str:
    """Forward and backward graphs; of each version, where a model without breaks has several with one of both each: a
    later step was not as the first one relied on. (Every version is run forward and backward.)"""
    forward, backward, versions = way["forward_graphs"], way["backward_graphs"], way["graphs"]
    if versions > 1 and not way["breaks"] and forward == backward == versions:
        return f"1 + 1 ({versions} versions)"
    return f"{forward} + {backward}"


def markdown(results: dict[str, dict[str, Any]]) -> str:
    rule = ["---", *["---:"] * (len(HEADER) - 1)]
    rows = [row(name, found) for name, found in results.items()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (HEADER, rule, *rows))


def kept(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def measure_all(options: argparse.Namespace) -> list[str]:
    """Measure what is missing, and say which models are not done."""
    end = None if options.limit is None else time.monotonic() + options.limit
    free: SimpleQueue[list[int] | None] = SimpleQueue()
    for cores in shared_out(options.jobs, options.cores):
        free.put(cores)

    def one(name: str) -> str | None:
        missing = [way for way in options.ways if way not in kept(options.out, name)]
        cores = free.get()
        try:
            left = None if end is None else end - time.monotonic()
            if not missing or (left is not None and left < 1):
                return name if missing else None
            arguments = [name, "--size", options.size, "--out", str(options.out), "--ways", *missing, "--here"]
            run_module("benchmarks.exact_steps", arguments, cores, left)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            return name
        finally:
            free.put(cores)
        print("  ".join(row(name, kept(options.out, name))), file=sys.stderr, flush=True)
        return None

    with ThreadPoolExecutor(options.jobs) as pool:
        return [name for name in pool.map(one, options.models) if name is not None]


def measure_here(options: argparse.Namespace) -> None:
    """One model, each way kept as soon as it is done."""
    (name,) = options.models
    for way in options.ways:
        found = {**kept(options.out, name), way: measure(name, options.size, WAYS[way])}
        (options.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(NAMES))
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS))
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--cores", type=int, default=2, help="cores for each of several jobs")
    parser.add_argument("--limit", type=float, help="seconds for all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the figures")
    parser.add_argument("--table", action="store_true", help="only print the table of the figures that are there")
    parser.add_argument("--here", action="store_true", help="one model, in this process")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.here:
        return measure_here(options)
    late = [] if options.table else measure_all(options)
    print(markdown({name: found for name in options.models if (found := kept(options.out, name))}))
    if late:
        sys.exit(f"not done: {', '.join(late)}")
    return None


if __name__ == "__main__":
    main()
