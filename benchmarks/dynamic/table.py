"""The results as a table: one row for each program and mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.table import geometric_mean

HEADER = (
    "program",
    "mode",
    "sizes",
    "compiled",
    "breaks",
    "difference",
    "first call s",
    "other calls s",
    "over eager",
    "least",
    "over code for one size",
    "torch.compile: compiled",
    "first s",
    "over torch.compile",
)


def ratios(result: dict[str, Any], system: str, over: str) -> list[float]:
    """How many times quicker `system` is than `over` at each size; empty where one of them was not measured."""
    times = result["median_ms"].values()
    return [one[over] / one[system] for one in times if system in one and over in one]


def row(result: dict[str, Any], system: str = "stator") -> tuple[str, ...]:
    """One program's cells for one of stator's systems. Ratios above 1: it is the quicker one; geometric means over
    the sizes, and the worst size."""
    peers = "peer_dynamic" if "peer_dynamic" in result["systems"] else "peer"
    ours, peer = result["systems"][system], result["systems"].get(peers)
    fails = peer is not None and "error" in peer
    first, *others = ours["first_s"].values()
    counts = ours["counts"]
    unfit = {name: counts[name] for name in ("limits", "failed", "eager_graphs") if counts[name]}
    compiled = str(counts["compiled"]) + (f" + {ours['compiled_again']}" if ours["compiled_again"] else "")
    told = ", ".join(f"{name} {number}" for name, number in unfit.items())
    over = {name: ratios(result, system, name) for name in ("eager", "alone", peers)}
    mean = {name: f"{geometric_mean(one):.2f}" if one else "" for name, one in over.items()}
    beside = ", beside dynamic=True" if peers == "peer_dynamic" else ""
    return (
        result["program"] + ("" if system == "stator" else f" ({system})") + beside,
        result["mode"],
        str(len(result["median_ms"])),
        compiled + (f" ({told})" if told else ""),
        str(counts["breaks"]),
        f"{max(ours['difference'].values()):.0e}",
        f"{first:.2f}",
        f"{sum(others):.2f}",
        mean["eager"],
        f"{min(over['eager']):.2f}" if over["eager"] else "",
        mean["alone"],
        str(peer["counts"]["compiled"]) if peer and not fails else "",
        f"{sum(peer['first_s'].values()):.1f}" if peer and not fails else "",
        "fails" if fails else mean[peers],
    )


def markdown(results: Iterable[dict[str, Any]]) -> str:
    lines = [HEADER, tuple("---" if at < 2 else "---:" for at in range(len(HEADER)))]
    for result in results:
        lines += [row(result, system) for system in ("stator", "dynamic") if system in result["systems"]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
