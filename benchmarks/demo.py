"""`make demo`: compile a real transformer and a real vision model, compare with eager, and print a table."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

import stator
from benchmarks.models import build, largest_relative_difference

MODELS = ("BertForMaskedLM", "resnet50")


def median_ms(calls: dict[str, Callable[[], Any]], seconds: float = 5.0) -> dict[str, float]:
    """Medians of alternating calls."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times["eager"]) < 5:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(samples) for name, samples in times.items()}


def main() -> None:
    console = Console()
    table = Table(
        title=f"stator, torch {torch.__version__}, {torch.get_num_threads()} threads",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in ("model", "graphs", "breaks", "first s", "eager ms", "ours ms", "speed-up", "error"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with torch.no_grad(), Progress(*columns, console=console, transient=True) as progress:
        for name in MODELS:
            task = progress.add_task(f"{name}: building with random weights", total=None)
            case = build(name)
            expected = case.model(*case.args, **case.kwargs)
            progress.update(task, description=f"{name}: capturing")
            report = stator.explain(case.model)(*case.args, **case.kwargs)
            progress.update(task, description=f"{name}: compiling")
            compiled = stator.compile(case.model)
            start = time.perf_counter()
            actual = compiled(*case.args, **case.kwargs)
            first = time.perf_counter() - start
            progress.update(task, description=f"{name}: timing")
            ms = median_ms(
                {
                    "eager": lambda c=case: c.model(*c.args, **c.kwargs),
                    "compiled": lambda c=case, f=compiled: f(*c.args, **c.kwargs),
                }
            )
            table.add_row(
                name,
                str(report.graph_count),
                str(report.graph_break_count),
                f"{first:.2f}",
                f"{ms['eager']:.1f}",
                f"{ms['compiled']:.1f}",
                f"{ms['eager'] / ms['compiled']:.2f}x",
                f"{largest_relative_difference(actual, expected):.1e}",
            )
            progress.remove_task(task)
    console.print(table)


if __name__ == "__main__":
    main()
