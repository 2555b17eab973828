"""Latency of a model like BERT over the length of its input: eager, code for fixed lengths, and code for all lengths.

`python -m benchmarks.dynamic.plot` measures, keeps the figures and draws docs/latency-over-length.svg with
matplotlib. With `--kept` it draws the kept figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import stator
from benchmarks.fresh_process import run_module
from benchmarks.measure import seconds_of, steady_state
from benchmarks.models import import_torchvision
from benchmarks.rows import RESULTS

LENGTHS = (1, 2, 7, 16, 29, 48, 64, 77, 96, 115, 128, 150, 192, 230, 256, 280, 320, 384, 410, 450, 512)
BUCKETS = (32, 64, 128, 256, 512)
KEPT = RESULTS / "dynamic" / "latency_over_length.json"
DRAWN = Path(__file__).parents[2] / "docs" / "latency-over-length.svg"

Call = Callable[[torch.Tensor], Any]

# label, and style of the line
LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "eager": ("eager", {"color": "gray"}),
    "buckets": ("stator, fixed lengths, padded", {"color": "tab:orange"}),
    "alone": ("stator, compiled for each length", {"color": "tab:green", "linewidth": 2.6, "alpha": 0.5}),
    "stator": ("stator", {"color": "tab:red"}),
    "peer": ("torch.compile, dynamic", {"color": "tab:blue"}),
}


def model() -> torch.nn.Module:
    import_torchvision()
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(
        BertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=1000)
    ).eval()


def ids_of(length: int) -> torch.Tensor:
    return torch.randint(1, 1000, (1, length), generator=torch.Generator().manual_seed(length))


def plain(called: Any) -> Call:
    return lambda ids: called(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state


def in_buckets(called: Any) -> Call:
    """Pad to the next of a few lengths, and drop the results of the padding."""

    def call(ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        added = next(bucket for bucket in BUCKETS if bucket >= length) - length
        padded = torch.nn.functional.pad(ids, (0, added))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (0, added))
        return called(input_ids=padded, attention_mask=mask).last_hidden_state[:, :length]

    return call


def measure(seconds: float, peer: bool) -> dict[str, Any]:
    fixed = partial(stator.compile, dynamic=False, options={"recompile_limit": 1000})
    calls: dict[str, Call] = {
        "eager": plain(model()),
        "buckets": in_buckets(fixed(model())),
        "alone": plain(fixed(model())),
        "stator": plain(stator.compile(model())),
    }
    if peer:
        importlib.import_module("torch._inductor.compile_fx")  # before the clock starts: only compiling is timed

        calls["peer"] = plain(torch.compile(model(), dynamic=True))
    first: dict[str, dict[int, float]] = {name: {} for name in calls}
    median: dict[str, dict[int, float]] = {name: {} for name in calls}
    order = [*LENGTHS[1::2], *LENGTHS[::2]]  # users' lengths come in no order
    for length in order:
        ids = ids_of(length)
        expected = calls["eager"](ids)
        for name, call in calls.items():
            first[name][length], found = seconds_of(partial(call, ids))
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    for length in order:
        times = steady_state(
            {name: partial(call, ids_of(length)) for name, call in calls.items()}, seconds=seconds, least=5
        )
        for name, samples in times.items():
            median[name][length] = statistics.median(samples) * 1e3
    return {"threads": torch.get_num_threads(), "order": order, "first_s": first, "median_ms": median}


def draw(found: dict[str, Any]) -> None:
    """Left: milliseconds over the length. Right: seconds of first calls, added up over the lengths in their order."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "stator", "svg.fonttype": "none"})  # equal figures give equal files
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6))
    for name, by_length in found["median_ms"].items():
        label, style = LINES[name]
        style = {"label": label, "linewidth": 1.2, **style}
        lengths = sorted(map(int, by_length))
        left.plot(lengths, [by_length[str(length)] for length in lengths], **style)
        total, totals = 0.0, []
        for length in found["order"]:
            total += found["first_s"][name][str(length)]
            totals.append(total)
        right.plot(range(1, len(totals) + 1), totals, **style)
    left.set(xlabel="length", ylabel="ms", title="a call")
    right.set(xlabel="different lengths met", ylabel="s", title="first calls at each length, added up", yscale="log")
    left.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(DRAWN, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", action="store_true", help="draw the kept figures")
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of steady-state calls for each length")
    parser.add_argument("--out", type=Path, help="measure here, in a process whose caches are empty")
    options = parser.parse_args()
    if options.out:
        with torch.no_grad():
            options.out.write_text(json.dumps(measure(options.seconds, not options.no_peer), indent=1) + "\n")
        return
    if not options.kept:
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        more = ["--no-peer"] if options.no_peer else []
        run_module("benchmarks.dynamic.plot", ["--out", str(KEPT), "--seconds", str(options.seconds), *more], None)
    draw(json.loads(KEPT.read_text()))


if __name__ == "__main__":
    main()
