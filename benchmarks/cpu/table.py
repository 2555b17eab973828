"""Rows of the CPU benchmark as Markdown: for each kind, batch and number of threads the speeds, first calls, and means;
then what failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.cpu.systems import SYSTEMS
from benchmarks.table import geometric_mean, lines_of

SHORT = {
    "stator": "stator",
    "stator frozen": "frozen",
    "stator frozen max": "frozen max",
    "torch.compile": "t.c",
    "torch.compile max": "t.c max",
    "onnxruntime": "ORT",
}
PEERS = ("torch.compile max", "onnxruntime")  # the best that a user can have elsewhere


def over_eager(row: dict[str, Any], system: str) -> float | None:
    """Of one process: rows whose systems were measured at different times have several times of eager."""
    entry = row["systems"].get(system, {})
    return entry["eager_ms"] / entry["ms"] if "ms" in entry else None


def over(first: float | None, second: float | None) -> float | None:
    return first / second if first and second else None


def best_peer(row: dict[str, Any]) -> float | None:
    return max((speed for speed in (over_eager(row, system) for system in PEERS) if speed), default=None)


def speeds(row: dict[str, Any]) -> dict[str, float | None]:
    found = {SHORT[system]: over_eager(row, system) for system in SYSTEMS if system != "eager"}
    found["stator / t.c"] = over(found["stator"], found["t.c"])
    found["frozen max / best peer"] = over(found["frozen max"], best_peer(row))
    return found


def first_calls(row: dict[str, Any]) -> dict[str, float | None]:
    return {
        f"{SHORT[system]} 1st s": row["systems"].get(system, {}).get("first_s")
        for system in SYSTEMS
        if system != "eager"
    }


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 20 else f"{value:.0f}"


def part(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One table; means are over the rows that have the figure."""
    found = [speeds(row) | first_calls(row) for row in rows]
    columns = [name for name in found[0] if any(one[name] is not None for one in found)]
    cells = []
    for row, one in zip(rows, found, strict=True):
        eager = row["systems"]["eager"].get("ms")
        cells.append([row["model"], shown(eager), *(shown(one[name]) for name in columns)])
    for title, reduced in (("geometric mean", geometric_mean), ("least", min)):
        values = [[one[name] for one in found if one[name] is not None] for name in columns]
        cells.append([f"**{title}**", "", *(shown(reduced(column)) for column in values)])
    return lines_of(["model", "eager ms", *columns], cells)


def failures(rows: Sequence[dict[str, Any]]) -> list[str]:
    told = [
        f"- {row['model']}, {row['kind']}, batch {row['batch']}, threads {row['threads']}: {system}: {why}"
        for row in rows
        for system, entry in row["systems"].items()
        for why in [*([entry["failed"]] if "failed" in entry else []), *entry.get("said", [])]
    ]
    return ["Failures and warnings", "", *(told or ["- none"])]


def markdown(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    rows = sorted(rows, key=lambda row: names.index(row["model"]))
    text = []
    for shape in sorted({(row["kind"], row["batch"], row["threads"]) for row in rows}):
        chosen = [row for row in rows if (row["kind"], row["batch"], row["threads"]) == shape]
        title = "{}, batch {}, threads {}: speed over eager, and seconds of first calls".format(*shape)
        text += [title, "", *part(chosen), ""]
    return "\n".join([*text, *failures(rows)])
