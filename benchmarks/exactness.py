"""How exact gradients are after one step: `python -m benchmarks.exactness [--peer] MODEL ...`, a Markdown row each.

Without dropout, in float32, beside gradients of the same weights and batch in float64: relative errors of eager, of
stator, of eager with every weight rounded once more (scaled by 1 + 1e-7), and of torch.compile. Deep networks with
small batches multiply rounding errors, so that what two systems differ by says little about either.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch

import stator
from benchmarks.measure_training import rounded_once_more
from benchmarks.training_models import NAMES, build_training


def gradients(name: str, size: str, wrap: Callable[[Any], Any], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Of one backward, in float64."""
    case = build_training(name, size=size, dropout=False)
    if dtype == torch.float64:
        case.model.double()
        for cell in case.loss.__closure__ or ():  # the batch
            cell.cell_contents = _widened(cell.cell_contents)
    case.loss(wrap(case.model)).backward()
    return {key: value.grad.double() for key, value in case.model.named_parameters() if value.grad is not None}


def _widened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _widened(item) for key, item in value.items()}
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def errors(actual: dict[str, Any], expected: dict[str, Any]) -> tuple[float, float]:
    """The largest and the median relative error of one parameter's gradient, by the norm."""
    scale = max(value.norm().item() for value in expected.values())
    found = [
        (actual[key] - value).norm().item() / max(value.norm().item(), 1e-6 * scale) for key, value in expected.items()
    ]
    return max(found), statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=NAMES)
    parser.add_argument("--peer", action="store_true", help="torch.compile too")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    options = parser.parse_args()
    systems: dict[str, Callable[[Any], Any]] = {
        "eager": lambda model: model,
        "stator": stator.compile,
        "eager, rounded": rounded_once_more,
    }
    if options.peer:
        systems["torch.compile"] = torch.compile
    print("| model |", " | ".join(systems), "|\n| --- |", " | ".join("---:" for _ in systems), "|")
    for name in options.models:
        exact = gradients(name, options.size, lambda model: model, torch.float64)
        cells = []
        for wrap in systems.values():
            largest, median = errors(gradients(name, options.size, wrap), exact)
            cells.append(f"{largest:.1e} ({median:.1e})")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
