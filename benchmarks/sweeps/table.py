"""The page docs/sweeps.md, made from the kept results of the sweeps: the summary, what ended graphs, every family.

python -m benchmarks.sweeps.table
"""

from __future__ import annotations

import bisect
import json
import re
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from .causes import CAUSES
from .measure import SLOWEST
from .run import COLUMNS, RESULTS, SUITES, fails_in_eager, runs_equal

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"
TITLES = {
    "transformers": "transformers: every architecture",
    "timm": "timm: a small model of every family",
    "wide": "Many libraries and programs written by hand, beside eager's time",
}
SPEEDS = {"speed": "inference", "speed_train": "training"}
BOUNDS = (SLOWEST, 1.1, 1.3, 1.6, 2.0, 3.0)  # of the distribution of speeds

HEAD = """# Sweeps over other people's models

A sweep captures every architecture of transformers for which a small configuration can be made, and one of the
smallest models of every family (module) of timm, in eval mode without gradients, by `stator.compile(model,
backend="eager")` and by `torch.compile(model, backend="eager")`. It calls each model twice with other values of equal
shapes, and compares both outputs, with everything inside them, with eager PyTorch's. The models are unchanged,
weights are random, and nothing is downloaded.

    make sweep-transformers sweep-timm     # fails if a family does worse than the kept results
    python -m benchmarks.sweeps.run all --columns stator peer --workers 16   # measures anew, keeps the results
    python -m benchmarks.sweeps.table      # this page

- Rules on the names of fields make configurations smaller (`benchmarks/sweeps/small_configs.py`). Inputs follow from
  the names of the forward's parameters (`inputs.py`). Of several kinds of inputs (text, images, …) the sweep takes
  the fullest call that eager runs; ids hold as many placeholders for images, videos and sounds as the model makes
  features of them.
- Each family has a process of its own, which builds the model once. Each compiler runs in a fork of it, with a limit
  on processor seconds; past the limit the family has failed (*time*).
- *equal*: `bitwise`, or `close` (the largest difference is at most 1e-5 of the tensor's largest value: captured
  models make attention masks without looking at the data, so another kernel may run). Anything else counts as not
  equal.
- *breaks*: every place where a graph ended early or a frame ran eagerly, each time it was compiled.
- *recompiled*: families with frames that the second call compiled again.
- *training* (column `train`, where it was measured): the model in training mode under `backend="aot_eager"` with
  `exact_random`; outputs, the gradients of all parameters and the buffers of two steps are compared with eager's.
  Where eager PyTorch itself fails in training mode, there is nothing to compare. The kept results come from several
  states of the source of one day; operators that run in ATen between compiled parts count as breaks there.
- *by its own kernels* (column `inductor`, where it was measured): training under the default backend, equal to 1e-3
  of each tensor's largest value; `but for rounding` where a program amplifies rounding beyond that, and equals eager
  under `exact_rounding`.
- *other sizes* (column `dynamic`, where it was measured): one call with `dynamic=True`, and two with other batches and,
  where the model takes them, other lengths of text and sound, or larger images; *recompiled* are families with frames
  that these two compiled again.
- *speed* (columns `speed` and `speed_train`) is eager's processor time over stator's: the median over pairs of
  neighbouring calls, of which either comes first by turns, after calls that compile. Pairs are added while their spread
  leaves open whether the program is slower than 0.97 of eager. The machine (two cores of a Xeon with AVX-512) also did
  much other work: two runs of a family differ by 0.01 to 0.03, and by more where a program moves much memory. Rows
  without `noise` in the kept results are older: ratios of two medians, also on another processor, where oneDNN gains
  more over eager's BLAS (MobileNetV3 in inference: 3.6 there, 2.4 here).
- Seconds (in the kept results only) come from a machine that also did other work; they are no benchmark.
"""


WIDE = """Small models of diffusers, PyTorch Geometric, MONAI, kornia, gpytorch, torchdiffeq, x-transformers and
segmentation_models_pytorch, and recommenders, recurrent networks, GANs and steps of reinforcement learning written by
hand (`benchmarks/sweeps/wide/`), under the default backend on one thread. `make bench-wide` installs the libraries in
an environment of its own, goes on where an earlier run stopped, and makes this page. Results are compared with
`exact_random` to 1e-3 of each tensor's largest value (`but for rounding`: a program that amplifies rounding beyond
that, and equals eager under `exact_rounding`); times are those of the default options. Inference is a call
without gradients; training is forward and backward. The unit of a loop (GAN, reinforcement learning, sampling) is its
step with its optimizers: the networks are compiled, or, where the name says `whole`, the step. After a step the
gradients and weights are compared.
"""

SPEED = """Under the default backend on one thread: inference is a call without gradients, training forward and backward
in training mode; results are compared to 1e-3 of each tensor's largest value. Of {families} families {inference} have
a speed of inference and {training} of training{failing}{missing}. The source changed in
between.
"""

# Remarks on the results of certain versions: {suite: {version of its package: text}}
NOTES = {
    "transformers": {
        "5.17.0": """Four families (autoformer, bridgetower, informer, umt5) do something else, or fail, as soon as
`torch.compiler.is_compiling()` is true, also in plain eager PyTorch with that function replaced. If a program fails
after that answer, stator captures it again with the answer False ([control](control.md)); three of the four need
this. umt5 does not fail, but computes other numbers (its decoder looks at later positions, unless it is compiled)."""
    }
}


def main() -> None:
    parts = [HEAD]
    for suite in SUITES:
        path = RESULTS / f"{suite}.json"
        if path.exists():
            kept = json.loads(path.read_text())
            parts.append(speed_section(kept) if suite == "wide" else section(suite, kept))
    PAGE.write_text("\n".join(parts))


def section(suite: str, kept: dict[str, Any]) -> str:
    rows = kept["families"]
    built = {name: row for name, row in rows.items() if "built" in row}
    versions = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    lines = [f"## {TITLES[suite]}", ""]
    lines += [
        f"Measured with {versions}. Of {kept['known']} families {len(rows)} were tried, and of {len(built)} a model"
    ]
    lines += ["was built that eager PyTorch runs.", "", *summary(built), ""]
    if again := kept.get("again"):
        versions = ", ".join(f"{name} {number}" for name, number in again["versions"].items())
        names = ", ".join(again["families"])
        lines += [f"{len(again['families'])} of them were measured later for stator, with {versions}: {names}.", ""]
    note = NOTES.get(suite, {}).get(kept["versions"][suite])
    lines += [note, ""] if note else []
    lines += speeds(suite, built)
    for column in COLUMNS:
        lines += reasons(built, column) if column not in SPEEDS else []
    lines += recompiled(built)
    lines += ["### Every family", "", *families(built), ""]
    missing = {name: row for name, row in rows.items() if "built" not in row}
    if missing:
        lines += ["### Not built", "", "What the first attempts met:", ""]
        lines += [f"- `{name}`: {_cell(row['problem'])[:200]}" for name, row in missing.items()] + [""]
    return "\n".join(lines)


def speed_section(kept: dict[str, Any]) -> str:
    """The wide suite, which measures the default backend beside eager: equality, breaks and speed of each family."""
    rows = kept["families"]
    built = {name: row for name, row in rows.items() if "built" in row}
    versions = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    lines = [f"## {TITLES['wide']}", "", WIDE, f"Measured with {versions}.", ""]
    lines += speed_table(built)
    if slow := slow_families("wide", built):
        lines += ["", "### Slower than 0.97 of eager, with the cause", "", *slow]
    lines += ["", "### Every family of the wide suite", ""]
    lines += ["| family | library | inference | breaks | speed | training | breaks | speed |"]
    lines += ["| --- | --- | --- | ---: | ---: | --- | ---: | ---: |"]
    for name, row in built.items():
        cells = [name, row["built"]["model"]]
        for column in SPEEDS:
            entry = row.get(column)
            equal, _, breaks = _cells(entry)
            cells += [equal, breaks, f"{entry['speed']:.2f}" if entry and "speed" in entry else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def speeds(suite: str, built: dict[str, Any]) -> list[str]:
    """The speeds of a suite that is swept for capture first, as far as they were measured."""
    measured = {name: row for name, row in built.items() if any(_has_speed(row, column) for column in SPEEDS)}
    if not measured:
        return []
    lines = ["### Speed beside eager", "", _coverage(built), *speed_table(measured), ""]
    bounds = [f"below {BOUNDS[0]}", *[f"{low} to {high}" for low, high in pairwise(BOUNDS)]]
    lines += ["| families by speed | " + " | ".join([*bounds, f"from {BOUNDS[-1]}"]) + " |"]
    lines += ["| --- |" + " ---: |" * (len(BOUNDS) + 1)]
    for column, title in SPEEDS.items():
        found = Counter(
            bisect.bisect_right(BOUNDS, row[column]["speed"]) for row in measured.values() if _has_speed(row, column)
        )
        lines.append(f"| {title} | " + " | ".join(str(found[at]) for at in range(len(BOUNDS) + 1)) + " |")
    slow = slow_families(suite, measured)
    return [*lines, "", *(["Slower than 0.97 of eager, with the cause:", "", *slow, ""] if slow else [])]


def _coverage(built: dict[str, Any]) -> str:
    counts = {column: sum(_has_speed(row, column) for row in built.values()) for column in SPEEDS}
    failing = sum(fails_in_eager(row["speed_train"]) for row in built.values() if "speed_train" in row)
    text = f"; eager itself fails in training for {failing}" if failing else ""
    missing = (
        "" if min(counts["speed"], counts["speed_train"] + failing) == len(built) else "; others were not measured"
    )
    return SPEED.format(
        families=len(built),
        inference=counts["speed"],
        training=counts["speed_train"],
        failing=text,
        missing=missing,
    )


def _has_speed(row: dict[str, Any], column: str) -> bool:
    return "speed" in row.get(column, {})


def speed_table(built: dict[str, Any]) -> list[str]:
    lines = ["| | families | run | equal to eager | no breaks | speed, geometric mean | least | below 0.97 |"]
    lines += ["| --- |" + " ---: |" * 7]
    for column, title in SPEEDS.items():
        entries = [row[column] for row in built.values() if column in row and not fails_in_eager(row[column])]
        ran = [entry for entry in entries if "error" not in entry]
        found = [entry["speed"] for entry in ran]
        if not found:
            continue
        shares = [_share(part, entries) for part in (ran, list(filter(runs_equal, ran)))]
        shares.append(_share([entry for entry in ran if not entry["breaks"]], entries))
        numbers = [f"{statistics.geometric_mean(found):.2f}", f"{min(found):.2f}"]
        numbers.append(str(sum(speed < SLOWEST for speed in found)))
        lines.append(f"| {title} | {len(entries)} | " + " | ".join(shares + numbers) + " |")
    return lines


def slow_families(suite: str, built: dict[str, Any]) -> list[str]:
    lines = []
    for name, row in built.items():
        slow = [f"{SPEEDS[c]} {row[c]['speed']:.2f}" for c in SPEEDS if row.get(c, {}).get("speed", 1) < SLOWEST]
        lines += [f"- `{name}` ({', '.join(slow)}): {CAUSES[suite][name]}"] if slow else []
    return lines


def summary(built: dict[str, Any]) -> list[str]:
    lines = ["| | families | run | equal to eager | bitwise | in one go (no breaks) | graphs | breaks | recompiled |"]
    lines.append("| --- |" + " ---: |" * 8)
    both = {name: row for name, row in built.items() if "stator" in row and "peer" in row}
    ours = {name: row for name, row in built.items() if "stator" in row}
    counted = [("stator", "stator", ours)]
    if both and len(both) < len(ours):
        counted.append(("stator, on the families of the next line", "stator", both))
    counted.append(("torch.compile", "peer", both))
    others = {"train": "training", "inductor": "training by its own kernels", "dynamic": "other sizes"}
    for column, who in others.items():
        measured = {name: row for name, row in built.items() if column in row and not fails_in_eager(row[column])}
        counted.append((f"stator, {who}", column, measured))
    for who, column, rows in counted:
        if rows:
            lines.append(f"| {who} | " + " | ".join(_counts([row[column] for row in rows.values()])) + " |")
    return lines


def _counts(entries: list[dict[str, Any]]) -> list[str]:
    ran = [entry for entry in entries if "error" not in entry]
    equal = [entry for entry in ran if runs_equal(entry)]
    bitwise = [entry for entry in ran if entry["equal"] == "bitwise"]
    whole = [entry for entry in ran if not entry["breaks"]]
    cells = [str(len(entries)), *(_share(part, entries) for part in (ran, equal, bitwise, whole))]
    cells += [str(sum(entry[field] for entry in ran)) for field in ("graphs", "breaks")]
    return [*cells, str(sum(entry["recompiled"] > 0 for entry in ran))]


def reasons(built: dict[str, Any], column: str) -> list[str]:
    """What ended graphs, by the number of families in which it did."""
    found: Counter[str] = Counter()
    for row in built.values():
        found.update(dict.fromkeys(reason.split(" @ ")[0] for reason in row.get(column, {}).get("reasons", {})).keys())
    if not found:
        return []
    lines = [f"### What ended the graphs of {_who(column)}", "", "| families | reason |", "| ---: | --- |"]
    return lines + [f"| {count} | {_cell(reason)[:160]} |" for reason, count in found.most_common(40)] + [""]


def recompiled(built: dict[str, Any]) -> list[str]:
    """Families that compiled anew for other sizes, with the first guard that failed."""
    lines = []
    for name, row in built.items():
        causes = [line for line in row.get("dynamic", {}).get("causes", ()) if line.startswith("recompiling")]
        lines += [f"- `{name}`: {_cell(causes[0].partition(' @ ')[2])[:200]}"] if causes else []
    return ["### What was compiled again for other sizes", "", *lines, ""] if lines else []


def families(built: dict[str, Any]) -> list[str]:
    lines = ["| family | model | called with | stator | graphs | breaks | torch.compile | graphs | breaks |"]
    lines.append("| --- | --- | --- | --- | ---: | ---: | --- | ---: | ---: |")
    for name, row in built.items():
        cells = [name, row["built"]["model"], _inputs(row["built"])]
        lines.append("| " + " | ".join(cells + _cells(row.get("stator")) + _cells(row.get("peer"))) + " |")
    return lines


def _inputs(built: dict[str, Any]) -> str:
    """The parameters given, without masks and positions; the size of an image where there is nothing else."""
    if "inputs" not in built:
        return "×".join(map(str, built["size"]))
    names = [name for name, *_ in built["inputs"] if not re.search("mask|_sizes|_thw|position|shapes|type_ids", name)]
    return ", ".join(names)


def _cells(entry: dict[str, Any] | None) -> list[str]:
    """Equal or not, graphs, breaks."""
    if entry is None:
        return ["", "", ""]
    if "error" in entry:
        return ["time" if entry["error"].startswith("took more") else f"error: {_cell(entry['error'])[:60]}", "", ""]
    return [entry["equal"], str(entry["graphs"]), str(entry["breaks"])]


def _share(part: list[Any], whole: list[Any]) -> str:
    return f"{len(part)} ({100 * len(part) / len(whole):.1f}%)"


def _who(column: str) -> str:
    return {
        "peer": "torch.compile",
        "train": "stator in training",
        "inductor": "stator in training by its own kernels",
        "dynamic": "stator with other sizes",
    }.get(column, column)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "‹").replace(">", "›")


if __name__ == "__main__":
    main()
