"""The training benchmark: every model in a fresh process with empty caches, stator beside torch.compile and eager.

`python -m benchmarks.run_training [MODEL ...]` prints the Markdown table and keeps the raw figures in
benchmarks/results/training/. With --jobs N, N models are measured at a time, each on processor cores of its own.

With `--options exact_rounding` stator compiles with that option on, with `--options no-exact_rounding` with it off;
figures are then kept in training-exact_rounding/ or training-no-exact_rounding/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import run_module, side_by_side
from benchmarks.table import geometric_mean
from benchmarks.training_models import NAMES

RESULTS = Path(__file__).parent / "results"
HEADER = (
    "model",
    "first step s",
    "peer's s",
    "ratio",
    "eager ms",
    "stator ms",
    "peer ms",
    "over eager",
    "over peer",
    "gradients",
)


def measure_in_fresh_process(model: str, extra: Sequence[str], cores: Sequence[int] | None) -> dict[str, Any]:
    """Run benchmarks.measure_training with caches in a new temporary folder, so that first steps are cold."""
    with tempfile.TemporaryDirectory(prefix="stator-bench-") as folder:
        out = Path(folder) / "result.json"
        run_module("benchmarks.measure_training", [model, "--out", str(out), *extra], cores)
        return json.loads(out.read_text())


def row(result: dict[str, Any]) -> tuple[str, ...]:
    first, ms, difference = result["first_step_s"], result["median_ms"], result["difference"]
    peer = "peer" in ms
    return (
        result["model"],
        f"{first['stator']:.1f}",
        f"{first['peer']:.0f}" if peer else "",
        f"1/{first['peer'] / first['stator']:.0f}" if peer else "",
        f"{ms['eager']:.0f}",
        f"{ms['stator']:.0f}",
        f"{ms['peer']:.0f}" if peer else "",
        f"{ms['eager'] / ms['stator']:.2f}",
        f"{ms['peer'] / ms['stator']:.2f}" if peer else "",
        f"{difference['gradients_1']:.0e}",
    )


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """One row a model; speed-ups above 1 mean that stator is faster; the last row holds geometric means."""
    ms = [result["median_ms"] for result in results]
    first = [result["first_step_s"] for result in results]
    peer = all("peer" in entry for entry in ms)
    means = (
        "**geometric mean**",
        f"{geometric_mean(f['stator'] for f in first):.1f}",
        f"{geometric_mean(f['peer'] for f in first):.0f}" if peer else "",
        f"1/{geometric_mean(f['peer'] / f['stator'] for f in first):.0f}" if peer else "",
        *("", "", ""),
        f"{geometric_mean(m['eager'] / m['stator'] for m in ms):.2f}",
        f"{geometric_mean(m['peer'] / m['stator'] for m in ms):.2f}" if peer else "",
        "",
    )
    rule = tuple("---" if i < 1 else "---:" for i in range(len(HEADER)))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (HEADER, rule, *map(row, results), means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(NAMES))
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of steady-state steps for each model")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--jobs", type=int, default=1, help="models measured at a time, on separate cores")
    parser.add_argument("--cores", type=int, default=2, help="cores for each of several jobs")
    parser.add_argument(
        "--options", nargs="*", default=[], help="options of stator.compile to switch on, or with no- off"
    )
    parser.add_argument("--out", type=Path, help="folder of the raw figures")
    options = parser.parse_args()
    options.out = options.out or RESULTS / "-".join(["training", *options.options])
    extra = ["--seconds", str(options.seconds), "--size", options.size] + (["--no-peer"] if options.no_peer else [])
    extra += ["--options", *options.options] if options.options else []
    options.out.mkdir(parents=True, exist_ok=True)

    def one(model: str, cores: list[int] | None) -> dict[str, Any] | None:
        try:
            result = measure_in_fresh_process(model, extra, cores)
        except subprocess.CalledProcessError as error:
            print(f"{model}: {error}", file=sys.stderr, flush=True)
            return None
        (options.out / f"{model}.json").write_text(json.dumps(result, indent=1) + "\n")
        print("  ".join(row(result)), file=sys.stderr, flush=True)
        return result

    results = side_by_side(options.jobs, options.cores, [partial(one, model) for model in options.models])
    print(markdown([result for result in results if result is not None]))
    if None in results:
        sys.exit(f"{results.count(None)} models could not be measured")


if __name__ == "__main__":
    main()
