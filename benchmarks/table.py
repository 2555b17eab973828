"""Results as a table: one row a model, geometric means, and the targets they are held against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else float("nan")


def lines_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown; the first column is text, the others are figures."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]


HEADER = (
    "model",
    "graphs",
    "breaks",
    "first call s",
    "peer's s",
    "ratio",
    "eager ms",
    "stator ms",
    "peer ms",
    "over eager",
    "over peer",
    "difference",
)


def row(result: dict[str, Any]) -> tuple[str, ...]:
    """One model's cells. "over eager" and "over peer" are speed-ups: above 1 stator is faster."""
    first, ms = result["first_call_s"], result["median_ms"]
    peer = "peer" in ms
    return (
        result["model"],
        str(result["graphs"]),
        str(result["breaks"]),
        f"{first['stator']:.2f}",
        f"{first['peer']:.1f}" if peer else "",
        f"1/{first['peer'] / first['stator']:.1f}" if peer else "",
        f"{ms['eager']:.1f}",
        f"{ms['stator']:.1f}",
        f"{ms['peer']:.1f}" if peer else "",
        f"{ms['eager'] / ms['stator']:.2f}",
        f"{ms['peer'] / ms['stator']:.2f}" if peer else "",
        f"{result['difference']['stator']:.1e}",
    )


def markdown(results: list[dict[str, Any]]) -> str:
    """The inference table of docs/performance.md, with the geometric means as its last row."""
    rows = [row(result) for result in results]
    ms = [result["median_ms"] for result in results]
    first = [result["first_call_s"] for result in results]
    peer = all("peer" in entry for entry in ms)
    rows.append(
        (
            "**geometric mean**",
            "",
            "",
            f"{geometric_mean(f['stator'] for f in first):.2f}",
            f"{geometric_mean(f['peer'] for f in first):.1f}" if peer else "",
            f"1/{geometric_mean(f['peer'] / f['stator'] for f in first):.1f}" if peer else "",
            "",
            "",
            "",
            f"{geometric_mean(m['eager'] / m['stator'] for m in ms):.2f}",
            f"{geometric_mean(m['peer'] / m['stator'] for m in ms):.2f}" if peer else "",
            "",
        )
    )
    lines = [HEADER, tuple("---" if i < 1 else "---:" for i in range(len(HEADER))), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
