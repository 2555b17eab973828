"""The headline benchmark: every model in a fresh process with empty caches, stator beside torch.compile and eager.

`python -m benchmarks.run [MODEL ...]` prints the Markdown table and keeps the raw figures in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.models import NAMES
from benchmarks.table import markdown, row

RESULTS = Path(__file__).parent / "results"


def measure_in_fresh_process(model: str, extra: list[str]) -> dict:
    """Run benchmarks.measure with caches in a new temporary folder, so that first calls are cold."""
    with tempfile.TemporaryDirectory(prefix="stator-bench-") as folder:
        out = Path(folder) / "result.json"
        environment = {
            **os.environ,
            "STATOR_CACHE_DIR": f"{folder}/stator",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        command = [sys.executable, "-m", "benchmarks.measure", model, "--out", str(out), *extra]
        subprocess.run(command, env=environment, check=True, cwd=Path(__file__).parent.parent)
        return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(NAMES))
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of steady-state calls for each model")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    options = parser.parse_args()
    extra = ["--seconds", str(options.seconds), "--size", options.size] + (["--no-peer"] if options.no_peer else [])
    results = []
    RESULTS.mkdir(exist_ok=True)
    for model in options.models:
        print(f"measuring {model} ...", file=sys.stderr, flush=True)
        result = measure_in_fresh_process(model, extra)
        (RESULTS / f"{model}.json").write_text(json.dumps(result, indent=1) + "\n")
        print("  " + "  ".join(row(result)), file=sys.stderr, flush=True)
        results.append(result)
    print(markdown(results))


if __name__ == "__main__":
    main()
