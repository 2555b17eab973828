"""The CPU benchmark: models in float32 under eager, stator, torch.compile and ONNX Runtime, as Markdown tables.

`python -m benchmarks.cpu [--models ...] [--kinds ...] [--batches ...] [--threads ...] [--systems ...] [--missing]`

A row is a model, a kind (inference, training: forward and backward), a batch and a number of threads. It is measured in
a process of its own, all systems by turns, and kept in benchmarks/results/cpu/MACHINE/ at once; with --missing, only
what is not there is measured. Of a row, only the named systems are measured again, with eager beside them.
ONNX Runtime takes part where it and onnx are installed (`make bench-cpu` installs both).
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from benchmarks.cpu.systems import SYSTEMS, TRAINING, missing
from benchmarks.cpu.table import markdown
from benchmarks.rows import RESULTS, Case, add_options, kept_rows, measure
from benchmarks.work import IMAGES, TEXT, left_out

# the ten of the headline first, so that a run that ends early has those
_FIRST = (
    *("bert-base", "gpt2", "distilbert", "t5-small", "llama-8x768", "resnet50", "mobilenetv3_large_100"),
    *("vit_base_patch16_224", "convnext_tiny", "densenet121"),
)
_LEFT_OUT = ("llama-8x1024", "qwen2-8x1024")  # sizes for GPUs
NAMES = (*_FIRST, *(name for name in (*TEXT, *IMAGES) if name not in (*_FIRST, *_LEFT_OUT)))


def machine() -> str:
    """The processor and its number of cores, as the name of a folder."""
    facts = Path("/proc/cpuinfo").read_text()
    found = [re.search(rf"^{name}\s*: (.*)$", facts, re.MULTILINE) for name in ("model name", "model")]
    model, number = (match.group(1) if match else "" for match in found)
    words = re.sub(r"\((R|TM)\)|@.*|CPU|Processor", "", f"{model} {number}")
    return re.sub(r"\W+", "-", f"{words} {len(os.sched_getaffinity(0))} cores".lower()).strip("-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(NAMES))
    parser.add_argument("--kinds", nargs="*", choices=("inference", "training"), default=["inference", "training"])
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8], help="of inference; training has 2")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--folder", type=Path, default=RESULTS / "cpu" / machine(), help="where rows are kept")
    parser.add_argument("--cores", type=int, default=0, help="of its own for each of --jobs rows, timed side by side")
    add_options(parser, jobs=1, limit=900.0, seconds=8.0)
    options = parser.parse_args()
    absent = left_out()
    for name in options.models:
        if name in absent:
            print(f"LEFT OUT: {name}: {absent[name]}", flush=True)
    shapes = [
        dict(kind=kind, batch=batch, threads=threads)
        for kind in options.kinds
        for batch in (options.batches if kind == "inference" else [2])
        for threads in options.threads
    ]
    cases = [
        Case("benchmarks.cpu.measure", options.folder, dict(model=name, **shape), "ms")
        for shape in shapes
        for name in options.models
        if name not in absent
    ]
    if not options.table:
        names = [system for system in options.systems if not missing(system)]
        trained = [system for system in names if system in TRAINING]
        wanted = [(case, names if case.facts["kind"] == "inference" else trained) for case in cases]
        measure(wanted, options, ["--small"] * options.small, options.cores)
    print(markdown(kept_rows(options.folder), NAMES))


if __name__ == "__main__":
    main()
