"""Rows of the GPU benchmark as Markdown: steps and errors, then host times, first calls and memory, then failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.table import geometric_mean, lines_of

ORDER = (
    "eager",
    "stator default",
    "stator reduce-overhead",
    "stator max-autotune",
    "torch.compile default",
    "torch.compile reduce-overhead",
    "torch.compile max-autotune",
)
SHORT = {name: name.replace("torch.compile", "peer").replace("reduce-overhead", "r-o") for name in ORDER}
FIGURES = {
    "Milliseconds of a step between CUDA events, in a burst of steps": ("event_ms", 3),
    "Milliseconds of one step, to the end of its work": ("wall_ms", 3),
    "Milliseconds until a call returns, nothing being queued": ("host_ms", 3),
    "Seconds of the first call (later modes of a system find kernels of its first)": ("first_s", 1),
    "Largest ‖out - reference‖ / ‖reference‖, the reference in float32": ("error", 5),
    "Megabytes: peak of a step": ("peak_mb", 0),
    "Megabytes: kept between steps, parameters apart": ("kept_mb", 0),
}


def label(row: dict[str, Any]) -> str:
    return f"{row['model']}, {row['kind']}, {row['batch']}"


def cell(entry: dict[str, Any], figure: str, digits: int) -> str:
    value = entry.get(figure)
    if value is None:
        return "failed" if "failed" in entry else ""
    return f"{value:.{digits}f}"


def speedups(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Over eager of the same process; the last rows are geometric means over the rows in which all systems ran."""
    cells, ratios = [], []
    systems = [name for name in ORDER[1:] if any(name in row["systems"] for row in rows)]
    for row in rows:
        entries = [row["systems"].get(name, {}) for name in systems]
        found = [entry["eager_ms"] / entry["event_ms"] if "event_ms" in entry else None for entry in entries]
        cells.append([label(row), *("" if one is None else f"{one:.2f}" for one in found)])
        if None not in found:
            ratios.append((row["kind"], row["batch"], found))
    for kind, batch in dict.fromkeys((kind, batch) for kind, batch, _ in ratios):
        columns = zip(*(found for *shape, found in ratios if shape == [kind, batch]), strict=True)
        count = sum(shape == [kind, batch] for *shape, _ in ratios)
        name = f"**mean of {count}, {kind}, {batch}**"
        cells.append([name, *(f"{geometric_mean(column):.2f}" for column in columns)])
    return ["Speed over eager", "", *lines_of(["row", *(SHORT[name] for name in systems)], cells), ""]


def captures(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What did not become one graph (two in training) of our kernels."""
    told = []
    for row in rows:
        for name, entry in row["systems"].items():
            if "failed" in entry:
                told.append(f"- {label(row)}: {name}: FAILED: {entry['failed']}")
            elif (
                entry.get("said")
                or entry.get("graph_breaks")
                or entry.get("left_to_eager")
                or entry.get("kernels") == 0
            ):
                facts = ", ".join(
                    f"{key} {entry[key]}" for key in ("graphs", "graph_breaks", "kernels", "left_to_eager")
                )
                told.append(f"- {label(row)}: {name}: {facts}; {'; '.join(entry['said'])}")
    return ["Failures, breaks and what ran eagerly", "", *(told or ["- none"])]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "no rows"
    systems = [name for name in ORDER if any(name in row["systems"] for row in rows)]
    text = []
    for title, (figure, digits) in FIGURES.items():
        cells = [
            [label(row), *(cell(row["systems"].get(name, {}), figure, digits) for name in systems)] for row in rows
        ]
        text += [title, "", *lines_of(["row", *(SHORT[name] for name in systems)], cells), ""]
    return "\n".join([*text, *captures(rows), "", *speedups(rows)])
