"""How accurate training is: `python -m benchmarks.accuracy [--models MODEL ...] [--steps N]`, a Markdown row each.

Every model without dropout, in float32, with the same weights and one batch for all systems:

- gradients: the relative error of a parameter's gradient after one backward, beside the gradient of the same weights
  in float64; the median over all parameters, of eager and of stator, then the median over seeds of weights and batch:
  where the input of a ReLU lies within rounding of zero, the gradients below it jump, in either system. The ratio must
  be at most 1.5.
- losses: by how much the losses of N steps of SGD differ from eager's, relative to eager's, in the mean over all steps;
  of stator, and of eager with every weight rounded once more (scaled by 1 + 1e-7, 1 + 2e-7, ...; the largest counts).
  stator follows eager as closely as eager with another rounding does where their ratio is near 1 or below.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import stator
from benchmarks.measure_training import Trainer, rounded_once_more
from benchmarks.switches import switched
from benchmarks.training_models import NAMES, build_training

MOST = 1.5  # times eager's error
Wrap = Callable[[Any], Any]
HEADER = ("model", "gradients: eager", "stator", "ratio", "losses: eager rounded again", "stator", "ratio")


def unchanged(model: Any) -> Any:
    return model


def gradients(
    name: str, size: str, seed: int, wrap: Wrap, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Of one backward, by parameter, converted to float64. dtype: in which the model computes them."""
    case = build_training(name, size=size, dropout=False, seed=seed)
    case.model.to(dtype)
    for cell in case.loss.__closure__ or ():  # the batch
        cell.cell_contents = _converted(cell.cell_contents, dtype)
    case.loss(wrap(case.model)).backward()
    return {key: value.grad.double() for key, value in case.model.named_parameters() if value.grad is not None}


def _converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return {key: _converted(item, dtype) for key, item in value.items()}
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def median_error(actual: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """The median over parameters of |actual - exact| / |exact|, by the norm. Raises KeyError for a missing gradient.

    A gradient that is zero but for rounding counts as 1e-6 of the largest one. Gradients that are exactly zero are left
    out: behind a normalisation whose weight begins at zero they are most. The result is infinite where any error is
    not finite."""
    least = 1e-6 * max(value.norm().item() for value in exact.values())
    errors = [(actual[key] - value).norm().item() / max(value.norm().item(), least) for key, value in exact.items()]
    if not all(map(math.isfinite, errors)):
        return math.inf
    return statistics.median(error for error, value in zip(errors, exact.values(), strict=True) if value.any())


def losses(name: str, size: str, wrap: Wrap, steps: int) -> list[float]:
    """Of so many steps of training on one batch."""
    trainer = Trainer(build_training(name, size=size, dropout=False), wrap)
    return [trainer().item() for _ in range(steps)]


def distance(actual: Sequence[float], expected: Sequence[float]) -> float:
    return statistics.fmean(abs(one - other) / abs(other) for one, other in zip(actual, expected, strict=True))


def measure(name: str, size: str, seeds: int, steps: int, roundings: int, compiled: Wrap) -> dict[str, float]:
    """Figures of one model, in this very process."""
    errors: dict[str, list[float]] = {"gradients_eager": [], "gradients_stator": []}
    for seed in range(seeds):
        exact = gradients(name, size, seed, unchanged, torch.float64)
        for system, wrap in zip(errors, (unchanged, compiled), strict=True):
            errors[system].append(median_error(gradients(name, size, seed, wrap), exact))
            stator.reset()
    found = {system: statistics.median(values) for system, values in errors.items()}
    if steps:
        expected = losses(name, size, unchanged, steps)
        others = [
            losses(name, size, partial(rounded_once_more, scale=1 + number * 1e-7), steps)
            for number in range(1, roundings + 1)
        ]
        found["losses_rounded"] = max(distance(other, expected) for other in others)
        found["losses_stator"] = distance(losses(name, size, compiled, steps), expected)
    stator.reset()
    return found


def ratio(found: dict[str, float], ours: str, theirs: str) -> float:
    """An error of eager's below the resolution of float32 counts as that."""
    return found[ours] / max(found[theirs], 2**-24)


def row(name: str, found: dict[str, float]) -> str:
    cells = [name]
    for ours, theirs in (("gradients_stator", "gradients_eager"), ("losses_stator", "losses_rounded")):
        if ours in found:
            cells += [f"{found[theirs]:.1e}", f"{found[ours]:.1e}", f"{ratio(found, ours, theirs):.2f}"]
        else:
            cells += [""] * 3
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=NAMES, metavar="MODEL")
    parser.add_argument("--seeds", type=int, default=3, help="of weights and batch, for the gradients")
    parser.add_argument("--steps", type=int, default=200, help="of the comparison of losses; 0 leaves it out")
    parser.add_argument("--roundings", type=int, default=2, help="how many times eager is run with other weights")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--options", nargs="*", default=[], help="options of stator.compile, or with no- off")
    parser.add_argument("--out", type=Path, help="where to keep the figures, as JSON")
    options = parser.parse_args()
    compiled = partial(stator.compile, options=switched(options.options))
    print(f"| {' | '.join(HEADER)} |\n| --- |{' ---: |' * (len(HEADER) - 1)}")
    results: dict[str, dict[str, float]] = {}
    for name in options.models:
        results[name] = measure(name, options.size, options.seeds, options.steps, options.roundings, compiled)
        print(row(name, results[name]), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    ratios = {name: ratio(found, "gradients_stator", "gradients_eager") for name, found in results.items()}
    worse = [name for name, found in ratios.items() if not found <= MOST]  # NaN is worse, too
    if worse:
        sys.exit(f"gradients are more than {MOST} times as far from float64 as eager's: {', '.join(worse)}")


if __name__ == "__main__":
    main()
