"""The GPU benchmark: models under eager, stator and torch.compile, a process for each row, as a Markdown table.

`python -m benchmarks.gpu [--models ...] [--kinds ...] [--batches ...] [--modes ...] [--peer] [--missing] [--minutes N]`

A row is a model, a kind (inference in bfloat16, training under autocast, adam: training with an optimizer) and a batch.
Each row is kept in benchmarks/results/gpu/ as soon as it is measured; with --missing, only what is not there is
measured. Of a row, only the named systems are measured again: torch.compile's figures stay beside new ones of stator.
Several rows compile at a time (--jobs), one is timed at a time. First calls beside others are slower.
"""

from __future__ import annotations

import argparse

from benchmarks.gpu.models import NAMES, systems
from benchmarks.gpu.table import markdown
from benchmarks.rows import RESULTS, Case, add_options, kept_rows, measure
from benchmarks.work import KINDS, left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(NAMES))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=["inference", "training"])
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 32], help="of inference; training has 16")
    parser.add_argument("--modes", nargs="*", default=["default", "reduce-overhead"], help="also max-autotune")
    parser.add_argument("--peer", action="store_true", help="also measure torch.compile in these modes")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    add_options(parser, jobs=3, limit=240.0, seconds=2.0)
    options = parser.parse_args()
    absent = left_out()
    for name in options.models:
        if name in absent:
            print(f"LEFT OUT: {name}: {absent[name]}", flush=True)
    shapes = [(kind, batch) for kind in options.kinds for batch in (options.batches if kind == "inference" else [16])]
    cases = [
        Case("benchmarks.gpu.measure", RESULTS / "gpu", dict(model=name, kind=kind, batch=batch), "event_ms")
        for name in options.models
        if name not in absent
        for kind, batch in shapes
    ]
    if not options.table:
        names = systems(options.modes, options.peer)
        measure([(case, names) for case in cases], options, ["--device", options.device, *["--small"] * options.small])
    rows = kept_rows(RESULTS / "gpu")
    print(markdown(sorted(rows, key=lambda row: (row["kind"], row["batch"], NAMES.index(row["model"])))))


if __name__ == "__main__":
    main()
